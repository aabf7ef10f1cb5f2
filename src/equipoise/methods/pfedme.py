"""pFedMe (Dinh et al., 2020): the global model minimises the clients' Moreau envelopes, theta_i is personal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import (
    Client,
    Method,
    OverRounds,
    Pull,
    Server,
    State,
    Task,
    Training,
    Tree,
    Up,
    equal_weights,
    option,
)
from equipoise.core.errors import UsageError
from equipoise.methods.checks import refuse_unstable_pull


@dataclass(frozen=True)
class PFedMe(Method):
    """Their algorithm 1. Decision 1's rate is that of the SGD on theta, as in every method; eta is ``outer_lr``."""

    name: ClassVar[str] = "pfedme"
    family: ClassVar[str] = "second-model"
    summed: ClassVar[bool] = True
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"lam": (1.0, 30.0), "outer_lr": (1e-3, 0.03)}
    lam: OverRounds[float] = option(15.0, "strength lambda of the envelope", above=0)
    inner_steps: int = option(5, "SGD steps K on each batch, for theta", low=1)
    outer_lr: OverRounds[float] = option(0.005, "rate eta at which the local copy w_i follows theta", above=0)
    beta: OverRounds[float] = option(1.0, "the server's step towards the clients' mean", above=0)

    def check(self, task: Task, training: Training) -> None:
        if self.outer_lr * self.lam >= 1:
            raise UsageError(
                f"pfedme with outer_lr={self.outer_lr:g} and lam={self.lam:g} steps past its own optimum, since their "
                "product is 1 or more: lower one of them"
            )
        refuse_unstable_pull(self, "lam", training)

    def client_init(self, task: Task, params: Tree) -> State:
        return {"theta": params}

    def update(self, c: Client) -> tuple[Tree, State]:
        """Batch: K times theta <- theta - lr (g(theta) + lambda (theta - w)), then w <- w - eta lambda (w - theta)."""
        c.notes["gradients"] = self.inner_steps * c.steps(c.train)
        follow = Pull(c.start, self.lam, self.outer_lr * self.lam)
        theta, w = c.fit_following(c.start, follow, repeat=self.inner_steps)
        return w, {"theta": theta}

    def personal(self, c: Client) -> Tree:
        theta: Tree = c.state["theta"]
        return theta

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        return equal_weights(ids), s.state

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """w <- (1 - beta) w + beta mean_S w_i."""
        mean, w = sums["mean"], s.params
        return s.stepped({name: (1 - self.beta) * w[name] + self.beta * mean[name] for name in w}, mean), s.state
