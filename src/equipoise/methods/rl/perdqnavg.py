"""PerDQNAvg (Jin et al., 2022): one Q-network for all, told apart by a personal embedding at its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.contract import Client, State, Task, TrainingConfig, Params, merge_sent_blocks
from equipoise.core.errors import UsageError
from equipoise.frl.deep.task import AgentTask
from equipoise.methods.rl.deep import DeepQ


@dataclass(frozen=True)
class PerDqnAvg(DeepQ):
    """Q_i(s, a) = Q([s, e_i], a): Q is averaged, e_i (of size ceil(log2 N)) is learned by agent i alone.

    Each e_i starts at the agent's own draw from U(-1, 1): one net cannot tell agents apart whose inputs are the same.
    """

    name: ClassVar[str] = "perdqnavg"
    model: ClassVar[str] = "embedded"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True

    def init_client(self, task: Task, params: Params) -> State:
        return {"began": torch.zeros(())}

    def receive(self, client: Client) -> tuple[Params, State]:
        start = merge_sent_blocks(client)
        own = (2.0 * client.uniform(*start["e"].shape) - 1.0).to(start["e"].dtype)
        start["e"] = torch.where(client.state["began"] > 0, start["e"], own)
        return start, {"began": torch.ones_like(client.state["began"])}

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if isinstance(task, AgentTask) and not task.net.embedding:
            raise UsageError("perdqnavg needs a net with an embedding: leave --model out, or set it to embedded")
        if self.head_steps:
            raise UsageError("perdqnavg has no head of its own, so head_steps must be 0")
