"""FedBABU: the head stays at its common random start and is only fine-tuned for use.

Oh et al., "FedBABU: Towards Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv:2106.06042).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from equipoise.core import Capabilities, Client, Params, State, Task, TrainingConfig, option
from equipoise.methods._partial_sharing import PartialSharing
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class FedBabu(PartialSharing):
    """Train backbones b_i under the fixed head h; average b <- sum_i n_i b_i / sum_i n_i.

    The personal model is (b, h), fine-tuned as a whole.
    """

    name: ClassVar[str] = "fedbabu"
    family: ClassVar[str] = "parts"
    capabilities: ClassVar[Capabilities] = replace(
        PartialSharing.capabilities, needs_previous_model=True
    )
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {"tune_epochs": (1, 20)}
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    tune_epochs: int = option(5, "epochs of fine-tuning, for the personal model", low=1)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a head that starts at zero: the backbone would get no gradient."""
        super().check(task, training)
        initial = task.init_params(0)
        head_names = [name for block in self.local_blocks(task) for name in task.info.blocks[block]]
        if not any(bool(initial[name].any()) for name in head_names):
            raise UsageError(
                "fedbabu keeps the head at its start, and a head that starts at zero gives the "
                "backbone no gradient: start it at random"
            )

    def train(self, client: Client) -> tuple[Params, State]:
        """Train the backbone only."""
        return client.fit(client.start, blocks=self.shared_blocks(client.task)), client.state

    def personal_model(self, client: Client) -> Params:
        """Fine-tune backbone and head, from the received model."""
        epochs = torch.full_like(client.hparams.epochs, self.tune_epochs)
        hparams = replace(client.hparams, epochs=epochs)
        return client.fit(client.start, hparams=hparams, stream=1)

    def has_global(self, task: Task) -> bool:
        """Return True: the server knows the head, which is the initial one at every client."""
        return True
