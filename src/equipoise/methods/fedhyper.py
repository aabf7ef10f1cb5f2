"""FedHyper (Wang et al., ICLR 2024): a rate grows while the server's changes keep their direction."""

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

BOUND = {"global": 3.0, "local": 10.0}  # gamma: a rate stays within this factor of where it began


@dataclass(frozen=True)
class FedHyper(Method):
    """D_t = sum p_i (w - w_i);  r <- clip(r + <D_t, D_(t-1)>, r_0 / gamma, r_0 gamma).

    ``global`` (FedHyper-G): r is the server's rate, w <- w - r D_t, r_0 = 1, gamma = 3. ``local`` (FedHyper-SL): r is
    the rate that the server gives to all clients, r_0 is the configured one, gamma = 10.
    """

    name: ClassVar[str] = "fedhyper"
    family: ClassVar[str] = "one-model"
    side: str = option(
        "global",
        "the rate that is adapted: global (the server's) or local (the clients')",
        choices=BOUND,
    )

    def init_server(self, task: Task, params: Params) -> State:
        zeros = {name: torch.zeros_like(w) for name, w in params.items()}
        return {"last": zeros, "shift": torch.zeros((), dtype=torch.float64)}

    def rate(self, shift: Tensor, first: float) -> Tensor:
        return (first + shift).clamp(first / BOUND[self.side], first * BOUND[self.side])

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        if self.side == "global":
            return down, state
        rate = self.rate(state["shift"], server.training.lr).expand(len(ids))
        return replace(
            down, hparams=LocalHParams(torch.full_like(ids, server.training.epochs), rate)
        ), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        mean, w, last = weighted_mean(updates.params, weights), server.params, server.state["last"]
        change = {name: mean[name] - w[name] for name in w}
        agreement = torch.stack([(change[name] * last[name]).double().sum() for name in w]).sum()
        first = 1.0 if self.side == "global" else server.training.lr
        shift = self.rate(server.state["shift"] + agreement, first) - first
        step = first + shift if self.side == "global" else torch.ones_like(shift)
        server.logged["rate"] = first + shift
        new = {name: w[name] + step.to(w[name].dtype) * change[name] for name in w}
        return server.with_client_batch_stats(new, mean), {"last": change, "shift": shift}
