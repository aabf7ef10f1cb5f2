"""FedAvg with fine-tuning: every client adapts the global model with a few epochs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.core import Capabilities, Client, LocalHParams, Method, Params, option


@dataclass(frozen=True)
class Finetune(Method):
    """Train as FedAvg does; the personal model is the received model after local SGD."""

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "second-model"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "tune_lr": (1e-3, 0.1),
        "tune_epochs": (1, 20),
    }
    tune_epochs: int = option(5, "epochs of fine-tuning", low=1)
    tune_lr: float = option(0.01, "learning rate of fine-tuning", above=0)

    def personal_model(self, client: Client) -> Params:
        """Fine-tune the received model."""
        hparams = LocalHParams(
            torch.full_like(client.hparams.epochs, self.tune_epochs),
            torch.full_like(client.hparams.lr, self.tune_lr),
        )
        return client.fit(client.start, hparams=hparams, stream=1)
