"""Read and write the tables of clients, ``clients.csv`` and ``labels.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.utils import io as files

NAME_COLUMN = "name"
"""Column with the names of clients, if they have names."""


def write_table(path: Path, columns: Mapping[str, Sequence[float | str]]) -> None:
    """Write columns as CSV, sorted by the first one.

    Args:
        path: File to write.
        columns: Values by column, all of one length.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in sorted(zip(*columns.values(), strict=True)):
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    files.write_text(path, text.getvalue())


def read_table(path: Path) -> dict[str, list[float]]:
    """Read the numeric columns; return nothing if there is no file."""
    rows = _rows(path)
    return {
        name: [_number(row[i]) for row in rows[1:]]
        for i, name in enumerate(rows[0])
        if name != NAME_COLUMN
    }


def read_names(path: Path) -> dict[int, str]:
    """Read the names of clients by number; return nothing if they have no names."""
    head, *rows = _rows(path)
    if NAME_COLUMN not in head:
        return {}
    number = head.index("client")
    name = head.index(NAME_COLUMN)
    return {int(row[number]): row[name] for row in rows}


def _rows(path: Path) -> list[list[str]]:
    """Read all rows, the header first."""
    if not path.is_file():
        return [[]]
    with open(path, newline="") as file:
        return list(csv.reader(file))


def _number(text: str) -> float:
    """Parse a number; NaN if the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
