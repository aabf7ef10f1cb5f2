"""Rows of hostile clients: false labels, or a backdoor, for simulations of attacks.

``labels``: class y is called C - 1 - y. ``backdoor``: half of a liar's rows bear a mark, and their label is class 0
(Bagdasaryan et al. 2020); the attack succeeds as far as a model calls marked rows of the other classes 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federated_dataset import ClientData, Split, Target
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

DATA_ATTACKS = ("labels", "backdoor")
BACKDOOR_CLASS = 0  # the class that marked rows are called
EDGE = 3  # of the mark in a picture's corner; a row of numbers has so many marked


class PoisonedData(ClientData):
    """Another population in which some clients train on false rows; all that is tested stays true."""

    def __init__(self, inner: ClientData, how: str, liars: Ints) -> None:
        if inner.classes < 2:
            raise UsageError(
                f"attack {how} changes labels of classes, and this task has none: choose another attack"
            )
        self.inner = inner
        self.clients, self.classes, self.names = inner.clients, inner.classes, inner.names
        self.shape, self.transform = inner.shape, inner.transform
        whole = inner.split(np.arange(inner.clients), "train")
        x, y = whole.x.clone(), whole.y.clone()
        for client in liars:
            first = int(whole.start[client])
            mine = slice(first, first + int(whole.size[client]))
            if how == "labels":
                y[mine] = inner.classes - 1 - y[mine]
            else:
                half = slice(mine.start, mine.stop, 2)
                x[half], y[half] = add_trigger(x[half]), BACKDOOR_CLASS
        self._train = Split(x, y, whole.start, whole.size)

    @property
    def target(self) -> Target:
        return self.inner.target

    def split(self, ids: Ints, name: str) -> Split:
        if name != "train":
            return self.inner.split(ids, name)
        whole = self._train
        return Split(whole.x, whole.y, whole.start[ids], whole.size[ids])

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        return self.inner.server(name)

    def has_split(self, name: str) -> bool:
        return self.inner.has_split(name)


def add_trigger(x: Tensor) -> Tensor:
    """The rows with the mark: as large a number as there is, in a corner of a picture or at the end of a row."""
    if not (x.is_floating_point() or x.dtype == torch.uint8):
        raise UsageError(
            "attack backdoor marks pictures or rows of numbers, and this task has neither: choose labels"
        )
    x = x.clone()
    largest = 255 if x.dtype == torch.uint8 else 3.0
    x[
        (..., slice(-EDGE, None), slice(-EDGE, None)) if x.dim() > 2 else (..., slice(-EDGE, None))
    ] = largest
    return x
