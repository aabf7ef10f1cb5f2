"""FedProx (Li et al., 2020): FedAvg whose clients are held near the received model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Client, Method, OverRounds, Pull, State, Task, Training, Tree, option
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class FedProx(Method):
    """min F_i(w_i) + mu/2 |w_i - w|^2 (their equation 2): the norm is squared, so the gradient is mu (w_i - w)."""

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "one-model"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"mu": (1e-4, 1.0)}
    mu: OverRounds[float] = option(0.01, "strength of the pull to the received model (0 is FedAvg)", low=0)

    def check(self, task: Task, training: Training) -> None:
        refuse_unstable_pull(self, "mu", training)

    def update(self, c: Client) -> tuple[Tree, State]:
        return c.fit(c.start, pull=Pull(c.start, self.mu)), c.state
