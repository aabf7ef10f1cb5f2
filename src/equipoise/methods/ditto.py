"""Ditto (Li et al., 2021): FedAvg for the global model, and a personal one that is pulled towards it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import (
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
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class Ditto(Method):
    """min F_i(v_i) + lambda/2 |v_i - w|^2 (their objective and algorithm 1): v_i stays at the client, w is FedAvg's."""

    name: ClassVar[str] = "ditto"
    family: ClassVar[str] = "second-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"lam": (0.01, 5.0)}
    lam: Scheduled[float] = option(
        1.0,
        "strength lambda of the personal model's pull to the global one (0 is local training)",
        low=0,
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        refuse_unstable_pull(self, "lam", training)

    def init_client(self, task: Task, params: Params) -> State:
        return {"v": params}

    def train(self, client: Client) -> tuple[Params, State]:
        """v <- v - eta (g(v) + lambda (v - w)) on the same batches, with w as received."""
        client.logged["gradients"] = 2 * client.num_steps(client.hparams)
        v = client.fit(client.state["v"], proximal=ProximalTerm(client.start, self.lam))
        return client.fit(client.start), {"v": v}

    def personal_model(self, client: Client) -> Params:
        v: Params = client.state["v"]
        return v
