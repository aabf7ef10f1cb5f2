"""What the federated Q-learning methods share (arXiv 2305.10697): a round is one synchronisation period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Method, ValueRange, Server, State, Task, LocalHParams, TrainingConfig, Params, ClientUpdate, option, merge_sent_blocks
from equipoise.contract.ranges import COUNT
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.frl.task import TabularTask


@dataclass(frozen=True)
class TabularQ(Method):
    """Learns one table of Q-values."""

    learner_kind: ClassVar[str] = "tabular"
    family: ClassVar[str] = "agents"
    eta: float = option(0.05, "learning rate of Q-learning", above=0, below=1)

    def check(self, task: Task, training: TrainingConfig) -> None:
        if not isinstance(task, TabularTask):
            raise UsageError(
                f"{self.name} learns tables of an MDP, and task '{task.name}' has none: try --task two-state"
            )


@dataclass(frozen=True)
class FederatedQ(TabularQ):
    """tau local steps Q <- (1 - eta) Q + eta (r + gamma max Q(s')), then one table of all."""

    rule: ClassVar[str]
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"visits": COUNT}
    tau: int = option(50, "local steps between synchronisations", low=1)
    steps: int = option(
        0, "local steps of an agent in the whole run, a multiple of tau; 0 for as many as --rounds give", low=0
    )

    def num_rounds(self, asked: int) -> int:
        if self.steps % self.tau:
            raise UsageError(f"steps is {self.steps}: must be a multiple of tau ({self.tau})")
        return self.steps // self.tau or asked

    def receive(self, client: Client) -> tuple[Params, State]:
        """The received table; in the first round, where the task asks for it, an own random one."""
        start, task = merge_sent_blocks(client), client.task
        if client.round == 1 and isinstance(task, TabularTask) and task.config.random_q0:
            from equipoise.frl.tabular import first_table

            start = {"q": first_table(client.uniform(*start["q"].shape, stream=streams.FIRST_TABLES), task.mdp.gamma)}
        return start, client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return LocalHParams(torch.full_like(client.id, self.tau), torch.full_like(client.id, self.eta, dtype=torch.float64)), client.state

    def aggregate(self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params) -> tuple[Params, State]:
        """Decision 3, entry by entry, by the rule; agents that report no visits are weighted alike."""
        from equipoise.frl.tabular import combine

        tables = updates.params["q"].contiguous().numpy()
        visits = updates.extra["visits"].contiguous().numpy() if updates.extra else tables
        table = combine(self.rule, tables, visits, server.params["q"].contiguous().numpy(), self.eta)
        return {"q": torch.from_numpy(table)}, server.state
