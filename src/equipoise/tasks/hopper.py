"""MuJoCo's Hopper, each agent with legs of its own thickness, for federated actor-critic agents."""

from __future__ import annotations

from equipoise.contract import Task, TrainingConfig
from equipoise.frl.deep.mujoco import HOPPER, mujoco_task
from equipoise.frl.deep.task import AgentConfig
from equipoise.tasks import TaskSpec


def build(config: AgentConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    return mujoco_task(HOPPER, config, training, seed)


SPEC = TaskSpec(
    name="hopper",
    help="agents in MuJoCo's Hopper, each with legs of its own thickness (extra mujoco)",
    config=AgentConfig,
    training=TrainingConfig(epochs=250, lr=1e-3, batch_size=64),
    models=("mlp",),
    build=build,
)
