"""Servers that scale each coordinate of their step (Reddi et al., 2021, algorithm 2): what their three rules share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.contract import Method, Server, State, Task, Params, ClientUpdate, option, weighted_mean


@dataclass(frozen=True)
class AdaptiveServer(Method):
    """D = sum p_i (w_i - w);  m <- b1 m + (1 - b1) D;  v by the rule;  w <- w + eta m / (sqrt(v) + tau)."""

    server_rate: float = option(0.1, "the server's rate eta", above=0)
    beta_one: float = option(0.9, "decay b1 of the mean change", low=0, below=1)
    tau: float = option(
        0.001, "degree of adaptivity; the smaller, the more equal are steps of all coordinates", above=0
    )

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from the last one and D^2."""

    def init_server(self, task: Task, params: Params) -> State:
        v = {name: torch.full_like(w, self.tau**2) for name, w in params.items()}
        return {"m": {name: torch.zeros_like(w) for name, w in params.items()}, "v": v}

    def aggregate(self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params) -> tuple[Params, State]:
        mean, b, m, v, w = weighted_mean(updates.params, weights), self.beta_one, server.state["m"], server.state["v"], server.params
        change = {name: mean[name] - w[name] for name in w}
        m = {name: b * m[name] + (1 - b) * d for name, d in change.items()}
        v = {name: self.second(v[name], d.square()) for name, d in change.items()}
        step = {name: self.server_rate * m[name] / (v[name].sqrt() + self.tau) for name in w}
        return server.with_client_batch_stats({name: w[name] + step[name] for name in w}, mean), {"m": m, "v": v}
