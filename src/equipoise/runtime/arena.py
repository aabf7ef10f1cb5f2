"""Trees in memory that forked processes share: written once by one, read by all, with nothing left behind on disk."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.core.trees import map_leaves

ALIGNED = 64
SHARED_MEMORY = Path("/dev/shm")


class Arena:
    """A nameless file in memory, inherited by forked processes; each maps as much of it as it needs."""

    def __init__(self) -> None:
        folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as this object is)
        weakref.finalize(self, self._file.close)
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def reserve(self, size: int) -> None:
        """Make the file at least so large; the others' maps stay valid."""
        if os.fstat(self._file.fileno()).st_size < size:
            os.ftruncate(self._file.fileno(), size)

    def bytes(self, size: int) -> Tensor:
        """The first ``size`` bytes."""
        if len(self._bytes) < size:
            self._bytes = torch.frombuffer(mmap.mmap(self._file.fileno(), size), dtype=torch.uint8)
        return self._bytes[:size]


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.dtype.itemsize * math.prod(self.shape)

    def view(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.end].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a tree lie: the tree with a place for each; other leaves (True, False) stay themselves."""

    places: Any
    size: int

    @classmethod
    def of(cls, tree: Any) -> Layout:
        """The layout of a tree that is about to be written."""
        size = 0

        def place(leaf: Any) -> Any:
            nonlocal size
            if not isinstance(leaf, Tensor):
                return leaf
            found = Place(size, leaf.dtype, tuple(leaf.shape))
            size += -(-leaf.nbytes // ALIGNED) * ALIGNED
            return found

        places = map_leaves(place, tree)
        return cls(places, size)

    def write(self, memory: Tensor, tree: Any) -> None:
        """Copy the tensors of a tree to their places."""

        def copy(place: Any, leaf: Any) -> None:
            if isinstance(place, Place):
                place.view(memory).copy_(leaf)

        map_leaves(copy, self.places, tree)

    def read(self, memory: Tensor) -> Any:
        """The tree as views of ``memory``."""
        return map_leaves(lambda place: place.view(memory) if isinstance(place, Place) else place, self.places)

    def read_stack(self, memory: Tensor, count: int) -> Any:
        """A tree of stacks, copied out of ``count`` trees that lie one after another."""
        table = memory[: count * self.size].view(count, self.size)

        def gather(place: Place) -> Tensor:
            return table[:, place.offset : place.end].clone().view(place.dtype).view(count, *place.shape)

        return map_leaves(gather, self.places)
