"""Tables of clients, ``clients.csv`` and ``labels.csv``: columns of numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.core import files


def write_table(path: Path, columns: Mapping[str, Sequence[float]]) -> None:
    """Columns of numbers as CSV, in the order of the first one."""
    rows = sorted(zip(*columns.values(), strict=True))
    lines = [
        ",".join(columns),
        *(",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row) for row in rows),
    ]
    files.write_text(path, "\n".join(lines) + "\n")


def read_table(path: Path) -> dict[str, list[float]]:
    """What :func:`write_table` wrote; empty where there is no file."""
    if not path.is_file():
        return {}
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return {name: [_number(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
