"""FedProx (Li et al., 2020): FedAvg whose clients are held near the received model."""

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
class FedProx(Method):
    """min F_i(w_i) + mu/2 |w_i - w|^2 (their equation 2): the norm is squared, so the gradient is mu (w_i - w)."""

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "one-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"mu": (1e-4, 1.0)}
    mu: Scheduled[float] = option(
        0.01, "strength of the pull to the received model (0 is FedAvg)", low=0
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        refuse_unstable_pull(self, "mu", training)

    def train(self, client: Client) -> tuple[Params, State]:
        return client.fit(client.start, proximal=ProximalTerm(client.start, self.mu)), client.state
