"""FedAsynQ-EqAvg (Woo, Joshi, Chi, 2023): each agent on its own trajectory, tables averaged with equal weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core.options import with_default
from equipoise.methods.rl.qlearning import FederatedQ


@dataclass(frozen=True)
class FedAsynQEq(FederatedQ):
    """Only the visited entry moves: Q(s,a) <- (1 - eta) Q(s,a) + eta (r + gamma max Q(s')); Q <- mean_k Q^k."""

    name: ClassVar[str] = "fedasynq-eq"
    rule: ClassVar[str] = "equal"
    eta: float = with_default(FederatedQ, "eta", 0.2)
