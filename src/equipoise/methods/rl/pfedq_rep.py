"""PFedQ-Rep: Q-learning agents with a common representation and weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearControl


@dataclass(frozen=True)
class PFedQRep(LinearControl):
    """Q^i(s,a) = Phi(s,a) theta_i; the server averages Phi_i only: Phi <- mean_i Phi_i."""

    name: ClassVar[str] = "pfedq-rep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
