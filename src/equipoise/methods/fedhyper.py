"""FedHyper: a learning rate that grows while the server's steps keep their direction.

Wang et al., "FedHyper: A Universal and Robust Learning Rate Scheduler for Federated Learning with
Hypergradient Descent", ICLR 2024 (arXiv:2310.03156).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    option,
    weighted_mean,
)

MAX_LR_RATIO = {"global": 3.0, "local": 10.0}
"""The paper's gamma: a rate stays within this factor of its initial value."""


@dataclass(frozen=True)
class FedHyper(Method):
    """Move a rate r by a hypergradient: r <- clip(r + <D_t, D_(t-1)>, r_0 / gamma, r_0 gamma).

    D_t = sum_i p_i (w - w_i) is the server's step. With `side` "global" (the paper's FedHyper-G) r
    is the server learning rate, w <- w - r D_t, with r_0 = 1 and gamma = 3. With "local"
    (FedHyper-SL) r is the learning rate that the server sends to all clients; r_0 is the configured
    one and gamma = 10.

    The server state holds the last step (`last`) and r - r_0 (`shift`).
    """

    name: ClassVar[str] = "fedhyper"
    family: ClassVar[str] = "one-model"
    side: str = option(
        "global",
        "the learning rate that is adapted: global (the server's) or local (the clients')",
        choices=MAX_LR_RATIO,
    )

    def init_server(self, task: Task, params: Params) -> State:
        """Start with no last step and r = r_0."""
        zeros = {name: torch.zeros_like(w) for name, w in params.items()}
        return {"last": zeros, "shift": torch.zeros((), dtype=torch.float64)}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the model, and the clients' learning rate if that is the one adapted."""
        message, state = super().distribute(server, ids)
        if self.side == "global":
            return message, state
        lr = self._clipped_lr(state["shift"], server.training.lr).expand(len(ids))
        epochs = torch.full_like(ids, server.training.epochs)
        return replace(message, hparams=LocalHParams(epochs, lr)), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Update the rate with the inner product of the last two steps, then step."""
        w = server.params
        last = server.state["last"]
        mean = weighted_mean(updates.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        products = [(change[name] * last[name]).double().sum() for name in w]
        hypergradient = torch.stack(products).sum()

        initial_lr = 1.0 if self.side == "global" else server.training.lr
        shift = self._clipped_lr(server.state["shift"] + hypergradient, initial_lr) - initial_lr
        server.logged["rate"] = initial_lr + shift

        server_lr = initial_lr + shift if self.side == "global" else torch.ones_like(shift)
        new = {name: w[name] + server_lr.to(w[name].dtype) * change[name] for name in w}
        return server.with_client_batch_stats(new, mean), {"last": change, "shift": shift}

    def _clipped_lr(self, shift: Tensor, initial_lr: float) -> Tensor:
        """Return r_0 + shift within its bounds."""
        gamma = MAX_LR_RATIO[self.side]
        return (initial_lr + shift).clamp(initial_lr / gamma, initial_lr * gamma)
