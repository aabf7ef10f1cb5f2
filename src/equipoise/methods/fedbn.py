"""FedBN (Li et al., 2021): batch normalisation stays at the client, all else is federated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.contract import Task, Training
from equipoise.core.errors import UsageError
from equipoise.methods.split import Split

NORM = "norm"


@dataclass(frozen=True)
class FedBN(Split):
    """FedAvg on every block but ``norm``: scales, shifts and running statistics are neither sent nor overwritten."""

    name: ClassVar[str] = "fedbn"
    family: ClassVar[str] = "parts"
    keeps_model: ClassVar[bool] = True

    def check(self, task: Task, training: Training) -> None:
        if not (self.keep or task.blocks.get(NORM)):
            raise UsageError(
                f"fedbn keeps the block '{NORM}', and the model's blocks are {', '.join(task.blocks)}: "
                "choose a model with batch normalisation, or say what to --keep"
            )
        super().check(task, training)

    def travels(self, task: Task) -> tuple[str, ...]:
        return super().travels(task) if self.keep else tuple(block for block in task.blocks if block != NORM)
