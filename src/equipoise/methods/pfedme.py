"""pFedMe (Dinh et al., 2020): the global model minimises the clients' Moreau envelopes, theta_i is personal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.core import (
    Client,
    ClientUpdate,
    Method,
    Params,
    ProximalTerm,
    Scheduled,
    Server,
    State,
    Task,
    TrainingConfig,
    equal_weights,
    option,
)
from equipoise.methods.checks import refuse_unstable_pull
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class PFedMe(Method):
    """Their algorithm 1. Decision 1's rate is that of the SGD on theta, as in every method; eta is ``outer_lr``."""

    name: ClassVar[str] = "pfedme"
    family: ClassVar[str] = "second-model"
    aggregates_by_sum: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "lam": (1.0, 30.0),
        "outer_lr": (1e-3, 0.03),
    }
    lam: Scheduled[float] = option(15.0, "strength lambda of the envelope", above=0)
    inner_steps: int = option(5, "SGD steps K on each batch, for theta", low=1)
    outer_lr: Scheduled[float] = option(
        0.005, "rate eta at which the local copy w_i follows theta", above=0
    )
    beta: Scheduled[float] = option(1.0, "the server's step towards the clients' mean", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        if self.outer_lr * self.lam >= 1:
            raise UsageError(
                f"pfedme with outer_lr={self.outer_lr:g} and lam={self.lam:g} steps past its own optimum, since their "
                "product is 1 or more: lower one of them"
            )
        refuse_unstable_pull(self, "lam", training)

    def init_client(self, task: Task, params: Params) -> State:
        return {"theta": params}

    def train(self, client: Client) -> tuple[Params, State]:
        """Batch: K times theta <- theta - lr (g(theta) + lambda (theta - w)), then w <- w - eta lambda (w - theta)."""
        client.logged["gradients"] = self.inner_steps * client.num_steps(client.hparams)
        follow = ProximalTerm(client.start, self.lam, self.outer_lr * self.lam)
        theta, w = client.fit_with_moving_anchor(
            client.start, follow, steps_per_batch=self.inner_steps
        )
        return w, {"theta": theta}

    def personal_model(self, client: Client) -> Params:
        theta: Params = client.state["theta"]
        return theta

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        return equal_weights(ids), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """w <- (1 - beta) w + beta mean_S w_i."""
        mean, w = sums["mean"], server.params
        return server.with_client_batch_stats(
            {name: (1 - self.beta) * w[name] + self.beta * mean[name] for name in w}, mean
        ), server.state
