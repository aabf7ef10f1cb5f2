"""FedAvg + fine-tuning: the global model of FedAvg, adapted by each client with a few gentle epochs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.contract import Client, Method, Train, Training, Tree, option
from equipoise.contract import Task as Task
from equipoise.core.errors import UsageError


@dataclass(frozen=True)
class Finetune(Method):
    """Federated training is FedAvg's; only decision 5 differs: personal = SGD from the received model."""

    name: ClassVar[str] = "finetune"
    search: ClassVar[Mapping[str, tuple[float, float]]] = {"tune_lr": (1e-3, 0.1), "tune_epochs": (1, 20)}
    tune_epochs: int = option(5, "epochs of fine-tuning")
    tune_lr: float = option(0.01, "learning rate of fine-tuning")

    def check(self, task: Task, training: Training) -> None:
        if self.tune_epochs < 1 or not 0 < self.tune_lr < float("inf"):
            raise UsageError("finetune needs tune_epochs of at least 1 and a tune_lr above 0")

    def personal(self, c: Client) -> Tree:
        gently = Train(torch.full_like(c.train.epochs, self.tune_epochs), torch.full_like(c.train.lr, self.tune_lr))
        return c.fit(c.start, train=gently, stream=1)
