"""FedBN: batch normalisation stays at the client, everything else is federated.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021
(arXiv:2102.07623).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from equipoise.core import Capabilities, Task
from equipoise.methods._partial_sharing import PartialSharing

NORM_BLOCK = "norm"


@dataclass(frozen=True)
class FedBN(PartialSharing):
    """Run FedAvg on every block but `norm` (scales, shifts and running statistics).

    On a model without batch normalisation it is FedAvg.
    """

    name: ClassVar[str] = "fedbn"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = replace(
        PartialSharing.capabilities, needs_previous_model=True
    )

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        """Return every block but `norm`, unless the user names the blocks to keep."""
        if self.keep:
            return super().shared_blocks(task)
        return tuple(block for block in task.info.blocks if block != NORM_BLOCK)
