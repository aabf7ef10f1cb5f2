"""What the federated Q-learning methods share (arXiv 2305.10697): a round is one synchronisation period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log1p
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import with_default
from equipoise.core import (
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    equal_weights,
    merge_sent_blocks,
    option,
)
from equipoise.core.report_validation import COUNT
from equipoise.environments.tabular_task import TabularTask
from equipoise.utils import rng
from equipoise.utils.errors import UsageError


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
        0,
        "local steps of an agent in the whole run, a multiple of tau; 0 for as many as --rounds give",
        low=0,
    )

    def num_rounds(self, asked: int) -> int:
        if self.steps % self.tau:
            raise UsageError(f"steps is {self.steps}: must be a multiple of tau ({self.tau})")
        return self.steps // self.tau or asked

    def receive(self, client: Client) -> tuple[Params, State]:
        """The received table; in the first round, where the task asks for it, an own random one."""
        start, task = merge_sent_blocks(client), client.task
        if client.round == 1 and isinstance(task, TabularTask) and task.config.random_q0:
            from equipoise.environments.tabular_q import random_q_entries

            start = {
                "q": random_q_entries(
                    client.uniform(*start["q"].shape, stream=rng.FIRST_TABLES), task.mdp.gamma
                )
            }
        return start, client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        return LocalHParams(
            torch.full_like(client.id, self.tau),
            torch.full_like(client.id, self.eta, dtype=torch.float64),
        ), client.state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Decision 3, entry by entry, by the rule; agents that report no visits are weighted alike."""
        from equipoise.environments.tabular_q import average_tables

        tables = updates.params["q"].contiguous().numpy()
        visits = updates.extra["visits"].contiguous().numpy() if updates.extra else tables
        table = average_tables(
            self.rule, tables, visits, server.params["q"].contiguous().numpy(), self.eta
        )
        return {"q": torch.from_numpy(table)}, server.state


@dataclass(frozen=True)
class FedSynQ(FederatedQ):
    """Q_t(s,a) = (1 - eta) Q_{t-1}(s,a) + eta (r(s,a) + gamma max_a' Q_{t-1}(s',a')) for all (s,a); mean every tau."""

    name: ClassVar[str] = "fedsynq"
    rule: ClassVar[str] = "equal"
    tau: int = with_default(FederatedQ, "tau", 5)

    def train(self, client: Client) -> tuple[Params, State]:
        return client.fit(
            client.start, aux={"synchronous": torch.ones_like(client.id)}
        ), client.state


@dataclass(frozen=True)
class FedAsynQEq(FederatedQ):
    """Only the visited entry moves: Q(s,a) <- (1 - eta) Q(s,a) + eta (r + gamma max Q(s')); Q <- mean_k Q^k."""

    name: ClassVar[str] = "fedasynq-eq"
    rule: ClassVar[str] = "equal"
    eta: float = with_default(FederatedQ, "eta", 0.2)


@dataclass(frozen=True)
class FedAsynQIm(FederatedQ):
    """Q(s,a) <- sum_k alpha^k Q^k, alpha^k(s,a) proportional to (1 - eta)^(-N^k(s,a)); the counts N go up with Q."""

    name: ClassVar[str] = "fedasynq-im"
    rule: ClassVar[str] = "importance"

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        return ClientUpdate(
            {"q": client.trained["q"]}, {"visits": client.data_state["visits"]}
        ), client.state


@dataclass(frozen=True)
class FedAsynQTa(FederatedQ):
    """An agent's table is d Q_start + (1 - d) T, d = (1 - eta)^N; T, the mean of its targets, weighs (1 - d)/(1 + d).

    It sends its evidence (1 - d) T and N; the server moves its current table towards the weighted mean of the T.
    """

    name: ClassVar[str] = "fedasynq-ta"
    rule: ClassVar[str] = "targets"
    eta: float = with_default(FederatedQ, "eta", 0.005)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        visits = client.data_state["visits"]
        evidence = (
            client.trained["q"] - torch.exp(log1p(-self.eta) * visits.double()) * client.start["q"]
        )
        return ClientUpdate({"q": evidence}, {"visits": visits}), client.state


GROWTH = 4  # of the samples for the reference, from epoch to epoch: each epoch halves the error


@dataclass(frozen=True)
class FedDVRQ(TabularQ):
    """Epoch k is `iterations` rounds from a reference table R, the server's table when it begins.

    First round:  T_R = mean_m T^m(R), T^m from 4^(k-1) `reference_batch` samples of each pair;  Q <- Q + eta (T_R - Q).
    The others:  Q <- mean_m (1 - eta) Q + eta (T^m(Q) - T^m(R) + T_R), T^m from `batch` samples, the same for Q and R.
    """

    name: ClassVar[str] = "feddvrq"
    needs_common_start: ClassVar[bool] = True
    aggregates_by_sum: ClassVar[bool] = True
    eta: float = with_default(TabularQ, "eta", 0.8)
    iterations: int = option(25, "rounds of an epoch; 2 / (eta (1 - gamma)) of them serve", low=1)
    batch: int = option(8, "samples of each state-action pair by each agent in a round", low=1)
    reference_batch: int = option(
        32, "such samples for the first reference; 4 times as many in each next epoch", low=1
    )

    def init_server(self, task: Task, params: Params) -> State:
        return {"reference": params["q"], "target": params["q"]}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        return replace(down, broadcast={} if self._begins(server.round) else dict(state)), state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        epoch = (client.round - 1) // self.iterations
        samples = self.reference_batch * GROWTH**epoch if self._begins(client.round) else self.batch
        return LocalHParams(
            torch.full_like(client.id, samples),
            torch.full_like(client.id, self.eta, dtype=torch.float64),
        ), client.state

    def train(self, client: Client) -> tuple[Params, State]:
        known, backup = client.message.broadcast, {"backup": torch.ones_like(client.id)}
        if self._begins(client.round):
            target = client.fit(client.start, aux=backup)["q"]
        else:
            target = (
                client.fit(client.start, aux={**backup, "reference": known["reference"]})["q"]
                + known["target"]
            )
        return {"q": (1 - self.eta) * client.start["q"] + self.eta * target}, client.state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """The mean of the agents' tables; after an epoch's first round T_R follows from it."""
        q, mean, state = server.params["q"], sums["mean"]["q"], server.state
        if self._begins(server.round):
            state = {"reference": q, "target": q + (mean - q) / self.eta}
        return {"q": mean}, state

    def _begins(self, round: int) -> bool:
        return (round - 1) % self.iterations == 0
