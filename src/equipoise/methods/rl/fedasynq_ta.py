"""FedAsynQ-TaAvg (ours): the server averages the targets that agents saw, by effective sample size."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p
from typing import ClassVar

import torch

from equipoise.contract import Client, State, ClientUpdate
from equipoise.core.options import with_default
from equipoise.methods.rl.qlearning import FederatedQ


@dataclass(frozen=True)
class FedAsynQTa(FederatedQ):
    """An agent's table is d Q_start + (1 - d) T, d = (1 - eta)^N; T, the mean of its targets, weighs (1 - d)/(1 + d).

    It sends its evidence (1 - d) T and N; the server moves its current table towards the weighted mean of the T.
    """

    name: ClassVar[str] = "fedasynq-ta"
    rule: ClassVar[str] = "targets"
    eta: float = with_default(FederatedQ, "eta", 0.005)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        visits = client.data_state["visits"]
        evidence = client.trained["q"] - torch.exp(log1p(-self.eta) * visits.double()) * client.start["q"]
        return ClientUpdate({"q": evidence}, {"visits": visits}), client.state
