"""Who holds which rows: every client's train, validation and test split, and the server's public and test set."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.transforms import InputTransform
from equipoise.utils.errors import UsageError

Ints = NDArray[np.int64]
SPLITS = ("train", "val", "test")


@dataclass
class Split:
    """One split of K clients: client ``k`` owns rows ``start[k] .. start[k] + size[k]`` of flat arrays."""

    x: Tensor
    y: Tensor
    start: Ints
    size: Ints

    def fraction(self, low: float, high: float) -> Split:
        """The share of each client's rows between two fractions, at least one row."""
        if (low, high) == (0.0, 1.0):
            return self
        first, size = fraction_range(self.size, low, high)
        return Split(self.x, self.y, self.start + first, size)

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """``x [K, n, ...]``, ``y [K, n]`` and weights ``[K, n]`` that average each client's own rows.

        Clients of one size that lie side by side cost no copy, and their weights are ``None`` (a plain mean).
        """
        clients, n = len(self.size), int(self.size.max())
        if (self.size == n).all() and (self.start == self.start[0] + n * np.arange(clients)).all():
            here = slice(int(self.start[0]), int(self.start[0]) + n * clients)
            x, y = (flat[here].view(clients, n, *flat.shape[1:]) for flat in (self.x, self.y))
            return x, y, None
        within = np.arange(n)
        rows = torch.from_numpy(self.start[:, None] + np.minimum(within, self.size[:, None] - 1))
        weight = (within < self.size[:, None]) / self.size[:, None]
        return self.x[rows], self.y[rows], torch.from_numpy(weight)


def fraction_range(sizes: Ints, low: float, high: float) -> tuple[Ints, Ints]:
    """The first row and the number of rows between two fractions of each client's rows, at least one."""
    first = np.minimum((low * sizes).astype(np.int64), sizes - 1)
    last = np.maximum((high * sizes).astype(np.int64), first + 1)
    return first, last - first


class ClientData(ABC):
    """The data of a population; a split of a cohort costs the cohort, not the population."""

    clients: int
    classes: int
    """Outputs of a model: as many as there are classes, or one where a number is predicted."""
    names: tuple[str, ...] = ()
    """What the clients are called; empty where they have numbers only."""
    shape: tuple[int, ...]
    """Of one prepared sample."""
    transform: InputTransform = InputTransform()
    """How stored rows become a model's input."""

    @property
    def target(self) -> Target:
        """What is predicted."""
        return unnamed_classes(self.classes)

    @abstractmethod
    def split(self, ids: Ints, name: str) -> Split: ...

    def sizes(self, ids: Ints, name: str) -> Ints:
        """The rows that these clients hold of a split."""
        return self.split(ids, name).size

    @abstractmethod
    def server(self, name: str) -> tuple[Tensor, Tensor]:
        """The server's ``public`` or ``test`` rows."""

    @abstractmethod
    def has_split(self, name: str) -> bool:
        """Whether clients hold this split."""

    def fingerprint(self) -> str:
        """Of all rows, to know them again; empty where they are not kept in memory."""
        return ""


class Federation(ClientData):
    """A population in memory: flat arrays, ordered by client within each split."""

    def __init__(
        self,
        splits: dict[str, tuple[Tensor, Tensor, Ints]],
        server: dict[str, tuple[Tensor, Tensor]],
        classes: int,
        form: InputTransform | None = None,
        target: Target | None = None,
    ) -> None:
        """``splits`` maps train, val, test to (x, y, rows of each client); ``val`` may be left out."""
        for name, (x, y, sizes) in splits.items():
            _refuse_bad_rows(x, y, classes, f"split '{name}'")
            if len(x) != int(sizes.sum()):
                raise UsageError(
                    f"split '{name}' has {len(x)} rows, but its clients' sizes add up to {sizes.sum()}"
                )
            if (sizes < 1).any():
                raise UsageError(
                    f"client {int(np.argmax(sizes < 1))} has no rows in split '{name}': give it some"
                )
        for name, (x, y) in server.items():
            _refuse_bad_rows(x, y, classes, f"the server's '{name}' set")
        self.clients, self.classes, self._target = (
            len(splits["train"][2]),
            classes,
            target or unnamed_classes(classes),
        )
        self.transform = form or InputTransform()
        self.shape = self.transform.output_shape(tuple(splits["train"][0].shape[1:]))
        self._whole = {
            name: Split(x, y, np.cumsum(sizes) - sizes, sizes.astype(np.int64))
            for name, (x, y, sizes) in splits.items()
        }
        self._server = server
        self._last: dict[str, tuple[bytes, Split]] = {}

    @property
    def target(self) -> Target:
        return self._target

    def split(self, ids: Ints, name: str) -> Split:
        whole = self._whole[name]
        if len(ids) == self.clients and (ids == np.arange(self.clients)).all():
            return whole
        key, last = ids.tobytes(), self._last.get(name)
        if last is None or last[0] != key:
            last = self._last[name] = (
                key,
                Split(whole.x, whole.y, whole.start[ids], whole.size[ids]),
            )
        return last[1]

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        return self._server[name]

    def has_split(self, name: str) -> bool:
        return name in self._whole

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, split in sorted(self._whole.items()):
            digest.update(name.encode())
            for tensor in (split.x, split.y, torch.from_numpy(split.size)):
                digest.update(tensor.contiguous().numpy().data)
        for name, (x, y) in sorted(self._server.items()):
            digest.update(name.encode())
            digest.update(x.contiguous().numpy().data)
            digest.update(y.contiguous().numpy().data)
        return digest.hexdigest()


class Subset(ClientData):
    """Some clients of a population, numbered from 0; the server's sets are the whole's."""

    def __init__(self, whole: ClientData, ids: Ints) -> None:
        self.whole, self.ids = whole, ids
        self.clients, self.classes, self.shape, self.transform = (
            len(ids),
            whole.classes,
            whole.shape,
            whole.transform,
        )
        self.names = tuple(whole.names[k] for k in ids) if whole.names else ()

    @property
    def target(self) -> Target:
        return self.whole.target

    def split(self, ids: Ints, name: str) -> Split:
        return self.whole.split(self.ids[ids], name)

    def sizes(self, ids: Ints, name: str) -> Ints:
        return self.whole.sizes(self.ids[ids], name)

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        return self.whole.server(name)

    def has_split(self, name: str) -> bool:
        return self.whole.has_split(name)

    def fingerprint(self) -> str:
        return self.whole.fingerprint()


def _refuse_bad_rows(x: Tensor, y: Tensor, classes: int, where: str) -> None:
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
        raise UsageError(f"row {row} of {where} holds NaN or infinity: clean the data first")
    if y.is_floating_point():
        if not bool(torch.isfinite(y).all()):
            raise UsageError(f"{where} has targets that are NaN or infinite: clean the data first")
    elif len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise UsageError(
            f"{where} has labels outside 0..{classes - 1}: check the number of classes"
        )


Kind = Literal["classification", "regression", "survival", "next-token"]
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "next-token")
"""Those that a column of a table can be."""


@dataclass(frozen=True)
class Target:
    """How the ``y`` of every row is to be read.

    Classification: int64 ``[n]``, places in ``classes``. Regression: float32 ``[n]``, as measured. Survival: float32
    ``[n, 2]``, the time and whether the event was seen then (1) or the row was censored (0). Next-token: the texts are
    their own targets, and float32 ``[n]`` is the loss of who takes any token for the next one.
    """

    kind: Kind = "classification"
    name: str = ""
    """What people call it: the column, or the rule that makes two classes of it."""
    classes: tuple[str, ...] = ()
    event: str = ""
    """The column that says whether the event was seen."""
    mean: float = 0.0
    """Of a regression's training rows, in all clients together; ``scale`` is their standard deviation."""
    scale: float = 1.0

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for one row."""
        return (
            len(self.classes)
            if self.kind == "classification"
            else 2
            if self.kind == "next-token"
            else 1
        )


def unnamed_classes(classes: int) -> Target:
    """Classes that have no names."""
    return Target(classes=tuple(map(str, range(classes))))
