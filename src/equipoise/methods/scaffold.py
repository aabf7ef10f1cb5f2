"""SCAFFOLD (Karimireddy et al., 2020), option II: control variates take the clients' drift out of local SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Down,
    Method,
    OverRounds,
    Range,
    Server,
    State,
    Task,
    Training,
    Tree,
    Up,
    equal_weights,
    option,
)
from equipoise.contract.ranges import ANY
from equipoise.core.errors import UsageError


@dataclass(frozen=True)
class Scaffold(Method):
    """Their algorithm 1. Server x, c; clients c_i; all control variates start at 0, so that c = mean of all c_i."""

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "one-model"
    one_start: ClassVar[bool] = True
    reports: ClassVar[Mapping[str, Range]] = {"c": ANY}
    summed: ClassVar[bool] = True
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"server_lr": (0.3, 1.5)}
    server_lr: OverRounds[float] = option(1.0, "the server's rate eta_g", above=0)

    def check(self, task: Task, training: Training) -> None:
        if training.momentum:
            raise UsageError(
                "scaffold reads the mean gradient off the path of plain SGD, which momentum bends: set momentum to 0"
            )

    def client_init(self, task: Task, params: Tree) -> State:
        return {"c": {name: torch.zeros_like(x) for name, x in params.items()}}

    def server_init(self, task: Task, params: Tree) -> State:
        return self.client_init(task, params)

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        return replace(down, extra={"c": state["c"]}), state

    def update(self, c: Client) -> tuple[Tree, State]:
        """R times: y <- y - eta (g_i(y) - c_i + c)."""
        all_c, own_c = c.down.extra["c"], c.state["c"]
        return c.fit(c.start, linear={name: all_c[name] - own_c[name] for name in own_c}), c.state

    def upload(self, c: Client) -> tuple[Up, State]:
        """c_i+ = c_i - c + (x - y) / (R eta), with the R and eta of this very client."""
        x, y, all_c, own_c = c.start, c.trained, c.down.extra["c"], c.state["c"]
        path = c.steps(c.train) * c.train.lr
        change = {name: (x[name] - y[name]) / path.to(y[name].dtype) - all_c[name] for name in y}
        return Up(y, {"c": change}), {"c": {name: own_c[name] + change[name] for name in y}}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return equal_weights(ids), s.state

    def sums(self, sent: Tree, up: Up, weights: Tensor | Tree) -> State:
        return super().sums(sent, up, weights) | {"c": {name: change.sum(0) for name, change in up.extra["c"].items()}}

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """x <- x + eta_g mean_S(y - x); c <- c + 1/N sum_S(c_i+ - c_i)."""
        y, x = sums["mean"], s.params
        moved = {name: x[name] + self.server_lr * (y[name] - x[name]) for name in x}
        c = {name: old + sums["c"][name] / s.task.clients for name, old in s.state["c"].items()}
        return s.stepped(moved, y), {"c": c}
