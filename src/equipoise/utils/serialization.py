"""Incremental storage of client rows, and streamed safetensors files.

Rows are stored in immutable files; the row in the newest file is valid. A save writes only the
changed rows. The list of valid files is stored elsewhere and written last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints, State, index

MAX_FILE_BYTES = 2**26  # bytes of a file


class ShardedRows:
    """The valid row files of one folder."""

    def __init__(self, folder: Path, clients: int) -> None:
        """Start without files, for `clients` clients in `folder`."""
        self._folder = folder
        self._newest = np.full(clients, -1, np.int32)
        self._rows: dict[int, int] = {}

    @property
    def files(self) -> dict[str, int]:
        """Row counts of the valid files, by file number."""
        return {str(number): rows for number, rows in self._rows.items()}

    def add(self, changed: Ints, size: int, rows: Callable[[Ints], State]) -> None:
        """Write the rows of changed clients to new files.

        Files with more than half of their rows outdated, and files smaller than the new one, are
        merged into the new files. This keeps both their number and their size small.

        Args:
            changed: Numbers of the changed clients.
            size: Approximate bytes of one row.
            rows: Returns the rows of clients.
        """
        most, number = max(1, MAX_FILE_BYTES // max(1, size)), max(self._rows, default=0)
        self._newest[changed] = -1
        counting = np.bincount(self._newest[self._newest >= 0], minlength=number + 1)
        for old in sorted(self._rows, reverse=True):
            stale = 2 * counting[old] < self._rows[old]
            small = self._rows[old] <= most // 2 and counting[old] <= len(changed)
            if stale or small:
                changed = np.concatenate([changed, np.flatnonzero(self._newest == old)])
                del self._rows[old]
        for ids in (
            np.array_split(np.sort(changed), -(-len(changed) // most)) if len(changed) else []
        ):
            number += 1
            io.save(self._path(number), {"ids": torch.from_numpy(ids), "rows": rows(ids)}, {})
            self._newest[ids], self._rows[number] = number, len(ids)

    def remove_unused_files(self) -> None:
        """Remove files that are no longer valid, after the new list is stored."""
        for file in sorted(self._folder.glob("*clients-*.safetensors")):
            if file not in {self._path(number) for number in self._rows}:
                io.remove(file)

    def load(self, counting: dict[str, int]) -> Iterator[tuple[Ints, State]]:
        """Load the valid rows.

        Args:
            counting: Stored value of `files`.

        Yields:
            Client numbers and their rows, for each file.
        """
        self._rows = {int(number): rows for number, rows in counting.items()}
        for number in sorted(self._rows, reverse=True):
            path = self._path(number)
            if not path.is_file():
                raise UsageError(f"'{path}' is missing: the checkpoint cannot be read without it")
            state, _ = io.load(path)
            here = np.flatnonzero(self._newest[state["ids"].numpy()] < 0)
            ids: Ints = state["ids"].numpy()[here]
            self._newest[ids] = number
            yield ids, index(state["rows"], torch.from_numpy(here))

    def _path(self, number: int) -> Path:
        return self._folder / f"clients-{number}.safetensors"


READ_BLOCK_BYTES = 2**20  # bytes that are read at once
MAX_CHECKSUM = 2**32 - 1  # of all checksums


def write_stack(path: Path, rows: int, parts: Iterable[dict[str, Tensor]]) -> None:
    """Write a safetensors file from parts, like `io.write_tensors` of their concatenation.

    Args:
        path: The file.
        rows: Total number of rows.
        parts: Stacks of some rows each, with the same names.
    """
    io.write_with(path, lambda file: _fill(file, rows, parts))


def _fill(path: Path, rows: int, parts: Iterable[dict[str, Tensor]]) -> None:
    """Write the content first and the header, which has the checksum, last."""
    layout: dict[str, Any] = {}
    start, done, found = 0, 0, 0
    with path.open("w+b") as file:
        for part in parts:
            if not layout:
                layout = _layout(part, rows)
                start = len(_header(layout, MAX_CHECKSUM))
                kinds = {
                    name: [str(value.dtype), rows, *value.shape[1:]] for name, value in part.items()
                }
                found = io.header_checksum(kinds, {})
            for name, value in part.items():
                first, last = layout[name]["data_offsets"]
                file.seek(start + first + (last - first) * done // max(1, rows))
                file.write(io.tensor_bytes(value))
            done += len(next(iter(part.values())))
        assert done == rows, f"{done} rows came where {rows} were expected"
        for name in sorted(layout):
            first, last = layout[name]["data_offsets"]
            file.seek(start + first)
            for place in range(first, last, READ_BLOCK_BYTES):
                found = io.checksum(file.read(min(READ_BLOCK_BYTES, last - place)), found)
        file.seek(0)
        file.write(_header(layout, found, start))


def _layout(part: dict[str, Tensor], rows: int) -> dict[str, Any]:
    """Return the safetensors header entries of the full stacks, scaled from one row."""
    one = save(io.unshare_memory({name: value[:1] for name, value in part.items()}))
    layout: dict[str, Any] = json.loads(one[8 : 8 + int.from_bytes(one[:8], "little")])
    for about in layout.values():
        about["shape"][0] = rows
        about["data_offsets"] = [rows * place for place in about["data_offsets"]]
    return layout


def _header(layout: dict[str, Any], checksum: int, length: int = 0) -> bytes:
    """Return the file header, padded with blanks to a multiple of 8 bytes or to `length`."""
    about = {"__metadata__": {"checksum": str(checksum)}, **layout}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(-(-len(text) // 8) * 8, length - 8))
    return len(text).to_bytes(8, "little") + text
