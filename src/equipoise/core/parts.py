"""Rows of many clients on disk, in files that never change: of each client, the row in the newest file counts.

So whoever saves writes what has changed. Which files count stands in another file, which takes its place last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from equipoise.core import files
from equipoise.core.errors import UsageError
from equipoise.core.trees import Ints, State, index

LARGEST = 2**26  # bytes of a file


class ShardedRows:
    """The files of one folder, as far as they count."""

    def __init__(self, folder: Path, clients: int) -> None:
        self._folder = folder
        self._newest = np.full(clients, -1, np.int32)
        self._rows: dict[int, int] = {}

    @property
    def files(self) -> dict[str, int]:
        """Numbers of the files that count, each with its number of rows."""
        return {str(number): rows for number, rows in self._rows.items()}

    def add(self, changed: Ints, size: int, rows: Callable[[Ints], State]) -> None:
        """Write what ``rows`` gives of these clients, about ``size`` bytes each, in as many files as it takes.

        Files of which more than half is out of date, and those that are smaller than what is written anyhow, are
        written anew with it: so there are few of them, and they are never much more than what counts.
        """
        most, number = max(1, LARGEST // max(1, size)), max(self._rows, default=0)
        self._newest[changed] = -1
        counting = np.bincount(self._newest[self._newest >= 0], minlength=number + 1)
        for old in sorted(self._rows, reverse=True):
            stale = 2 * counting[old] < self._rows[old]
            small = self._rows[old] <= most // 2 and counting[old] <= len(changed)
            if stale or small:
                changed = np.concatenate([changed, np.flatnonzero(self._newest == old)])
                del self._rows[old]
        for ids in np.array_split(np.sort(changed), -(-len(changed) // most)) if len(changed) else []:
            number += 1
            files.save(self._path(number), {"ids": torch.from_numpy(ids), "rows": rows(ids)}, {})
            self._newest[ids], self._rows[number] = number, len(ids)

    def sweep(self) -> None:
        """Remove files that do not count, once that is written down."""
        for file in sorted(self._folder.glob("*clients-*.safetensors")):
            if file not in {self._path(number) for number in self._rows}:
                files.remove(file)

    def load(self, counting: dict[str, int]) -> Iterator[tuple[Ints, State]]:
        """Take these files, and give the rows that count of each."""
        self._rows = {int(number): rows for number, rows in counting.items()}
        for number in sorted(self._rows, reverse=True):
            path = self._path(number)
            if not path.is_file():
                raise UsageError(f"'{path}' is missing: the checkpoint cannot be read without it")
            state, _ = files.load(path)
            here = np.flatnonzero(self._newest[state["ids"].numpy()] < 0)
            ids: Ints = state["ids"].numpy()[here]
            self._newest[ids] = number
            yield ids, index(state["rows"], torch.from_numpy(here))

    def _path(self, number: int) -> Path:
        return self._folder / f"clients-{number}.safetensors"
