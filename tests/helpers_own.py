"""A method as a user may write it: made of sums, weighed by what its clients report, with a state on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Method, Range, Server, State, Task, Train, Tree, Up
from equipoise.contract.ranges import SHARE

BY_ERROR = "helpers_own:ByError"
"""How it is named where a method is."""


@dataclass(frozen=True)
class ByError(Method):
    """v <- v / 2 + sum p_i (w_i - w); w <- w + v; p_i ~ error_i + .02, of the received model.

    Clients train twice as long as is configured, with rates that fall.
    """

    name: ClassVar[str] = "by-error"
    reports: ClassVar[Mapping[str, Range]] = {"error": SHARE}
    summed: ClassVar[bool] = True

    def client_init(self, task: Task, params: Tree) -> State:
        return {"error": torch.zeros((), dtype=torch.float64)}

    def decide(self, c: Client) -> tuple[Train, State]:
        error = 1 - c.task.merit(c.evaluate(c.start, "train"))[0].double()
        return Train(2 * c.train.epochs, c.train.lr / c.round), {**c.state, "error": error}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics["error"] = state["error"]
        return up, state

    def server_init(self, task: Task, params: Tree) -> State:
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        p = up.metrics["error"] + 0.02
        return p / p.sum(), s.state

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        w = s.params
        v = {name: s.state["v"][name] / 2 + (sums["mean"][name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**s.state, "v": v}
