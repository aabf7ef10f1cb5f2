"""FedDyn (Acar et al., 2021): a dynamic regulariser that lets the clients' optima agree with the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Method,
    Pull,
    Server,
    State,
    Task,
    Training,
    Tree,
    Up,
    equal_weights,
    option,
)
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class FedDyn(Method):
    """Their algorithm 1. Clients keep G_i, the server h, all from 0: h = mean of all G_i."""

    name: ClassVar[str] = "feddyn"
    family: ClassVar[str] = "one-model"
    one_start: ClassVar[bool] = True
    summed: ClassVar[bool] = True
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": (1e-4, 0.1)}
    alpha: float = option(0.01, "strength of the dynamic regulariser", above=0)

    def check(self, task: Task, training: Training) -> None:
        refuse_unstable_pull(self, "alpha", training)

    def client_init(self, task: Task, params: Tree) -> State:
        return {"G": {name: torch.zeros_like(value) for name, value in params.items()}}

    def server_init(self, task: Task, params: Tree) -> State:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def update(self, c: Client) -> tuple[Tree, State]:
        """min F_i(theta) - <G_i, theta> + alpha/2 |theta - theta_prev|^2; G_i <- G_i - alpha (theta_i - theta_prev)."""
        G, before = c.state["G"], c.start
        theta = c.fit(before, linear={name: -G[name] for name in G}, pull=Pull(before, self.alpha))
        return theta, {"G": {name: G[name] - self.alpha * (theta[name] - before[name]) for name in G}}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return equal_weights(ids), s.state

    def sums(self, sent: Tree, up: Up, weights: Tensor | Tree) -> State:
        moved = {name: (theta - sent[name]).sum(0) for name, theta in up.params.items()}
        return super().sums(sent, up, weights) | {"moved": moved}

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """h <- h - alpha/N sum_S(theta_i - theta_prev); theta <- mean_S theta_i - h/alpha."""
        share = self.alpha / s.task.clients
        h = {name: old - share * sums["moved"][name] for name, old in s.state["h"].items()}
        mean = sums["mean"]
        return s.stepped({name: mean[name] - h[name] / self.alpha for name in mean}, mean), {"h": h}
