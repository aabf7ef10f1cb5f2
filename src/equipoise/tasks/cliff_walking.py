"""Gymnasium's CliffWalking by its transition table, for federated Q-learning."""

from __future__ import annotations

from equipoise.contract import Task, TrainingConfig
from equipoise.frl.mdp import toy_text
from equipoise.frl.task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec


def build(config: TabularConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return TabularTask("cliff-walking", toy_text("cliff-walking", config.gamma), config, training, seed)


SPEC = TaskSpec(
    name="cliff-walking",
    help="agents in Gymnasium's CliffWalking, by its transition table",
    config=TabularConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build,
)
