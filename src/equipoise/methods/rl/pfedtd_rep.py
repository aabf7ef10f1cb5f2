"""PFedTD-Rep (Xiong, Wang, Jiang, Li, 2025): agents evaluate policies, one representation for all, own weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearRepresentation


@dataclass(frozen=True)
class PFedTDRep(LinearRepresentation):
    """V^i(s) = Phi(s) theta_i; the server averages Phi_i only: Phi <- mean_i Phi_i."""

    name: ClassVar[str] = "pfedtd-rep"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
