"""LG-FedAvg (Liang et al., 2020): local representations, a federated head: the mirror of FedPer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class LgFedAvg(PartialSharing):
    """(b_i, h_i) trained together; h <- sum n_i h_i / sum n_i. The backbone is never sent nor overwritten."""

    name: ClassVar[str] = "lgfedavg"
    family: ClassVar[str] = "parts"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("head",)
    needs_previous_model: ClassVar[bool] = True
