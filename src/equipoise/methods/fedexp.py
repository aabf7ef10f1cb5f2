"""FedExP (Jhunjhunwala et al., ICLR 2023): the server extrapolates where clients' changes agree little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import ClientUpdate, Method, Params, Server, State, option, weighted_mean


@dataclass(frozen=True)
class FedExP(Method):
    """D_i = w - w_i;  eta_g = max(1, sum p_i |D_i|^2 / (2 (|D|^2 + eps)));  w <- w - eta_g D, with D = sum p_i D_i."""

    name: ClassVar[str] = "fedexp"
    family: ClassVar[str] = "one-model"
    epsilon: float = option(
        0.001, "what is added to |D|^2; larger values keep the step nearer to FedAvg's", low=0
    )

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        assert isinstance(weights, Tensor)
        mean, w = weighted_mean(updates.params, weights), server.params
        each = torch.stack(
            [
                (value - w[name]).double().flatten(1).square().sum(1)
                for name, value in updates.params.items()
            ]
        )
        whole = sum(float((mean[name] - w[name]).double().square().sum()) for name in mean)
        rate = max(1.0, float(weights @ each.sum(0)) / (2 * (whole + self.epsilon)))
        server.logged["server_rate"] = rate
        return server.with_client_batch_stats(
            {name: w[name] + rate * (mean[name] - w[name]) for name in w}, mean
        ), server.state
