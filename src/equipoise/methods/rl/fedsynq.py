"""FedSynQ (Woo, Joshi, Chi, 2023): each step samples every state-action pair from a model; equal averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.contract import Client, State, Params
from equipoise.core.options import with_default
from equipoise.methods.rl.qlearning import FederatedQ


@dataclass(frozen=True)
class FedSynQ(FederatedQ):
    """Q_t(s,a) = (1 - eta) Q_{t-1}(s,a) + eta (r(s,a) + gamma max_a' Q_{t-1}(s',a')) for all (s,a); mean every tau."""

    name: ClassVar[str] = "fedsynq"
    rule: ClassVar[str] = "equal"
    tau: int = with_default(FederatedQ, "tau", 5)

    def train(self, client: Client) -> tuple[Params, State]:
        return client.fit(client.start, aux={"synchronous": torch.ones_like(client.id)}), client.state
