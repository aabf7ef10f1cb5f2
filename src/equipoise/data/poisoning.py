"""Data poisoning for simulated attacks: flipped labels, or a backdoor.

``labels``: class y becomes C - 1 - y. ``backdoor``: half of a malicious client's training rows
carry a trigger and get label 0 (Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS
2020, arXiv:1807.00459). The attack succeeds to the degree that a model labels triggered rows of
other classes as class 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.data.federated_dataset import ClientData, DelegatingData, Split
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

DATA_ATTACKS = ("labels", "backdoor")
BACKDOOR_CLASS = 0  # the label of rows with the trigger
TRIGGER_SIZE = 3  # pixels a side in an image's corner, or values at the end of a vector
TRIGGER_VALUE = 3.0  # of standardised features; images use 255


class PoisonedData(DelegatingData):
    """A population in which malicious clients train on poisoned rows; test rows stay clean."""

    def __init__(self, inner: ClientData, attack: str, malicious: Ints) -> None:
        """Poison the training rows of some clients.

        Args:
            inner: The clean population.
            attack: ``labels`` or ``backdoor``.
            malicious: Ids of the malicious clients.

        Raises:
            UsageError: If the task has no classes, or no rows that can carry a trigger.
        """
        if inner.classes < 2:
            raise UsageError(
                f"attack {attack} changes labels of classes, and this task has none: choose "
                "another attack"
            )
        super().__init__(inner)
        self.attack = attack
        whole = inner.split(np.arange(inner.clients), "train")
        x = whole.x.clone()
        y = whole.y.clone()
        for client in malicious:
            first = int(whole.start[client])
            last = first + int(whole.size[client])
            if attack == "labels":
                y[first:last] = inner.classes - 1 - y[first:last]
            else:
                x[first:last:2] = add_trigger(x[first:last:2])
                y[first:last:2] = BACKDOOR_CLASS
        self._train = Split(x, y, whole.start, whole.size)

    def split(self, ids: Ints, name: str) -> Split:
        """Return a split; only ``train`` is poisoned."""
        if name != "train":
            return super().split(ids, name)
        train = self._train
        return Split(train.x, train.y, train.start[ids], train.size[ids])


def add_trigger(x: Tensor) -> Tensor:
    """Return a copy of the rows with the backdoor trigger.

    Args:
        x: Stored rows: images ``[n, H, W, C]`` or vectors ``[n, features]``.

    Raises:
        UsageError: If the rows are neither images nor vectors of numbers.
    """
    if not (x.is_floating_point() or x.dtype == torch.uint8):
        raise UsageError(
            "attack backdoor marks pictures or rows of numbers, and this task has neither: "
            "choose labels"
        )
    x = x.clone()
    value = 255 if x.dtype == torch.uint8 else TRIGGER_VALUE
    if x.dim() > 2:
        x[..., -TRIGGER_SIZE:, -TRIGGER_SIZE:] = value
    else:
        x[..., -TRIGGER_SIZE:] = value
    return x
