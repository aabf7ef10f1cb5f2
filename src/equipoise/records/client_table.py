"""Read and write the tables of clients, ``clients.csv`` and ``labels.csv``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence

from equipoise.utils.errors import UsageError

NUMBER_COLUMN = "client"
"""Column with the numbers of clients."""
NAME_COLUMN = "name"
"""Column with the names of clients, if they have names."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that a spreadsheet would run as a formula."""


def spreadsheet_cell(value: object) -> object:
    """Return a value as a cell of a CSV file that is safe to open in a spreadsheet.

    Numbers stay numbers, floats with six digits. A text that begins like a formula gets an
    apostrophe in front, unless it is a number.

    Args:
        value: Number or text.

    Returns:
        The cell for ``csv.writer``.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and _is_formula(value):
        return f"'{value}"
    return value


def csv_text(columns: Mapping[str, Iterable[object]]) -> str:
    """Return columns as CSV text with a header, every cell safe for spreadsheets.

    Args:
        columns: Values by column, all of one length.

    Returns:
        The text.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(spreadsheet_cell, columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow(map(spreadsheet_cell, row))
    return text.getvalue()


def table_text(columns: Mapping[str, Sequence[float | str]]) -> str:
    """Return the content of a table of clients, sorted by the first column.

    Args:
        columns: Values by column, all of one length.

    Returns:
        CSV text.
    """
    first = list(next(iter(columns.values())))
    order = sorted(range(len(first)), key=first.__getitem__)
    return csv_text({name: [values[i] for i in order] for name, values in columns.items()})


def parse_table(text: str, source: object) -> dict[str, list[float]]:
    """Read the numeric columns of a table.

    Args:
        text: Content of the table.
        source: File of the text, for errors.

    Returns:
        Values by column; NaN where a cell is no number.

    Raises:
        UsageError: If a row is too short or the text is no CSV.
    """
    head, rows = _rows(text, source)
    return {
        name: [_parse_number(row[i]) for row in rows]
        for i, name in enumerate(head)
        if name != NAME_COLUMN
    }


def parse_names(text: str, source: object) -> dict[int, str]:
    """Read the names of clients by number; return nothing if they have no names.

    Args:
        text: Content of the table.
        source: File of the text, for errors.

    Returns:
        Names by number.

    Raises:
        UsageError: If the table is damaged.
    """
    head, rows = _rows(text, source)
    if NAME_COLUMN not in head:
        return {}
    number = head.index(NUMBER_COLUMN)
    name = head.index(NAME_COLUMN)
    return {int(row[number]): _without_guard(row[name]) for row in rows}


def _rows(text: str, source: object) -> tuple[list[str], list[list[str]]]:
    """Split a table into its header and its rows."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UsageError(f"'{source}' is damaged: {error}") from error
    head = rows[0] if rows else []
    if NUMBER_COLUMN not in head or any(len(row) != len(head) for row in rows):
        raise UsageError(f"'{source}' is damaged: it is no table of clients")
    return [_without_guard(name) for name in head], rows[1:]


def _without_guard(cell: str) -> str:
    """Return the text of a cell of `spreadsheet_cell`."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    """Return whether a text, or what follows its apostrophes, begins like a formula."""
    return text.lstrip("'").startswith(FORMULA_STARTS) and not math.isfinite(_parse_number(text))


def _parse_number(text: str) -> float:
    """Parse a number; NaN if the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
