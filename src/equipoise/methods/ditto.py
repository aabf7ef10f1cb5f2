"""Ditto (Li et al., 2021): FedAvg for the global model, and a personal one that is pulled towards it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Client, Method, OverRounds, Pull, State, Task, Training, Tree, option
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class Ditto(Method):
    """min F_i(v_i) + lambda/2 |v_i - w|^2 (their objective and algorithm 1): v_i stays at the client, w is FedAvg's."""

    name: ClassVar[str] = "ditto"
    family: ClassVar[str] = "second-model"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"lam": (0.01, 5.0)}
    lam: OverRounds[float] = option(
        1.0, "strength lambda of the personal model's pull to the global one (0 is local training)", low=0
    )

    def check(self, task: Task, training: Training) -> None:
        refuse_unstable_pull(self, "lam", training)

    def client_init(self, task: Task, params: Tree) -> State:
        return {"v": params}

    def update(self, c: Client) -> tuple[Tree, State]:
        """v <- v - eta (g(v) + lambda (v - w)) on the same batches, with w as received."""
        c.notes["gradients"] = 2 * c.steps(c.train)
        v = c.fit(c.state["v"], pull=Pull(c.start, self.lam))
        return c.fit(c.start), {"v": v}

    def personal(self, c: Client) -> Tree:
        v: Tree = c.state["v"]
        return v
