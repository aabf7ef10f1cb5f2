"""FedProx: FedAvg with a proximal term that keeps clients near the received model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv:1812.06127),
equation 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import (
    Capabilities,
    Client,
    Method,
    Params,
    ProximalTerm,
    Scheduled,
    State,
    Task,
    TrainingConfig,
    option,
)
from equipoise.methods.checks import require_stable_proximal


@dataclass(frozen=True)
class FedProx(Method):
    """Every client minimises F_i(w_i) + mu/2 |w_i - w|^2, where w is the received model.

    The norm is squared, so the gradient of the proximal term is mu (w_i - w).
    """

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "one-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"mu": (1e-4, 1.0)}
    mu: Scheduled[float] = option(
        0.01, "weight of the proximal term, towards the received model (0 is FedAvg)", low=0
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a mu with which SGD diverges."""
        require_stable_proximal(self, "mu", training)

    def train(self, client: Client) -> tuple[Params, State]:
        """Run SGD: w_i <- w_i - lr (g_i(w_i) + mu (w_i - w))."""
        proximal = ProximalTerm(client.start, self.mu)
        return client.fit(client.start, proximal=proximal), client.state
