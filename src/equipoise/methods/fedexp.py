"""FedExP: the server extrapolates where the clients' updates disagree.

Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023
(arXiv:2301.09604).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import ClientUpdate, Method, Params, Server, State, option, weighted_mean


@dataclass(frozen=True)
class FedExP(Method):
    """Take the server step w <- w - eta_g D, where D = sum_i p_i D_i and D_i = w - w_i.

    The server learning rate is eta_g = max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + epsilon))).
    """

    name: ClassVar[str] = "fedexp"
    family: ClassVar[str] = "one-model"
    epsilon: float = option(
        0.001, "constant added to |D|^2; larger values keep the step nearer to FedAvg's", low=0
    )

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Average the models and extrapolate by eta_g."""
        assert isinstance(weights, Tensor)
        w = server.params
        mean = weighted_mean(updates.params, weights)
        client_sq_norms = torch.stack(
            [
                (value - w[name]).double().flatten(1).square().sum(1)
                for name, value in updates.params.items()
            ]
        ).sum(0)
        mean_sq_norm = sum(float((mean[name] - w[name]).double().square().sum()) for name in mean)
        ratio = float(weights @ client_sq_norms) / (2 * (mean_sq_norm + self.epsilon))
        server_lr = max(1.0, ratio)
        server.logged["server_rate"] = server_lr
        new = {name: w[name] + server_lr * (mean[name] - w[name]) for name in w}
        return server.with_client_batch_stats(new, mean), server.state
