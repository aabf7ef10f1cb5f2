"""Random (Garnet) MDPs for federated Q-learning."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.contract import Task, TrainingConfig, option
from equipoise.frl.mdp import garnet
from equipoise.frl.task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class GarnetConfig(TabularConfig):
    states: int = option(10, "states", low=1)
    actions: int = option(5, "actions", low=1)
    branching: int = option(3, "states that follow each state-action pair", low=1)


def build(config: GarnetConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    mdp = garnet(seed, config.states, config.actions, config.branching, config.gamma)
    return TabularTask("garnet", mdp, config, training, seed)


SPEC = TaskSpec(
    name="garnet",
    help="agents in a random MDP: states, actions and branching to choose",
    config=GarnetConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build,
)
