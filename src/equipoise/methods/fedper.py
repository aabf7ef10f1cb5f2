"""FedPer (Arivazhagan et al., 2019): the backbone is federated, the head is personal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedPer(PartialSharing):
    """(b_i, h_i) trained together; b <- sum n_i b_i / sum n_i. The head is never sent nor overwritten."""

    name: ClassVar[str] = "fedper"
    family: ClassVar[str] = "parts"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True
