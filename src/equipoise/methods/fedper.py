"""FedPer: a federated backbone with personal heads.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv:1912.00818).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from equipoise.core import Capabilities
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class FedPer(PartialSharing):
    """Train backbone b_i and head h_i together; average b <- sum_i n_i b_i / sum_i n_i.

    The head is never sent and never overwritten.
    """

    name: ClassVar[str] = "fedper"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = replace(
        PartialSharing.capabilities, needs_previous_model=True
    )
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
