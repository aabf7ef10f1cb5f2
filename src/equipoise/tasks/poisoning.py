"""Supervised tasks whose clients can be poisoned, and the success rate of a backdoor."""

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
    """A supervised task whose clients may be made to train on poisoned rows.

    Attributes:
        data: Rows of clients and server.
        backdoor: Whether clients were poisoned with a backdoor, so that its success is measured.
    """

    data: ClientData
    backdoor: bool = False

    def poisoned(self, how: str, liars: Ints) -> Self:
        """Return a copy of the task in which some clients train on poisoned rows.

        Args:
            how: ``labels`` or ``backdoor``, see :mod:`equipoise.data.poisoning`.
            liars: Ids of the malicious clients.
        """
        task = copy.copy(self)
        task.data = PoisonedData(self.data, how, liars)
        task.backdoor = how == "backdoor"
        task._map_forward()
        return task

    @abstractmethod
    def _map_forward(self) -> None:
        """Bind the forward pass over many clients to this copy of the task."""

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """Convert stored rows to model inputs."""

    def summary(self, params: Params) -> State:
        """Return the backdoor's success rate: triggered test rows that get the backdoor's class.

        Rows of the backdoor's own class are left out.
        """
        if not self.backdoor:
            return super().summary(params)
        x, y = self.data.server("test")
        with torch.no_grad():
            triggered = self.prepare(add_trigger(x[y != BACKDOOR_CLASS]))
            predicted = self.forward(params, triggered).argmax(-1)
        return {"backdoor": float((predicted == BACKDOOR_CLASS).double().mean())}
