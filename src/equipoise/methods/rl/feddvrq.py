"""Fed-DVR-Q (Salgia, Chi, 2024): FedSynQ with variance reduced twice, by batches and by a reference table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Server, State, Task, Train, Tree, Up, equal_weights, option
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
    one_start: ClassVar[bool] = True
    summed: ClassVar[bool] = True
    eta: float = with_default(TabularQ, "eta", 0.8)
    iterations: int = option(25, "rounds of an epoch; 2 / (eta (1 - gamma)) of them serve", low=1)
    batch: int = option(8, "samples of each state-action pair by each agent in a round", low=1)
    reference_batch: int = option(32, "such samples for the first reference; 4 times as many in each next epoch", low=1)

    def server_init(self, task: Task, params: Tree) -> State:
        return {"reference": params["q"], "target": params["q"]}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        return replace(down, extra={} if self._begins(s.round) else dict(state)), state

    def decide(self, c: Client) -> tuple[Train, State]:
        epoch = (c.round - 1) // self.iterations
        samples = self.reference_batch * GROWTH**epoch if self._begins(c.round) else self.batch
        return Train(torch.full_like(c.id, samples), torch.full_like(c.id, self.eta, dtype=torch.float64)), c.state

    def update(self, c: Client) -> tuple[Tree, State]:
        known, backup = c.down.extra, {"backup": torch.ones_like(c.id)}
        if self._begins(c.round):
            target = c.fit(c.start, aux=backup)["q"]
        else:
            target = c.fit(c.start, aux={**backup, "reference": known["reference"]})["q"] + known["target"]
        return {"q": (1 - self.eta) * c.start["q"] + self.eta * target}, c.state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return equal_weights(ids), s.state

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """The mean of the agents' tables; after an epoch's first round T_R follows from it."""
        q, mean, state = s.params["q"], sums["mean"]["q"], s.state
        if self._begins(s.round):
            state = {"reference": q, "target": q + (mean - q) / self.eta}
        return {"q": mean}, state

    def _begins(self, round: int) -> bool:
        return (round - 1) % self.iterations == 0
