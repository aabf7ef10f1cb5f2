"""Servers that scale each coordinate of their step (Reddi et al., 2021, algorithm 2): what their three rules share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    ClientUpdate,
    Method,
    Params,
    Scheduled,
    Server,
    State,
    Task,
    option,
    weighted_mean,
)


@dataclass(frozen=True)
class AdaptiveServer(Method):
    """D = sum p_i (w_i - w);  m <- b1 m + (1 - b1) D;  v by the rule;  w <- w + eta m / (sqrt(v) + tau)."""

    server_rate: float = option(0.1, "the server's rate eta", above=0)
    beta_one: float = option(0.9, "decay b1 of the mean change", low=0, below=1)
    tau: float = option(
        0.001,
        "degree of adaptivity; the smaller, the more equal are steps of all coordinates",
        above=0,
    )

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from the last one and D^2."""

    def init_server(self, task: Task, params: Params) -> State:
        v = {name: torch.full_like(w, self.tau**2) for name, w in params.items()}
        return {"m": {name: torch.zeros_like(w) for name, w in params.items()}, "v": v}

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        mean, b, m, v, w = (
            weighted_mean(updates.params, weights),
            self.beta_one,
            server.state["m"],
            server.state["v"],
            server.params,
        )
        change = {name: mean[name] - w[name] for name in w}
        m = {name: b * m[name] + (1 - b) * d for name, d in change.items()}
        v = {name: self.second(v[name], d.square()) for name, d in change.items()}
        step = {name: self.server_rate * m[name] / (v[name].sqrt() + self.tau) for name in w}
        return server.with_client_batch_stats({name: w[name] + step[name] for name in w}, mean), {
            "m": m,
            "v": v,
        }


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """v <- v + D^2; no momentum, as in the paper."""

    name: ClassVar[str] = "fedadagrad"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    beta_one: float = option(0.0, "decay b1 of the mean change", low=0, below=1)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """v <- b2 v + (1 - b2) D^2."""

    name: ClassVar[str] = "fedadam"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    beta_two: float = option(0.99, "decay b2 of the squared changes", low=0, below=1)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta_two * v + (1 - self.beta_two) * square


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """v <- v - (1 - b2) D^2 sign(v - D^2): v moves by what is new, not by how far it is off."""

    name: ClassVar[str] = "fedyogi"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    beta_two: float = option(0.99, "decay b2 of the squared changes", low=0, below=1)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta_two) * square * (v - square).sign()


@dataclass(frozen=True)
class FedAvgM(Method):
    """v <- m v + (w - sum n_i w_i / sum n_i); w <- w - v. Clients do as in FedAvg."""

    name: ClassVar[str] = "fedavgm"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_momentum": (0.5, 0.99)}
    server_momentum: Scheduled[float] = option(
        0.9, "the server's momentum m (0 is FedAvg)", low=0, below=1
    )

    def init_server(self, task: Task, params: Params) -> State:
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        mean, w = sums["mean"], server.params
        v = {
            name: self.server_momentum * server.state["v"][name] + (w[name] - mean[name])
            for name in w
        }
        return server.with_client_batch_stats({name: w[name] - v[name] for name in w}, mean), {
            "v": v
        }
