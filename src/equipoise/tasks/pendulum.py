"""Gymnasium's Pendulum, each agent with a rod of its own length, for federated actor-critic agents."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.contract import Task, TrainingConfig
from equipoise.core.options import with_default
from equipoise.frl.deep.physics import Pendulum
from equipoise.frl.deep.task import ClassicConfig, classic
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class PendulumConfig(ClassicConfig):
    """Options of agents in Pendulum, who learn after every step of one environment."""

    parallel: int = with_default(ClassicConfig, "parallel", 1)
    width: int = with_default(ClassicConfig, "width", 64)


def build(config: PendulumConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return classic("pendulum", Pendulum(), config, model, training, seed)


SPEC = TaskSpec(
    name="pendulum",
    help="actor-critic agents in Pendulum, each with a rod of its own length",
    config=PendulumConfig,
    training=TrainingConfig(epochs=200, lr=1e-3, batch_size=64),
    models=("mlp",),
    build=build,
)
