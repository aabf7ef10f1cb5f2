"""Federated data: each client's train, validation and test rows, and the server's own rows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.utils.errors import UsageError
from equipoise.utils.record import Record

Ints = NDArray[np.int64]
AnyArray = NDArray[Any]
"""An array of numbers of any type."""
SPLITS = ("train", "val", "test")

Kind = Literal["classification", "regression", "survival", "next-token"]
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "next-token")
"""Kinds of target that a column of a table can be."""


class InputTransform(Record, frozen=True):
    """Use stored numbers as they are."""

    def output_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a transformed sample, given the shape of a stored one."""
        return stored

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert stored rows to model inputs.

        Args:
            x: Stored rows ``[..., *stored]``.
            dtype: Floating-point type of the model.

        Returns:
            Model inputs ``[..., *output_shape]``.
        """
        return x.to(dtype)


class Target(Record, frozen=True):
    """What is predicted, and how the ``y`` of a row encodes it.

    - classification: int64 ``[n]``, indices into ``classes``.
    - regression: float32 ``[n]``, in the original unit.
    - survival: float32 ``[n, 2]``, the time, and 1 if the event was observed or 0 if censored.
    - next-token: the texts are their own targets; float32 ``[n]`` is the loss of a uniform guess.

    Attributes:
        kind: Kind of target.
        name: Name for people: the column, or the rule that makes two classes of it.
        classes: Names of the classes.
        event: Column that says whether the event was observed (survival).
        mean: Mean of the training rows of all clients (regression).
        scale: Standard deviation of the training rows of all clients (regression).
    """

    kind: Kind = "classification"
    name: str = ""
    classes: tuple[str, ...] = ()
    event: str = ""
    mean: float = 0.0
    scale: float = 1.0

    @property
    def outputs(self) -> int:
        """Number of outputs of a model for one row."""
        if self.kind == "classification":
            return len(self.classes)
        return 2 if self.kind == "next-token" else 1


def unnamed_classes(classes: int) -> Target:
    """Return a classification target whose classes are named 0, 1, 2, ..."""
    return Target(classes=tuple(map(str, range(classes))))


@dataclass
class Split:
    """One split (such as train) of K clients, in flat arrays.

    Client ``k`` owns the rows ``start[k] : start[k] + size[k]``.

    Attributes:
        x: Inputs ``[rows, ...]``.
        y: Targets ``[rows]`` or ``[rows, 2]``.
        start: First row of each client ``[K]``.
        size: Number of rows of each client ``[K]``.
    """

    x: Tensor
    y: Tensor
    start: Ints
    size: Ints

    def fraction(self, low: float, high: float) -> Split:
        """Return the rows of each client between two fractions of its rows, at least one row."""
        if (low, high) == (0.0, 1.0):
            return self
        first, size = fraction_range(self.size, low, high)
        return Split(self.x, self.y, self.start + first, size)

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows of all clients as rectangular tensors.

        Clients of equal size that are adjacent in memory cost no copy.

        Returns:
            ``x [K, n, ...]``, ``y [K, n]`` and weights ``[K, n]`` that average over each client's
            own rows. The weights are ``None`` where all clients have n rows (a plain mean).
        """
        clients = len(self.size)
        n = int(self.size.max())
        first = int(self.start[0])
        if (self.size == n).all() and (self.start == first + n * np.arange(clients)).all():
            rows = slice(first, first + n * clients)
            x = self.x[rows].view(clients, n, *self.x.shape[1:])
            y = self.y[rows].view(clients, n, *self.y.shape[1:])
            return x, y, None
        within = np.arange(n)
        index = torch.from_numpy(self.start[:, None] + np.minimum(within, self.size[:, None] - 1))
        weight = (within < self.size[:, None]) / self.size[:, None]
        return self.x[index], self.y[index], torch.from_numpy(weight)


def fraction_range(sizes: Ints, low: float, high: float) -> tuple[Ints, Ints]:
    """Convert fractions of each client's rows to row ranges.

    Args:
        sizes: Rows of each client ``[K]``.
        low: Fraction at which the range begins.
        high: Fraction at which it ends.

    Returns:
        The first row and the number of rows (at least one) of each client ``[K]``.
    """
    first = np.minimum((low * sizes).astype(np.int64), sizes - 1)
    last = np.maximum((high * sizes).astype(np.int64), first + 1)
    return first, last - first


class ClientData(ABC):
    """Data of a population of clients.

    Asking for the split of a cohort costs time proportional to the cohort, not to the population.

    Attributes:
        clients: Number of clients.
        classes: Number of model outputs: the number of classes, or 1 if a number is predicted.
        names: Names of the clients; empty if they only have numbers.
        shape: Shape of one transformed sample.
        transform: How stored rows become model inputs.
        row_ids: For each split, which of the user's rows each row is. A row has the same id in
            every split by another seed. Empty if the rows have no identity.
    """

    clients: int
    classes: int
    names: tuple[str, ...] = ()
    shape: tuple[int, ...]
    transform: InputTransform = InputTransform()
    row_ids: Mapping[str, Ints] = MappingProxyType({})

    @property
    def target(self) -> Target:
        """What is predicted."""
        return unnamed_classes(self.classes)

    @abstractmethod
    def split(self, ids: Ints, name: str) -> Split:
        """Return the split ``train``, ``val`` or ``test`` of these clients."""

    def sizes(self, ids: Ints, name: str) -> Ints:
        """Return the number of rows ``[K]`` that these clients hold of a split."""
        return self.split(ids, name).size

    @abstractmethod
    def server(self, name: str) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the server's ``public`` or ``test`` set."""

    @abstractmethod
    def has_split(self, name: str) -> bool:
        """Return whether clients hold this split."""

    def fingerprint(self) -> str:
        """Return a digest of all rows; empty if the rows are not held in memory."""
        return ""


class Federation(ClientData):
    """A population in memory: flat arrays, ordered by client within each split."""

    def __init__(
        self,
        splits: dict[str, tuple[Tensor, Tensor, Ints]],
        server: dict[str, tuple[Tensor, Tensor]],
        classes: int,
        transform: InputTransform | None = None,
        target: Target | None = None,
    ) -> None:
        """Check and store the rows.

        Args:
            splits: For ``train``, ``test`` and optionally ``val``: inputs, targets, and the number
                of rows of each client ``[K]``.
            server: Inputs and targets of the server's ``public`` and ``test`` sets.
            classes: Number of model outputs.
            transform: How stored rows become model inputs; unchanged if ``None``.
            target: What is predicted; unnamed classes if ``None``.

        Raises:
            UsageError: If rows are not finite, labels are out of range or a client has no rows.
        """
        for name, (x, y, sizes) in splits.items():
            _check_rows(x, y, classes, f"split '{name}'")
            if len(x) != int(sizes.sum()):
                raise UsageError(
                    f"split '{name}' has {len(x)} rows, but its clients' sizes add up to "
                    f"{sizes.sum()}"
                )
            if (sizes < 1).any():
                client = int(np.argmax(sizes < 1))
                raise UsageError(f"client {client} has no rows in split '{name}': give it some")
        for name, (x, y) in server.items():
            _check_rows(x, y, classes, f"the server's '{name}' set")
        self.clients = len(splits["train"][2])
        self.classes = classes
        self._target = target or unnamed_classes(classes)
        self.transform = transform or InputTransform()
        self.shape = self.transform.output_shape(tuple(splits["train"][0].shape[1:]))
        self._whole = {
            name: Split(x, y, np.cumsum(sizes) - sizes, sizes.astype(np.int64))
            for name, (x, y, sizes) in splits.items()
        }
        self._server = server
        # The last cohort's split by name, with the cohort's ids as bytes.
        self._last: dict[str, tuple[bytes, Split]] = {}

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self._target

    def split(self, ids: Ints, name: str) -> Split:
        """Return the split of these clients; the last cohort's is reused."""
        whole = self._whole[name]
        if len(ids) == self.clients and (ids == np.arange(self.clients)).all():
            return whole
        key = ids.tobytes()
        last = self._last.get(name)
        if last is None or last[0] != key:
            last = (key, Split(whole.x, whole.y, whole.start[ids], whole.size[ids]))
            self._last[name] = last
        return last[1]

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the server's ``public`` or ``test`` set."""
        return self._server[name]

    def has_split(self, name: str) -> bool:
        """Return whether this split was given."""
        return name in self._whole

    def fingerprint(self) -> str:
        """Return the SHA-256 digest of all rows of clients and server."""
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


class DelegatingData(ClientData):
    """A population that answers every question like another one; subclasses change some answers."""

    def __init__(self, whole: ClientData) -> None:
        """Take over the facts about the population."""
        self.whole = whole
        self.clients = whole.clients
        self.classes = whole.classes
        self.names = whole.names
        self.shape = whole.shape
        self.transform = whole.transform
        self.row_ids = whole.row_ids

    @property
    def target(self) -> Target:
        """What is predicted."""
        return self.whole.target

    def split(self, ids: Ints, name: str) -> Split:
        """Return the split of these clients."""
        return self.whole.split(ids, name)

    def server(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the server's set."""
        return self.whole.server(name)

    def has_split(self, name: str) -> bool:
        """Return whether the population has this split."""
        return self.whole.has_split(name)


class Subset(DelegatingData):
    """Some clients of a population, renumbered from 0, with the same server sets."""

    def __init__(self, whole: ClientData, ids: Ints) -> None:
        """Select the clients ``ids`` of ``whole``."""
        super().__init__(whole)
        self.ids = ids
        self.clients = len(ids)
        self.names = tuple(whole.names[k] for k in ids) if whole.names else ()

    def split(self, ids: Ints, name: str) -> Split:
        """Return the split of these clients of the subset."""
        return self.whole.split(self.ids[ids], name)

    def sizes(self, ids: Ints, name: str) -> Ints:
        """Return the number of rows of these clients of the subset."""
        return self.whole.sizes(self.ids[ids], name)

    def fingerprint(self) -> str:
        """Return the digest of the whole population."""
        return self.whole.fingerprint()


def _check_rows(x: Tensor, y: Tensor, classes: int, location: str) -> None:
    """Refuse inputs or targets that are not finite, and labels out of range."""
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
        raise UsageError(f"row {row} of {location} holds NaN or infinity: clean the data first")
    if y.is_floating_point():
        if not bool(torch.isfinite(y).all()):
            raise UsageError(
                f"{location} has targets that are NaN or infinite: clean the data first"
            )
    elif len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise UsageError(
            f"{location} has labels outside 0..{classes - 1}: check the number of classes"
        )
