"""Fed-DVR-Q (Salgia, Chi, 2024): FedSynQ with variance reduced twice, by batches and by a reference table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, ServerMessage, Server, State, Task, LocalHParams, Params, ClientUpdate, equal_weights, option
from equipoise.core.options import with_default
from equipoise.methods.rl.qlearning import TabularQ

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
    reference_batch: int = option(32, "such samples for the first reference; 4 times as many in each next epoch", low=1)

    def init_server(self, task: Task, params: Params) -> State:
        return {"reference": params["q"], "target": params["q"]}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        return replace(down, broadcast={} if self._begins(server.round) else dict(state)), state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        epoch = (client.round - 1) // self.iterations
        samples = self.reference_batch * GROWTH**epoch if self._begins(client.round) else self.batch
        return LocalHParams(torch.full_like(client.id, samples), torch.full_like(client.id, self.eta, dtype=torch.float64)), client.state

    def train(self, client: Client) -> tuple[Params, State]:
        known, backup = client.message.broadcast, {"backup": torch.ones_like(client.id)}
        if self._begins(client.round):
            target = client.fit(client.start, aux=backup)["q"]
        else:
            target = client.fit(client.start, aux={**backup, "reference": known["reference"]})["q"] + known["target"]
        return {"q": (1 - self.eta) * client.start["q"] + self.eta * target}, client.state

    def aggregation_weights(self, server: Server, ids: Tensor, updates: ClientUpdate) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """The mean of the agents' tables; after an epoch's first round T_R follows from it."""
        q, mean, state = server.params["q"], sums["mean"]["q"], server.state
        if self._begins(server.round):
            state = {"reference": q, "target": q + (mean - q) / self.eta}
        return {"q": mean}, state

    def _begins(self, round: int) -> bool:
        return (round - 1) % self.iterations == 0
