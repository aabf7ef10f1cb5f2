"""FedDyn: a dynamic regulariser that aligns the clients' optima with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv:2111.04263),
algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.methods.checks import require_stable_proximal


@dataclass(frozen=True)
class FedDyn(Method):
    """Every client keeps a gradient memory G_i and the server keeps h, the mean of all G_i.

    All memories start at zero. The paper writes theta for the model.
    """

    name: ClassVar[str] = "feddyn"
    family: ClassVar[str] = "one-model"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_common_start=True, aggregates_by_sum=True
    )
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": (1e-4, 0.1)}
    alpha: float = option(0.01, "strength of the dynamic regulariser", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse an alpha with which SGD diverges."""
        require_stable_proximal(self, "alpha", training)

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Start with G_i = 0."""
        return {"G": {name: torch.zeros_like(value) for name, value in params.items()}}

    def train(self, client: Client) -> tuple[Params, State]:
        """Minimise F_i(theta) - <G_i, theta> + alpha/2 |theta - theta_prev|^2.

        Then set G_i <- G_i - alpha (theta_i - theta_prev).
        """
        G = client.state["G"]
        previous = client.start
        theta = client.fit(
            previous,
            grad_correction={name: -G[name] for name in G},
            proximal=ProximalTerm(previous, self.alpha),
        )
        new_G = {name: G[name] - self.alpha * (theta[name] - previous[name]) for name in G}
        return theta, {"G": new_G}

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with h = 0."""
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weight all clients equally."""
        return equal_weights(ids), server.state

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Add sum_S(theta_i - theta_prev) to the mean of the models."""
        total_change = {
            name: (theta - global_params[name]).sum(0) for name, theta in updates.params.items()
        }
        sums = super().partial_sums(global_params, updates, weights)
        return sums | {"total_change": total_change}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Set h <- h - alpha/N sum_S(theta_i - theta_prev), theta <- mean_S theta_i - h/alpha."""
        factor = self.alpha / server.task.info.num_clients
        mean = sums["mean"]
        new_h = {
            name: h - factor * sums["total_change"][name] for name, h in server.state["h"].items()
        }
        theta = {name: mean[name] - new_h[name] / self.alpha for name in mean}
        return server.with_client_batch_stats(theta, mean), {"h": new_h}
