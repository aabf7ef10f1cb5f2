"""FedAsynQ-ImAvg (Woo, Joshi, Chi, 2023): entries weighted by how often each agent visited them in the last period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Client, State, ClientUpdate
from equipoise.methods.rl.qlearning import FederatedQ


@dataclass(frozen=True)
class FedAsynQIm(FederatedQ):
    """Q(s,a) <- sum_k alpha^k Q^k, alpha^k(s,a) proportional to (1 - eta)^(-N^k(s,a)); the counts N go up with Q."""

    name: ClassVar[str] = "fedasynq-im"
    rule: ClassVar[str] = "importance"

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        return ClientUpdate({"q": client.trained["q"]}, {"visits": client.data_state["visits"]}), client.state
