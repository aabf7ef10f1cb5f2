"""FedDyn (Acar et al., 2021): a dynamic regulariser that lets the clients' optima agree with the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Client,
    ClientUpdate,
    Method,
    Params,
    ProximalTerm,
    Server,
    State,
    Task,
    TrainingConfig,
    equal_weights,
    option,
)
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class FedDyn(Method):
    """Their algorithm 1. Clients keep G_i, the server h, all from 0: h = mean of all G_i."""

    name: ClassVar[str] = "feddyn"
    family: ClassVar[str] = "one-model"
    needs_common_start: ClassVar[bool] = True
    aggregates_by_sum: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": (1e-4, 0.1)}
    alpha: float = option(0.01, "strength of the dynamic regulariser", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        refuse_unstable_pull(self, "alpha", training)

    def init_client(self, task: Task, params: Params) -> State:
        return {"G": {name: torch.zeros_like(value) for name, value in params.items()}}

    def init_server(self, task: Task, params: Params) -> State:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def train(self, client: Client) -> tuple[Params, State]:
        """min F_i(theta) - <G_i, theta> + alpha/2 |theta - theta_prev|^2; G_i <- G_i - alpha (theta_i - theta_prev)."""
        G, before = client.state["G"], client.start
        theta = client.fit(
            before,
            grad_correction={name: -G[name] for name in G},
            proximal=ProximalTerm(before, self.alpha),
        )
        return theta, {
            "G": {name: G[name] - self.alpha * (theta[name] - before[name]) for name in G}
        }

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        moved = {
            name: (theta - global_params[name]).sum(0) for name, theta in updates.params.items()
        }
        return super().partial_sums(global_params, updates, weights) | {"moved": moved}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """h <- h - alpha/N sum_S(theta_i - theta_prev); theta <- mean_S theta_i - h/alpha."""
        share = self.alpha / server.task.num_clients
        h = {name: old - share * sums["moved"][name] for name, old in server.state["h"].items()}
        mean = sums["mean"]
        return server.with_client_batch_stats(
            {name: mean[name] - h[name] / self.alpha for name in mean}, mean
        ), {"h": h}
