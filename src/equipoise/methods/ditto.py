"""Ditto: FedAvg for the global model, and a personal model regularised towards it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021
(arXiv:2012.04221), algorithm 1.
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
class Ditto(Method):
    """Every client also minimises F_i(v_i) + lambda/2 |v_i - w|^2 for a personal model v_i.

    v_i stays at the client; the global model w is FedAvg's.
    """

    name: ClassVar[str] = "ditto"
    family: ClassVar[str] = "second-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"lam": (0.01, 5.0)}
    lam: Scheduled[float] = option(
        1.0,
        "weight lambda of the personal model's proximal term, towards the global model "
        "(0 is local training)",
        low=0,
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a lambda with which SGD diverges."""
        require_stable_proximal(self, "lam", training)

    def init_client(self, task: Task, params: Params) -> State:
        """Start v_i at the initial global model."""
        return {"v": params}

    def train(self, client: Client) -> tuple[Params, State]:
        """Train w, and v <- v - eta (g(v) + lambda (v - w)) on the same batches.

        The anchor w is the received model.
        """
        client.logged["gradients"] = 2 * client.num_steps(client.hparams)
        v = client.fit(client.state["v"], proximal=ProximalTerm(client.start, self.lam))
        return client.fit(client.start), {"v": v}

    def personal_model(self, client: Client) -> Params:
        """Return v_i."""
        v: Params = client.state["v"]
        return v
