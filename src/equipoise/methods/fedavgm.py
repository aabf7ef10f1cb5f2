"""FedAvgM (Hsu et al., 2019): FedAvg whose server keeps momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.contract import Method, Scheduled, Server, State, Task, Params, option


@dataclass(frozen=True)
class FedAvgM(Method):
    """v <- m v + (w - sum n_i w_i / sum n_i); w <- w - v. Clients do as in FedAvg."""

    name: ClassVar[str] = "fedavgm"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_momentum": (0.5, 0.99)}
    server_momentum: Scheduled[float] = option(0.9, "the server's momentum m (0 is FedAvg)", low=0, below=1)

    def init_server(self, task: Task, params: Params) -> State:
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        mean, w = sums["mean"], server.params
        v = {name: self.server_momentum * server.state["v"][name] + (w[name] - mean[name]) for name in w}
        return server.with_client_batch_stats({name: w[name] - v[name] for name in w}, mean), {"v": v}
