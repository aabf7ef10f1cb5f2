"""Cells, declared and done: one JSON line per finished cell, one file per study."""

from __future__ import annotations

import fcntl
import gzip
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BOUNDED_SINCE = "2026-11-18T17:01"
"""From then on (UTC) the server bounds each client's influence as it does now, in cohorts of 5
replies and more: its weight, and how far it may pull against the others."""
LARGEST = 1_000_000  # bytes of a file that is kept as plain text; a larger one is compressed


@dataclass(frozen=True)
class Cell:
    """One cell of a grid: where it stands (``axes``) and the options of its run, if it is a run."""

    axes: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Words as they are, numbers with the name of their axis: ``page-seed11``."""
        return "-".join(
            value if isinstance(value, str) else f"{axis}{value}"
            for axis, value in self.axes.items()
        )


@dataclass(frozen=True)
class Record:
    """A finished cell. ``commit`` is None for cells that were made before provenance was kept."""

    name: str
    axes: dict[str, Any]
    config: dict[str, Any]
    result: dict[str, Any]
    commit: str | None = None
    dirty: bool | None = None
    versions: dict[str, str] | None = None
    machine: dict[str, Any] | None = None
    started: str | None = None
    seconds: float | None = None

    def __getitem__(self, name: str) -> Any:
        """A figure of the result, else a coordinate, else an option."""
        for part in (self.result, self.axes):
            if name in part:
                return part[name]
        return self.config[name]

    @property
    def is_bounded(self) -> bool:
        """Whether the cell was made under the present bound on influence."""
        return self.started is not None and self.started >= BOUNDED_SINCE

    def to_json(self) -> str:
        known = {
            key: value
            for key, value in asdict(self).items()
            if value is not None or key == "commit"
        }
        return json.dumps(known, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Results:
    """The finished cells of one study, sorted by name, in ``FOLDER/cells.jsonl`` (``.gz`` where
    that is large).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = {record.name: record for record in self._read()}

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def __contains__(self, name: str) -> bool:
        return name in self.records

    def where(self, **axes: Any) -> list[Record]:
        """The cells that have these coordinates, by seed and name."""
        return [
            record
            for record in self
            if all(record.axes.get(axis) == value for axis, value in axes.items())
        ]

    def add(self, *records: Record) -> None:
        """Keep cells.

        The file is replaced as a whole, under a lock: neither a kill nor a second runner harms it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = {record.name: record for record in self._read()} | {
                record.name: record for record in records
            }
            self.records = {name: known[name] for name in sorted(known)}
            data = "".join(record.to_json() + "\n" for record in self).encode()
            large = len(data) > LARGEST
            path, other = self._paths if large else reversed(self._paths)
            with open(path.with_suffix(".part"), "wb") as file:
                file.write(gzip.compress(data, mtime=0) if large else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path.with_suffix(".part"), path)
            other.unlink(missing_ok=True)
        finally:
            os.close(lock)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.folder / "cells.jsonl.gz", self.folder / "cells.jsonl"

    def _read(self) -> list[Record]:
        path = next((path for path in self._paths if path.exists()), None)
        if path is None:
            return []
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        return [Record(**json.loads(line)) for line in text.splitlines()]


def grid(
    options: Callable[..., Mapping[str, Any] | None] = lambda **axes: {}, **axes: Iterable[Any]
) -> list[Cell]:
    """The product of the axes, the last one running fastest.

    ``options`` gives a cell's run; None leaves it out.
    """
    cells = []
    for values in itertools.product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        found = options(**place)
        if found is not None:
            cells.append(Cell(place, found))
    return cells
