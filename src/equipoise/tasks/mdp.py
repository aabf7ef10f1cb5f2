"""The user's own MDP as arrays in a NumPy file, for federated Q-learning."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.contract import Task, TrainingConfig, option
from equipoise.core.errors import UsageError
from equipoise.frl.mdp import from_file
from equipoise.frl.task import TabularConfig, TabularTask
from equipoise.tasks import TaskSpec


@dataclass(frozen=True)
class OwnConfig(TabularConfig):
    file: str = option("", ".npz file with P [S, A, S] and R [S, A], optionally start [S] and terminal [S]")


def build(config: OwnConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    if not config.file:
        raise UsageError("task 'mdp' needs --file with your transition and reward arrays (numpy.savez(path, P=P, R=R))")
    return TabularTask("mdp", from_file(config.file, config.gamma), config, training, seed)


SPEC = TaskSpec(
    name="mdp",
    help="agents in your own MDP: arrays from a NumPy file",
    config=OwnConfig,
    training=TrainingConfig(epochs=50, lr=0.1),
    models=(),
    build=build,
)
