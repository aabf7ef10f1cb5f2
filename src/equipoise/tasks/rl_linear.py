"""Tasks of linear value functions: clients are agents, each in its own MDP.

See `equipoise.environments.linear_task` for how agents learn. Model "v" evaluates a policy, model
"q" learns to act.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.config.schema import with_default
from equipoise.core import ExperimentTask, TrainingConfig, option
from equipoise.environments.linear_task import MODELS, LinearConfig, LinearTask
from equipoise.environments.tabular_mdp import (
    epsilon_greedy_policy,
    evenly_spaced,
    mdp_under_policy,
    planted_mdps,
    windy_cliff_mdps,
)
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class PlantedConfig(LinearConfig):
    """Options of random MDPs with a planted subspace."""

    states: int = option(30, "states", low=1)
    actions: int = option(4, "actions of model q; model v has none", low=1)
    branching: int = option(
        3, "states that follow each state-action pair at u = 0 and at u = 1", low=1
    )
    planted_rank: int = option(3, "dimension of the subspace that holds all agents' values", low=1)


@dataclass(frozen=True)
class WindyCliffConfig(LinearConfig):
    """Options of CliffWalking with wind."""

    rank: int = with_default(LinearConfig, "rank", 2)
    wind: float = option(
        0.2,
        "chance of a gust towards the cliff for the agent with u = 1; others have wind * u",
        low=0,
        high=1,
    )
    goal: float = option(1.0, "reward for reaching the goal, in units of what a fall costs", low=0)


def build_planted(
    config: PlantedConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task planted.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    mdps = planted_mdps(
        seed,
        evenly_spaced(config.agents),
        config.states,
        1 if model == "v" else config.actions,
        config.branching,
        config.planted_rank,
        config.gamma,
    )
    return LinearTask("planted", mdps, config, model, training, seed)


def build_windy_cliff(
    config: WindyCliffConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task windy-cliff.

    With model "v" all agents evaluate one policy: the optimal one without wind, epsilon-greedy.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the run.

    Returns:
        The task.
    """
    u = evenly_spaced(config.agents)
    mdps = windy_cliff_mdps(u, config.wind, config.gamma, config.goal)
    if model == "v":
        calm = windy_cliff_mdps(np.zeros(1), config.wind, config.gamma, config.goal)[0]
        policy = epsilon_greedy_policy(calm, config.epsilon)
        mdps = [mdp_under_policy(mdp, policy) for mdp in mdps]
    return LinearTask("windy-cliff", mdps, config, model, training, seed)


PLANTED = TaskSpec(
    name="planted",
    help="agents in random MDPs, different ones, whose values share one planted subspace",
    config=PlantedConfig,
    training=TrainingConfig(epochs=10, lr=0.1),
    models=MODELS,
    build=build_planted,
)
WINDY_CLIFF = TaskSpec(
    name="windy-cliff",
    help="agents in CliffWalking, each with its own chance of a gust towards the cliff",
    config=WindyCliffConfig,
    training=TrainingConfig(epochs=10, lr=0.1),
    models=MODELS,
    build=build_windy_cliff,
)
