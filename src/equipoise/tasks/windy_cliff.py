"""CliffWalking with a wind of its own for every agent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.contract import Task, TrainingConfig, option
from equipoise.core.options import with_default
from equipoise.frl.families import soft_greedy, spread, under_policy, windy_cliff
from equipoise.frl.linear_task import MODELS, LinearConfig, LinearTask
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class WindyCliffConfig(LinearConfig):
    rank: int = with_default(LinearConfig, "rank", 2)
    wind: float = option(
        0.2, "chance of a gust towards the cliff for the agent with u = 1; others have wind * u", low=0, high=1
    )
    goal: float = option(1.0, "reward for reaching the goal, in units of what a fall costs", low=0)


def build(config: WindyCliffConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    """Model v: the values of one policy for everybody, the best one without wind, with chance epsilon of any action."""
    mdps = windy_cliff(spread(config.agents), config.wind, config.gamma, config.goal)
    if model == "v":
        policy = soft_greedy(windy_cliff(np.zeros(1), config.wind, config.gamma, config.goal)[0], config.epsilon)
        mdps = [under_policy(mdp, policy) for mdp in mdps]
    return LinearTask("windy-cliff", mdps, config, model, training, seed)


SPEC = TaskSpec(
    name="windy-cliff",
    help="agents in CliffWalking, each with its own chance of a gust towards the cliff",
    config=WindyCliffConfig,
    training=TrainingConfig(epochs=10, lr=0.1),
    models=MODELS,
    build=build,
)
