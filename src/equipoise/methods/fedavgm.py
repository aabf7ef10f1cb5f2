"""FedAvgM (Hsu et al., 2019): FedAvg whose server keeps momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Method, Server, State, Task, Training, Tree, Up, option, weighted_mean
from equipoise.core.errors import UsageError


@dataclass(frozen=True)
class FedAvgM(Method):
    """v <- m v + (w - sum n_i w_i / sum n_i); w <- w - v. Clients do as in FedAvg."""

    name: ClassVar[str] = "fedavgm"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"server_momentum": (0.5, 0.99)}
    server_momentum: float = option(0.9, "the server's momentum m (0 is FedAvg)")

    def check(self, task: Task, training: Training) -> None:
        if not 0 <= self.server_momentum < 1:
            raise UsageError(f"fedavgm needs server_momentum from 0 to below 1, not {self.server_momentum:g}")

    def server_init(self, task: Task, params: Tree) -> State:
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        mean, w = weighted_mean(up.params, weights), s.params
        v = {name: self.server_momentum * s.state["v"][name] + (w[name] - mean[name]) for name in w}
        return {name: w[name] - v[name] for name in w}, {"v": v}
