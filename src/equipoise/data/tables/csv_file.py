"""CSV as people save it: separator and decimal mark detected, marks of encodings, and errors by the row of a sheet."""

from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path

import numpy as np

from equipoise.data.tables.cells import of_names, of_texts
from equipoise.data.tables.table import Table
from equipoise.utils.errors import UsageError

SEPARATORS = (",", ";", "\t", "|")
TRIED = 50  # rows that tell the separator
SHOWN = 3  # bad rows that an error names
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
csv.field_size_limit(2**24)


def read_csv(path: Path, client: str = "") -> Table:
    """The cells of a file; rows are numbered as a spreadsheet does, where the names of columns are row 1.

    ``client``: the column that names clients, if there is one.
    """
    text = _text(path)
    separator = _separator(text)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise UsageError(
            f"'{path}' cannot be read: {error} (is a quotation mark left open?)"
        ) from error
    if not lines or not any(lines[0]):
        raise UsageError(f"'{path}' cannot be read: it has no line of column names")
    names = _names(lines[0], path)
    numbered = [(row, line) for row, line in enumerate(lines[1:], start=2) if any(line)]
    odd = [f"row {row} has {len(line)} cells" for row, line in numbered if len(line) != len(names)]
    if odd:
        more = f" and {len(odd) - SHOWN} more rows" if len(odd) > SHOWN else ""
        raise UsageError(
            f"'{path}' cannot be read: its first row names {len(names)} columns, but {', '.join(odd[:SHOWN])}{more}"
        )
    cells = list(zip(*(line for _, line in numbered), strict=True)) or [()] * len(names)
    columns = {
        name: of_names(column) if name == client else of_texts(column, separator != ",")
        for name, column in zip(names, cells, strict=True)
    }
    return Table(columns, np.array([row for row, _ in numbered], np.int64))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error
    try:
        text = data.decode("utf-16" if data.startswith(WIDE) else "utf-8-sig")
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        guess = (
            data[max(0, error.start - 8) : error.start + 8]
            .decode("cp1252", "replace")
            .split("\n")[0]
        )
        raise UsageError(
            f"'{path}' cannot be read: it is not UTF-8 in row {row} (near '{guess.strip()}' if it is of Windows): "
            "save it as CSV UTF-8"
        ) from error
    if "\0" in text:
        raise UsageError(f"'{path}' cannot be read: it is no text file")
    return text


def _separator(text: str) -> str:
    """What cuts the first rows into the most columns, equally many in each."""
    head = "".join(text.splitlines(keepends=True)[:TRIED])
    best, columns = ",", 1
    for separator in SEPARATORS:
        widths = [
            len(line)
            for line in csv.reader(io.StringIO(head, newline=""), delimiter=separator)
            if line
        ]
        if not widths or widths[0] <= columns:
            continue
        if sum(width == widths[0] for width in widths) >= 0.9 * len(widths):
            best, columns = separator, widths[0]
    return best


def _names(header: list[str], path: Path) -> list[str]:
    names = [name.strip() or f"(column {place})" for place, name in enumerate(header, start=1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"'{path}' cannot be read: it has several columns named {', '.join(map(repr, twice))}"
        )
    return names
