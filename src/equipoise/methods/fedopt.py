"""FedOpt: server optimisers that treat the mean client update as a gradient.

FedAdagrad, FedAdam and FedYogi: Reddi et al., "Adaptive Federated Optimization", ICLR 2021
(arXiv:2003.00295), algorithm 2. FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019 (arXiv:1909.06335). Clients do as in FedAvg.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import with_default
from equipoise.core import (
    Capabilities,
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
    """Take the server step w <- w + eta m / (sqrt(v) + tau), coordinate by coordinate.

    D = sum_i p_i (w_i - w) is the mean update, m <- beta_1 m + (1 - beta_1) D its moving average,
    and v a second moment of D by the rule of the subclass. m starts at 0 and v at tau^2.
    """

    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_rate": (0.001, 1.0)}
    server_rate: float = option(0.1, "server learning rate eta", above=0)
    beta_one: float = option(0.9, "decay beta_1 of the mean update", low=0, below=1)
    tau: float = option(
        0.001,
        "degree of adaptivity; smaller values make the steps of all coordinates more equal",
        above=0,
    )

    @abstractmethod
    def next_second_moment(self, v: Tensor, squared_update: Tensor) -> Tensor:
        """Return the next v.

        Args:
            v: The last second moment of a parameter, in its shape.
            squared_update: D^2, in the same shape.

        Returns:
            v, in the same shape.
        """

    def init_server(self, task: Task, params: Params) -> State:
        """Start with m = 0 and v = tau^2."""
        m = {name: torch.zeros_like(w) for name, w in params.items()}
        v = {name: torch.full_like(w, self.tau**2) for name, w in params.items()}
        return {"m": m, "v": v}

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Update m and v with the mean update, and take the server step."""
        w = server.params
        state = server.state
        beta = self.beta_one
        mean = weighted_mean(updates.params, weights)
        update = {name: mean[name] - w[name] for name in w}
        m = {name: beta * state["m"][name] + (1 - beta) * d for name, d in update.items()}
        v = {
            name: self.next_second_moment(state["v"][name], d.square())
            for name, d in update.items()
        }
        step = {name: self.server_rate * m[name] / (v[name].sqrt() + self.tau) for name in w}
        new = {name: w[name] + step[name] for name in w}
        return server.with_client_batch_stats(new, mean), {"m": m, "v": v}


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """Set v <- v + D^2. Without momentum by default, as in the paper."""

    name: ClassVar[str] = "fedadagrad"
    beta_one: float = with_default(AdaptiveServer, "beta_one", 0.0)

    def next_second_moment(self, v: Tensor, squared_update: Tensor) -> Tensor:
        """Add the squared update."""
        return v + squared_update


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """Set v <- beta_2 v + (1 - beta_2) D^2."""

    name: ClassVar[str] = "fedadam"
    beta_two: float = option(0.99, "decay beta_2 of the squared updates", low=0, below=1)

    def next_second_moment(self, v: Tensor, squared_update: Tensor) -> Tensor:
        """Return the moving average of the squared updates."""
        return self.beta_two * v + (1 - self.beta_two) * squared_update


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """Set v <- v - (1 - beta_2) D^2 sign(v - D^2)."""

    name: ClassVar[str] = "fedyogi"
    beta_two: float = option(0.99, "decay beta_2 of the squared updates", low=0, below=1)

    def next_second_moment(self, v: Tensor, squared_update: Tensor) -> Tensor:
        """Move v towards D^2 by an amount that depends on D^2 only."""
        return v - (1 - self.beta_two) * squared_update * (v - squared_update).sign()


@dataclass(frozen=True)
class FedAvgM(Method):
    """Take the server step with momentum: v <- m v + (w - sum_i p_i w_i), w <- w - v."""

    name: ClassVar[str] = "fedavgm"
    family: ClassVar[str] = "one-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"server_momentum": (0.5, 0.99)}
    server_momentum: Scheduled[float] = option(
        0.9, "server momentum m (0 is FedAvg)", low=0, below=1
    )

    def init_server(self, task: Task, params: Params) -> State:
        """Start with v = 0."""
        return {"v": {name: torch.zeros_like(w) for name, w in params.items()}}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Update the velocity with the mean update, and step."""
        w = server.params
        mean = sums["mean"]
        velocity = server.state["v"]
        v = {name: self.server_momentum * velocity[name] + (w[name] - mean[name]) for name in w}
        new = {name: w[name] - v[name] for name in w}
        return server.with_client_batch_stats(new, mean), {"v": v}
