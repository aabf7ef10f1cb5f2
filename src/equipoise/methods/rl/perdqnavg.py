"""PerDQNAvg (Jin et al., 2022): one Q-network for all, told apart by a personal embedding at its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Task, Training
from equipoise.core.errors import UsageError
from equipoise.frl.deep.task import AgentTask
from equipoise.methods.rl.deep import DeepQ


@dataclass(frozen=True)
class PerDqnAvg(DeepQ):
    """Q_i(s, a) = Q([s, e_i], a): Q is averaged, e_i (of size ceil(log2 N)) is learned by agent i alone."""

    name: ClassVar[str] = "perdqnavg"
    model: ClassVar[str] = "embedded"
    shares: ClassVar[tuple[str, ...]] = ("backbone",)
    keeps_model: ClassVar[bool] = True

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if isinstance(task, AgentTask) and not task.net.embedding:
            raise UsageError("perdqnavg needs a net with an embedding: leave --model out, or set it to embedded")
        if self.head_steps:
            raise UsageError("perdqnavg has no head of its own, so head_steps must be 0")
