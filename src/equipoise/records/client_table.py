"""Tables of clients, ``clients.csv`` and ``labels.csv``: columns of numbers, and clients' names."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.utils import io as files

NAME = "name"
"""The column of names, where clients have such."""


def write_table(path: Path, columns: Mapping[str, Sequence[float | str]]) -> None:
    """Columns as CSV, in the order of the first one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in sorted(zip(*columns.values(), strict=True)):
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    files.write_text(path, text.getvalue())


def read_table(path: Path) -> dict[str, list[float]]:
    """The numbers that :func:`write_table` wrote; empty where there is no file."""
    rows = _rows(path)
    return {
        name: [_number(row[i]) for row in rows[1:]]
        for i, name in enumerate(rows[0])
        if name != NAME
    }


def read_names(path: Path) -> dict[int, str]:
    """Names of clients by their numbers; empty where they have none."""
    head, *rows = _rows(path)
    if NAME not in head:
        return {}
    number, name = head.index("client"), head.index(NAME)
    return {int(row[number]): row[name] for row in rows}


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        return [[]]
    with open(path, newline="") as file:
        return list(csv.reader(file))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
