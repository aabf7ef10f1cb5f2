"""What a task with rows of data adds for simulations of attacks: false rows, and how far a backdoor succeeds."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from equipoise.core import SupervisedTask
from equipoise.data.federated_dataset import ClientData
from equipoise.data.poisoning import BACKDOOR_CLASS, PoisonedData, add_trigger
from equipoise.utils.pytree import Ints, Params, State


class PoisonableTask(SupervisedTask):
    """A supervised task whose clients may be made to train on false rows."""

    data: ClientData
    backdoor: bool = False
    """Whether clients were made to learn one, so that its success is scored."""

    def poisoned(self, how: str, liars: Ints) -> Self:
        part = copy.copy(self)
        part.data, part.backdoor = PoisonedData(self.data, how, liars), how == "backdoor"
        part._map_forward()
        return part

    @abstractmethod
    def _map_forward(self) -> None:
        """Tie what maps the model over clients to this copy of the task."""

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """Stored rows as the model takes them."""

    def summary(self, params: Params) -> State:
        """After an attack by backdoor: the share of marked test rows of other classes that are called the target."""
        if not self.backdoor:
            return super().summary(params)
        x, y = self.data.server("test")
        with torch.no_grad():
            found = self.forward(params, self.prepare(add_trigger(x[y != BACKDOOR_CLASS]))).argmax(
                -1
            )
        return {"backdoor": float((found == BACKDOOR_CLASS).double().mean())}
