"""LG-FedAvg: local representations with a federated head, the mirror image of FedPer.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020 (arXiv:2001.01523).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from equipoise.core import Capabilities
from equipoise.methods._partial_sharing import PartialSharing


@dataclass(frozen=True)
class LgFedAvg(PartialSharing):
    """Train backbone b_i and head h_i together; average h <- sum_i n_i h_i / sum_i n_i.

    The backbone is never sent and never overwritten.
    """

    name: ClassVar[str] = "lgfedavg"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = replace(
        PartialSharing.capabilities, needs_previous_model=True
    )
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("head",)
