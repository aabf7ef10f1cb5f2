"""PFedDQN-Rep (arXiv 2411.15014 with deep representations): a shared body learned slowly, personal heads quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Task, TrainingConfig
from equipoise.core.errors import UsageError
from equipoise.frl.deep.task import AgentTask
from equipoise.methods.rl.deep import DeepQ


@dataclass(frozen=True)
class PFedDqnRep(DeepQ):
    """Q_i(s, .) = theta_i Phi(s): theta_i learns at the rate alpha_t, Phi at the slower beta_t; Phi <- sum_i Phi_i / N.

    Both move in every step, or K steps of theta_i under a frozen Phi are followed by one of Phi. Decision 4 is the
    backbone, always.
    """

    name: ClassVar[str] = "pfeddqn-rep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"head_steps": (0, 8), "body_rate": (0.1, 1.0)}
    two_rates: ClassVar[bool] = True

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if isinstance(task, AgentTask) and task.net.embedding:
            raise UsageError("pfeddqn-rep shares the body of a plain net: leave --model out, or set it to mlp")
