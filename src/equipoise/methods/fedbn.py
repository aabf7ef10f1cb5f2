"""FedBN (Li et al., 2021): batch normalisation stays at the client, all else is federated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Task
from equipoise.methods._partial_sharing import PartialSharing

NORM = "norm"


@dataclass(frozen=True)
class FedBN(PartialSharing):
    """FedAvg on every block but ``norm``: scales, shifts and running statistics are neither sent nor overwritten.

    On a model without batch normalisation it is FedAvg.
    """

    name: ClassVar[str] = "fedbn"
    family: ClassVar[str] = "parts"
    needs_previous_model: ClassVar[bool] = True

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        return (
            super().shared_blocks(task)
            if self.keep
            else tuple(block for block in task.blocks if block != NORM)
        )
