"""FedBABU (Oh et al., 2022): the head stays at its common random start, and is only fine-tuned for use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Client, Params, State, Task, TrainingConfig, option
from equipoise.methods._partial_sharing import PartialSharing
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class FedBabu(PartialSharing):
    """b_i trained under the fixed head; b <- sum n_i b_i / sum n_i; personal = (b, h) fine-tuned as a whole."""

    name: ClassVar[str] = "fedbabu"
    family: ClassVar[str] = "parts"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"tune_epochs": (1, 20)}
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True
    tune_epochs: int = option(5, "epochs of fine-tuning, for the personal model", low=1)

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        start = task.init_params(0)
        if not any(
            bool(start[name].any()) for block in self.kept(task) for name in task.blocks[block]
        ):
            raise UsageError(
                "fedbabu keeps the head at its start, and one that starts at zero gives the backbone no gradient: "
                "start it at random"
            )

    def train(self, client: Client) -> tuple[Params, State]:
        return client.fit(client.start, blocks=self.shared_blocks(client.task)), client.state

    def personal_model(self, client: Client) -> Params:
        tune = replace(
            client.hparams, epochs=torch.full_like(client.hparams.epochs, self.tune_epochs)
        )
        return client.fit(client.start, hparams=tune, stream=1)

    def has_global(self, task: Task) -> bool:
        """The server knows the head without being sent it: everybody's is the initial one."""
        return True
