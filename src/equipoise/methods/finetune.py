"""FedAvg + fine-tuning: the global model of FedAvg, adapted by each client with a few gentle epochs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.core import Client, LocalHParams, Method, Params, option


@dataclass(frozen=True)
class Finetune(Method):
    """Federated training is FedAvg's; only decision 5 differs: personal = SGD from the received model."""

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "second-model"
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "tune_lr": (1e-3, 0.1),
        "tune_epochs": (1, 20),
    }
    tune_epochs: int = option(5, "epochs of fine-tuning", low=1)
    tune_lr: float = option(0.01, "learning rate of fine-tuning", above=0)

    def personal_model(self, client: Client) -> Params:
        gently = LocalHParams(
            torch.full_like(client.hparams.epochs, self.tune_epochs),
            torch.full_like(client.hparams.lr, self.tune_lr),
        )
        return client.fit(client.start, hparams=gently, stream=1)
