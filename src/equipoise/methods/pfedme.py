"""pFedMe: personalisation with Moreau envelopes.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020
(arXiv:2006.08848), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.methods.checks import require_stable_proximal
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class PFedMe(Method):
    """Every client keeps a personal model theta_i, which solves its Moreau envelope around w_i.

    The run's learning rate is that of the SGD on theta; the paper's eta is `outer_lr`.
    """

    name: ClassVar[str] = "pfedme"
    family: ClassVar[str] = "second-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "lam": (1.0, 30.0),
        "outer_lr": (1e-3, 0.03),
    }
    lam: Scheduled[float] = option(15.0, "strength lambda of the Moreau envelope", above=0)
    inner_steps: int = option(5, "SGD steps K on each batch, for theta", low=1)
    outer_lr: Scheduled[float] = option(
        0.005, "learning rate eta of the local copy w_i towards theta", above=0
    )
    beta: Scheduled[float] = option(1.0, "server step towards the clients' mean", above=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse rates with which w_i overshoots theta, or the SGD on theta diverges."""
        if self.outer_lr * self.lam >= 1:
            raise UsageError(
                f"pfedme with outer_lr={self.outer_lr:g} and lam={self.lam:g} overshoots its "
                "optimum, since their product is 1 or more: lower one of them"
            )
        require_stable_proximal(self, "lam", training)

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Start theta_i at the initial global model."""
        return {"theta": params}

    def train(self, client: Client) -> tuple[Params, State]:
        """On each batch, take K steps on theta and one on w_i.

        K times theta <- theta - lr (g(theta) + lambda (theta - w_i)), then
        w_i <- w_i - eta lambda (w_i - theta).
        """
        client.logged["gradients"] = self.inner_steps * client.num_steps(client.hparams)
        envelope = ProximalTerm(client.start, self.lam, anchor_lr=self.outer_lr * self.lam)
        theta, w = client.fit_with_moving_anchor(
            client.start, envelope, steps_per_batch=self.inner_steps
        )
        return w, {"theta": theta}

    def personal_model(self, client: Client) -> Params:
        """Return theta_i."""
        theta: Params = client.state["theta"]
        return theta

    # --- server -----------------------------------------------------------------------------

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weight all clients equally."""
        return equal_weights(ids), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Set w <- (1 - beta) w + beta mean_S w_i."""
        w = server.params
        mean = sums["mean"]
        new = {name: (1 - self.beta) * w[name] + self.beta * mean[name] for name in w}
        return server.with_client_batch_stats(new, mean), server.state
