"""Linear values as a task: clients are agents in MDPs of their own; the model is Phi (backbone) and theta (head).

`fit` takes `epochs` as environment steps and `lr` as the rate, and moves the blocks it is asked to; everything is in
float64. Trajectories go on across rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.core import (
    TrainingConfig,
    option,
)
from equipoise.environments.linear_task import MODELS, LinearConfig, LinearTask

if TYPE_CHECKING:
    pass
from equipoise.core import Task
from equipoise.environments.tabular_mdp import planted, spread
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class PlantedConfig(LinearConfig):
    states: int = option(30, "states", low=1)
    actions: int = option(4, "actions of model q; model v has none", low=1)
    branching: int = option(
        3, "states that follow each state-action pair at u = 0 and at u = 1", low=1
    )
    planted_rank: int = option(3, "dimension of the subspace that holds all agents' values", low=1)


def build(config: PlantedConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    actions = 1 if model == "v" else config.actions
    u = spread(config.agents)
    mdps = planted(
        seed, u, config.states, actions, config.branching, config.planted_rank, config.gamma
    )
    return LinearTask("planted", mdps, config, model, training, seed)


SPEC = TaskSpec(
    name="planted",
    help="agents in random MDPs, different ones, whose values share one planted subspace",
    config=PlantedConfig,
    training=TrainingConfig(epochs=10, lr=0.1),
    models=MODELS,
    build=build,
)
