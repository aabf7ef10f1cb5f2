"""Read tables: CSV and Parquet files, and frames of pandas, Arrow or Python."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints
from equipoise.data.sources import needs
from equipoise.data.tabular._arrow import pyarrow
from equipoise.data.tabular.clients import read_split_column
from equipoise.data.tabular.columns import (
    PLAIN_NUMBER,
    ClientTables,
    Column,
    Table,
    column_from_names,
    column_from_texts,
    column_from_values,
    format_number,
)
from equipoise.data.tabular.config import TableConfig, parse_names
from equipoise.data.tabular.diagnostics import Diagnostic, list_names, list_rows, raise_problems
from equipoise.utils.errors import UsageError, nearest

SERVER = "server"
"""The name of the file in a folder (or table in Python) that holds the server's own rows."""
SEPARATORS = (",", ";", "\t", "|")
NUM_DETECTION_ROWS = 50  # rows from which the separator is detected
MAX_LISTED_BAD_ROWS = 3
MAX_CELL_BYTES = 2**24
CHUNK_BYTES = 2**24  # bytes of a file that are parsed at once
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
csv.field_size_limit(MAX_CELL_BYTES)


# ------------------------------------------------------------------------- tables of all clients


def read_tables(path: Path, client_column: str, config: TableConfig) -> ClientTables:
    """Read the rows of all clients.

    Args:
        path: A folder with one CSV or Parquet file per client, or one file with a client column.
        client_column: The column that names the client, where all are in one file.
        config: Options of tables.

    Returns:
        The tables, without ignored columns.

    Raises:
        UsageError: If files cannot be read or do not fit together; all problems are listed.
    """
    tables, diagnostics = scan_tables(path, client_column, config)
    raise_problems(diagnostics, tables.source)
    return tables


def scan_tables(
    path: Path, client_column: str, config: TableConfig
) -> tuple[ClientTables, list[Diagnostic]]:
    """Read the rows of all clients like `read_tables`, but return problems instead of raising."""
    pyarrow()
    if path.is_dir():
        tables, diagnostics = _read_folder(path)
    elif path.is_file():
        table = read_table(path, client_column)
        tables, diagnostics = split_by_client(table, client_column, f"'{path}'")
    else:
        raise UsageError(
            f"there is no file or folder '{path}': give --data a folder of CSV or Parquet files, or one file"
        )
    return _align(tables, diagnostics, config)


def tables_from_values(clients: Mapping[str, Any], server: Any = None) -> ClientTables:
    """Convert tables in Python.

    Args:
        clients: A table for each client's name; see `table_from_values`.
        server: The server's table, if it has one.
    """
    if not clients:
        raise UsageError("there are no clients: give at least one table")
    tables = {
        str(name): table_from_values(values, f"the table of client '{name}'")
        for name, values in clients.items()
    }
    if server is None:
        return ClientTables(tables)
    return ClientTables(tables, table_from_values(server, "the server's table"))


def align_tables(tables: ClientTables, config: TableConfig) -> ClientTables:
    """Apply the rules for columns of files to tables in memory.

    Raises:
        UsageError: If the tables do not fit together; all problems are listed.
    """
    aligned, diagnostics = _align(tables, [], config)
    raise_problems(diagnostics, tables.source)
    return aligned


def split_by_client(
    table: Table, client_column: str, source: str
) -> tuple[ClientTables, list[Diagnostic]]:
    """Split the rows of one table by the column that names the client.

    Args:
        table: The rows of all clients.
        client_column: The column that names the client.
        source: The name of the table in messages.

    Returns:
        The tables, whose columns are views of one array each, and problems.
    """
    if client_column not in table.columns:
        columns = ", ".join(map(repr, table.columns))
        raise UsageError(
            f"{source} has no client column '{client_column}'"
            f"{nearest(client_column, table.columns)}: see --client-column (it has {columns})"
        )
    codes, names = table.columns[client_column].labels
    diagnostics = []
    if (codes < 0).any():
        rows = list_rows(table.row_numbers[codes < 0].tolist())
        message = f"has no client in {rows}: fill it, or remove these rows"
        diagnostics.append(Diagnostic(message, True, column=client_column))
    if not names:
        raise UsageError(f"{source} has no rows with a client in column '{client_column}'")
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    ordered = table.drop(frozenset({client_column})).take(order)
    clients = {name: ordered.take(slice(bounds[k], bounds[k + 1])) for k, name in enumerate(names)}
    are_numbers = all(PLAIN_NUMBER.fullmatch(name) for name in names)
    in_order = sorted(clients, key=float) if are_numbers else sorted(clients)
    return ClientTables({name: clients[name] for name in in_order}, None, source), diagnostics


def _read_folder(path: Path) -> tuple[ClientTables, list[Diagnostic]]:
    """Read one file per client; the file `server` holds the server's rows."""
    clients: dict[str, Table] = {}
    server = None
    diagnostics: list[Diagnostic] = []
    for file in sorted(file for file in path.iterdir() if file.suffix.lower() in READERS):
        client = file.stem
        try:
            table = read_table(file)
        except UsageError as error:
            diagnostics.append(Diagnostic(str(error), True, client))
            continue
        if client == SERVER:
            server = table
        elif client in clients:
            diagnostics.append(Diagnostic("has two files: keep one of them", True, client))
        elif len(table):
            clients[client] = table
        else:
            message = f"'{file}' has no rows: remove it or fill it"
            diagnostics.append(Diagnostic(message, True, client))
    if not clients:
        reason = str(diagnostics[0]) if diagnostics else f"'{path}' holds no CSV or Parquet files"
        raise UsageError(reason)
    return ClientTables(clients, server, f"'{path}'"), diagnostics


def _align(
    tables: ClientTables, diagnostics: list[Diagnostic], config: TableConfig
) -> tuple[ClientTables, list[Diagnostic]]:
    """Drop ignored columns, and report the columns that not everybody has."""
    ignored = frozenset(parse_names(config.ignore_columns))
    known = {name for table in tables.clients.values() for name in table.columns}
    if unknown := sorted(ignored - known):
        suggestion = nearest(unknown[0], known)
        raise UsageError(
            f"{tables.source} has no column '{unknown[0]}'{suggestion}: see --ignore-columns"
        )
    tables = _drop(tables, ignored)
    if config.split_column:
        tables, about_splits = read_split_column(tables, config.split_column)
        diagnostics = [*diagnostics, *about_splits]
    owners = dict(tables.clients)
    if tables.server is not None:
        owners[SERVER] = tables.server
    num_owners = Counter(name for table in owners.values() for name in table.columns)
    usual = {name for name, count in num_owners.items() if 2 * count > len(owners)}
    for owner, table in owners.items():
        lacking = sorted(usual - set(table.columns))
        extra = sorted(set(table.columns) - usual)
        if lacking or extra:
            diagnostics.append(_about_columns(owner, lacking, extra, config))
    common = {name for name, count in num_owners.items() if count == len(owners)}
    return _drop(tables, frozenset(num_owners) - common), diagnostics


def _about_columns(
    owner: str, lacking: list[str], extra: list[str], config: TableConfig
) -> Diagnostic:
    """Report columns of one table that most others have, or do not have."""
    parts = []
    if lacking:
        parts.append(f"lacks {list_names(lacking)}")
    if extra:
        parts.append(f"alone has {list_names(extra)}")
    advice = "name columns alike, or leave them out (--ignore-columns)"
    target = f"{config.target} {config.event}"
    ignorable = ",".join(name for name in [*lacking, *extra] if name not in target)
    option = f"--ignore-columns {ignorable}" if ignorable else ""
    return Diagnostic(f"{' and '.join(parts)}: {advice}", True, owner, option=option)


def _drop(tables: ClientTables, names: frozenset[str]) -> ClientTables:
    """Remove columns from all tables."""
    clients = {client: table.drop(names) for client, table in tables.clients.items()}
    server = None if tables.server is None else tables.server.drop(names)
    return ClientTables(clients, server, tables.source)


# -------------------------------------------------------------------------------------- one table


def read_table(path: Path, client_column: str = "") -> Table:
    """Read one CSV or Parquet file.

    Args:
        path: The file.
        client_column: The column that names clients, if there is one.

    Raises:
        UsageError: If the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise UsageError(f"'{path}' is neither .csv nor .parquet")
    return READERS[suffix](path, client_column)


def table_from_values(values: Any, source: str = "the table", client_column: str = "") -> Table:
    """Convert a pandas or Arrow table, or a mapping of column names to values.

    Args:
        values: The table; a `Table` is returned as it is.
        source: The name of the table in errors.
        client_column: The column that names clients, if there is one.

    Returns:
        The table, with rows numbered from 1.

    Raises:
        UsageError: If the values are no table.
    """
    if isinstance(values, Table):
        return values
    if hasattr(values, "column_names"):
        pairs = [(name, values.column(i)) for i, name in enumerate(values.column_names)]
        read: Callable[[Any, str], Column] = _column_from_arrow
    elif isinstance(values, Mapping) or hasattr(values, "columns"):
        names = values if isinstance(values, Mapping) else values.columns
        pairs = [(name, values[name]) for name in names]
        read = column_from_values
    else:
        raise UsageError(
            f"{source} is a {type(values).__name__}: must be a table of pandas or Arrow, or columns by name"
        )
    columns = {}
    try:
        for name, cells in pairs:
            if str(name) == client_column:
                columns[str(name)] = column_from_names(_client_names(cells))
            else:
                columns[str(name)] = read(cells, f"column '{name}'")
    except (TypeError, ValueError) as error:
        raise UsageError(f"{source} cannot be read: {error}") from error
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"{source} has columns of different lengths: {lengths}")
    num_rows = next(iter(lengths.values()), 0)
    return Table(columns, np.arange(1, num_rows + 1))


def _client_names(values: Any) -> list[str]:
    """Convert values of any type to names; missing values become empty."""
    values = values.to_pylist() if hasattr(values, "to_pylist") else values
    names = []
    for value in values:
        if value is None or value != value:
            names.append("")
        else:
            names.append(format_number(value) if isinstance(value, float) else str(value))
    return names


def _column_from_arrow(cells: Any, source: str) -> Column:
    """Read a column of an Arrow table."""
    pa = pyarrow()
    types = pa.types
    if types.is_dictionary(cells.type):
        return _column_from_arrow(cells.cast(cells.type.value_type), source)
    if types.is_decimal(cells.type):
        cells = cells.cast(pa.float64())
    elif types.is_timestamp(cells.type):
        cells = cells.cast(pa.timestamp("s"), safe=False)
    has_text_form = (types.is_date, types.is_time, types.is_large_string, types.is_string_view)
    if any(is_type(cells.type) for is_type in has_text_form) or (
        types.is_boolean(cells.type) and cells.null_count
    ):
        cells = cells.cast(pa.string())
    if types.is_string(cells.type):
        return column_from_texts(cells)
    return column_from_values(cells.to_numpy(), source)


def _read_parquet(path: Path, client_column: str) -> Table:
    """Read a Parquet file."""
    pa = pyarrow()
    try:
        table = needs("pyarrow.parquet", "reading tables").read_table(path)
        return table_from_values(table, f"'{path}'", client_column)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error


# -------------------------------------------------------------------------------------- CSV files


def read_csv(path: Path, client_column: str = "") -> Table:
    """Read a CSV file; the encoding, the separator and the decimal mark are detected.

    All columns are read as texts by pyarrow; `column_from_texts` finds the numbers. Rows are
    numbered as in a spreadsheet, where the column names are row 1. Python's csv module is used
    for the column names, and to explain what is wrong with a file.

    Args:
        path: The file.
        client_column: The column that names clients, if there is one.

    Raises:
        UsageError: If the file cannot be read.
    """
    memory_pool = pyarrow().default_memory_pool()
    data = _read_bytes(path)
    head = _first_lines(data)
    if "\ufffd" in head:
        _decode(data, path)
    separator = _detect_separator(head)
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
    if b"\0" in data:
        raise UsageError(f"'{path}' cannot be read: it is no text file")
    if data.startswith(codecs.BOM_UTF8):
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
            f"(near '{near.partition(chr(10))[0].strip()}' if it is of Windows): save it as CSV UTF-8"
        ) from error


def _first_lines(data: bytes) -> str:
    """Decode the first rows."""
    num_bytes = 2**16
    while True:
        lines = data[:num_bytes].decode("utf-8", "replace").splitlines(keepends=True)
        if len(lines) > NUM_DETECTION_ROWS or num_bytes >= len(data):
            return "".join(lines[:NUM_DETECTION_ROWS])
        num_bytes *= 4


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
    if not any(header):
        raise UsageError(f"'{path}' cannot be read: it has no line of column names")
    names = [name.strip() or f"(column {i})" for i, name in enumerate(header, start=1)]
    if duplicates := sorted(name for name, count in Counter(names).items() if count > 1):
        quoted = ", ".join(map(repr, duplicates))
        raise UsageError(f"'{path}' cannot be read: it has several columns named {quoted}")
    return names


def _read_cells(data: bytes, separator: str, num_columns: int, path: Path) -> tuple[Any, Ints]:
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
    pa = pyarrow()
    arrow_csv = needs("pyarrow.csv", "reading tables")
    has_quotes = b'"' in data
    if has_quotes and not _quotes_are_regular(data, separator):
        _check_rows(data, separator, num_columns, path)
    skipped_rows: list[Any] = []
    keys = [str(i) for i in range(num_columns)]

    def parse(block_size: int) -> Any:
        """Parse all rows as texts."""
        skipped_rows.clear()
        return arrow_csv.read_csv(
            pa.BufferReader(data),
            # One thread: 125 MB take half a second, and more threads take 50 MB more.
            read_options=arrow_csv.ReadOptions(
                column_names=keys,
                skip_rows_after_names=1,
                block_size=block_size,
                use_threads=False,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=separator,
                newlines_in_values=has_quotes,
                invalid_row_handler=handle_bad_row,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(keys, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )

    def handle_bad_row(row: Any) -> str:
        """Skip rows of empty cells, however many; fail at others."""
        if any(next(csv.reader([row.text], delimiter=separator))):
            return "error"
        skipped_rows.append(row)
        return "skip"

    try:
        cells = parse(CHUNK_BYTES)
    except pa.ArrowInvalid:
        _check_rows(data, separator, num_columns, path)
        try:
            cells = parse(len(data))  # a row may be longer than a block
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"'{path}' cannot be read: {reason}") from error
    has_blank_lines = _has_blank_lines(data)
    is_empty = _all_null(cells)
    if is_empty.any():
        cells = cells.filter(pa.array(~is_empty))
    if has_blank_lines or skipped_rows:
        return cells, _number_rows(data, separator)
    return cells, np.flatnonzero(~is_empty) + 2


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


def _has_blank_lines(data: bytes) -> bool:
    """Whether there are blank lines before the end of a file, or within cells."""
    end = len(data)
    while end and data[end - 1] in b"\r\n":
        end -= 1
    return any(data.find(blank, 0, end) >= 0 for blank in (b"\n\n", b"\n\r\n", b"\r\r"))


def _all_null(cells: Any) -> NDArray[np.bool_]:
    """Whether all cells of a row are null `[n]`."""
    is_empty = np.ones(len(cells), np.bool_)
    for column in cells.columns:
        if not column.null_count:
            return np.zeros(len(cells), np.bool_)
        is_empty &= column.is_null().to_numpy()
    return is_empty


def _number_rows(data: bytes, separator: str) -> Ints:
    """Number the rows that have content, where others lie between them."""
    lines = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=separator)
    numbers = [number for number, line in enumerate(lines, start=1) if any(line)]
    return np.array(numbers[1:], np.int64)


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


READERS: dict[str, Callable[[Path, str], Table]] = {".csv": read_csv, ".parquet": _read_parquet}
