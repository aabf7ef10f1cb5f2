"""Gymnasium's Acrobot, each agent with links of its own length, for federated deep Q-learning."""

from __future__ import annotations

from equipoise.contract import Task, TrainingConfig
from equipoise.frl.deep.physics import Acrobot
from equipoise.frl.deep.task import MODELS, ClassicConfig, classic
from equipoise.tasks import TaskSpec


def build(config: ClassicConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return classic("acrobot", Acrobot(), config, model, training, seed)


SPEC = TaskSpec(
    name="acrobot",
    help="deep agents in Acrobot, each with links of its own length",
    config=ClassicConfig,
    training=TrainingConfig(epochs=100, lr=1e-3, batch_size=64),
    models=MODELS,
    build=build,
)
