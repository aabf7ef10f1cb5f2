"""Read CSV files with pyarrow; on the error path, name the rows that are wrong."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints
from equipoise.data.tabular._arrow import ArrowArray, arrow_csv, pa
from equipoise.data.tabular.columns import (
    column_from_names,
    column_from_texts,
)
from equipoise.data.tabular.table import Table
from equipoise.utils.errors import UsageError, require

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SEPARATORS = (",", ";", "\t", "|")
NUM_DETECTION_ROWS = 50  # rows from which the separator is detected
MAX_LISTED_BAD_ROWS = 3
MAX_CELL_BYTES = 2**24
CHUNK_BYTES = 2**24  # bytes of a file that are parsed at once

csv.field_size_limit(MAX_CELL_BYTES)


def read_csv(path: Path, client_column: str = "") -> Table:
    """Read a CSV file; the encoding, the separator and the decimal mark are detected.

    All columns are read as texts by pyarrow; `column_from_texts` finds the numbers. Rows are
    numbered as in a spreadsheet, where the column names are row 1. Python's csv module is used
    for the column names, and to explain what is wrong with a file.

    Args:
        path: The file.
        client_column: The column that names clients, if there is one.

    Returns:
        The table.

    Raises:
        UsageError: If the file cannot be read.
    """
    data = _read_bytes(path)
    head = _first_lines(data)
    if "\ufffd" in head:
        _decode(data, path)
    return parse_csv(data, _detect_separator(head), path, client_column)


def parse_csv(data: bytes, separator: str, path: Path, client_column: str = "") -> Table:
    """Parse the bytes of a CSV file.

    Args:
        data: UTF-8 without byte order mark, ending with a line break.
        separator: The separator of cells.
        path: The file, for errors.
        client_column: The column that names clients, if there is one.

    Returns:
        The table.

    Raises:
        UsageError: If the bytes are no table.
    """
    memory_pool = pa.default_memory_pool()
    head = _first_lines(data)
    names = _column_names(head, separator, path)
    cells, row_numbers = _read_cells(data, separator, len(names), path)
    del data
    columns = {}
    for name in names:
        # Texts of converted columns are freed and given back: 50 MB less for a million rows.
        memory_pool.release_unused()
        texts = cells.column(0)
        cells = cells.remove_column(0)
        if name == client_column:
            columns[name] = column_from_names(texts)
        else:
            columns[name] = column_from_texts(texts, comma_is_decimal=separator != ",")
    return Table(columns, row_numbers)


def _read_bytes(path: Path) -> bytes:
    """Read a file as UTF-8 without byte order mark, ending with a line break."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error
    if data.startswith(UTF16_MARKS):
        data = _decode(data, path, "utf-16").encode()
    require(b"\0" not in data, f"'{path}' cannot be read: it is no text file")
    data = data.removeprefix(codecs.BOM_UTF8)
    return data if data.endswith((b"\n", b"\r")) else data + b"\n"


def _decode(data: bytes, path: Path, encoding: str = "utf-8") -> str:
    """Decode a file, or raise an error that says where this is not possible."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        near = data[max(0, error.start - 8) : error.start + 8].decode("cp1252", "replace")
        raise UsageError(
            f"'{path}' cannot be read: it is not UTF-8 in row {row} "
            f"(near '{near.partition(chr(10))[0].strip()}' if it is of Windows): "
            "save it as CSV UTF-8"
        ) from error


def _first_lines(data: bytes) -> str:
    """Decode the first rows."""
    lines = itertools.islice(io.BytesIO(data), NUM_DETECTION_ROWS)
    return b"".join(lines).decode("utf-8", "replace")


def _detect_separator(head: str) -> str:
    """Find the separator that cuts the first rows into the most columns, equally many in each."""
    best = ","
    most_columns = 1
    for separator in SEPARATORS:
        lines = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
        widths = [len(line) for line in lines if line]
        if not widths or widths[0] <= most_columns:
            continue
        if sum(width == widths[0] for width in widths) >= 0.9 * len(widths):
            best = separator
            most_columns = widths[0]
    return best


def _column_names(head: str, separator: str, path: Path) -> list[str]:
    """Read the column names from the first row."""
    header = next(csv.reader(io.StringIO(head, newline=""), delimiter=separator), [])
    require(any(header), f"'{path}' cannot be read: it has no line of column names")
    names = [name.strip() or f"(column {i})" for i, name in enumerate(header, start=1)]
    duplicates = ", ".join(sorted({repr(name) for name in names if names.count(name) > 1}))
    require(not duplicates, f"'{path}' cannot be read: it has several columns named {duplicates}")
    return names


def _read_cells(
    data: bytes, separator: str, num_columns: int, path: Path
) -> tuple[ArrowArray, Ints]:
    """Parse the rows of a file.

    Args:
        data: The file, as `_read_bytes` returns it.
        separator: The separator of cells.
        num_columns: The number of column names.
        path: The file, for errors.

    Returns:
        An Arrow table of strings, where empty cells are null, and the number of each row. Rows
        without any content are left out.
    """
    has_quotes = b'"' in data
    if has_quotes and not _quotes_are_regular(data, separator):
        _check_rows(data, separator, num_columns, path)
    try:
        cells, skipped_rows = _parse(data, separator, num_columns, has_quotes, CHUNK_BYTES)
    except pa.ArrowInvalid:
        _check_rows(data, separator, num_columns, path)
        try:
            # A row may be longer than a block.
            cells, skipped_rows = _parse(data, separator, num_columns, has_quotes, len(data))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"'{path}' cannot be read: {reason}") from error
    numbers = np.arange(2, 2 + len(cells) + len(skipped_rows))
    numbers = np.delete(numbers, np.array(skipped_rows, np.int64) - 2)
    is_empty = _all_null(cells)
    if not is_empty.any():
        return cells, numbers
    return cells.filter(pa.array(~is_empty)), numbers[~is_empty]


def _parse(
    data: bytes, separator: str, num_columns: int, has_quotes: bool, block_size: int
) -> tuple[ArrowArray, list[int]]:
    """Parse all rows as texts.

    Returns:
        An Arrow table, and the numbers of rows that have another number of cells, all empty. Other
        rows with another number of cells raise `ArrowInvalid`.
    """
    skipped_rows: list[int] = []

    def handle_bad_row(row: Any) -> str:
        if any(next(csv.reader([row.text], delimiter=separator))):
            return "error"
        skipped_rows.append(row.number)
        return "skip"

    keys = [str(i) for i in range(num_columns)]
    cells = arrow_csv.read_csv(
        pa.BufferReader(data),
        # One thread: 125 MB take half a second, and more threads take 50 MB more.
        read_options=arrow_csv.ReadOptions(
            column_names=keys, skip_rows_after_names=1, block_size=block_size, use_threads=False
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=separator,
            newlines_in_values=has_quotes,
            ignore_empty_lines=False,  # they count as rows
            invalid_row_handler=handle_bad_row,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(keys, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    return cells, skipped_rows


def _quotes_are_regular(data: bytes, separator: str) -> bool:
    """Whether all quotation marks enclose whole cells, which pyarrow does not check.

    Then quotation marks open and close in turn. One that opens follows a separator and one that
    closes precedes one, except for doubled marks within a cell, which close and open at once.
    """
    characters = np.frombuffer(data, np.uint8)
    is_boundary = np.zeros(256, np.bool_)
    is_boundary[[ord(character) for character in (separator, "\n", "\r", '"')]] = True
    is_open = False
    for start in range(0, len(characters), CHUNK_BYTES):
        places = start + np.flatnonzero(characters[start : start + CHUNK_BYTES] == ord('"'))
        opening = places[int(is_open) :: 2]
        closing = places[1 - int(is_open) :: 2]
        # Place -1 is the line break at the end of the file.
        if not is_boundary[characters[opening - 1]].all():
            return False
        if not is_boundary[characters[closing + 1]].all():
            return False
        is_open ^= len(places) % 2 == 1
    return not is_open


def _all_null(cells: ArrowArray) -> NDArray[np.bool_]:
    """Whether all cells of a row are null `[n]`."""
    is_empty = np.ones(len(cells), np.bool_)
    for column in cells.columns:
        if not column.null_count:
            return np.zeros(len(cells), np.bool_)
        is_empty &= column.is_null().to_numpy()
    return is_empty


def _check_rows(data: bytes, separator: str, num_columns: int, path: Path) -> None:
    """Raise an error that says which rows of a file are malformed, if any are."""
    text = io.StringIO(_decode(data, path), newline="")
    bad_rows = []
    try:
        lines = csv.reader(text, delimiter=separator, strict=True)
        for number, line in enumerate(lines, start=1):
            if any(line) and len(line) != num_columns:
                bad_rows.append(f"row {number} has {len(line)} cells")
    except csv.Error as error:
        raise UsageError(
            f"'{path}' cannot be read: {error} (is a quotation mark left open?)"
        ) from error
    if not bad_rows:
        return
    more = len(bad_rows) - MAX_LISTED_BAD_ROWS
    listed = ", ".join(bad_rows[:MAX_LISTED_BAD_ROWS])
    raise UsageError(
        f"'{path}' cannot be read: its first row names {num_columns} columns, "
        f"but {listed}{f' and {more} more rows' if more > 0 else ''}"
    )
