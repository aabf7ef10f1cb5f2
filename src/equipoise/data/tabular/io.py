"""Read tables: CSV and Parquet files, spreadsheets, and frames of pandas, Arrow or Python."""

from __future__ import annotations

import csv
import importlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from equipoise.data.sources import import_extra
from equipoise.data.tabular._arrow import ArrowArray, arrow_parquet, pa
from equipoise.data.tabular.clients import read_split_column
from equipoise.data.tabular.columns import (
    PLAIN_NUMBER,
    Column,
    column_from_names,
    column_from_texts,
    column_from_values,
    format_number,
)
from equipoise.data.tabular.config import TableConfig, parse_names
from equipoise.data.tabular.csv_reader import parse_csv, read_csv
from equipoise.data.tabular.diagnostics import Diagnostic, list_names, list_rows, raise_problems
from equipoise.data.tabular.table import ClientTables, Table, TableLike
from equipoise.utils.errors import UsageError, did_you_mean, install_hint

SERVER = "server"
"""The name of the file in a folder (or table in Python) that holds the server's own rows."""
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


# ------------------------------------------------------------------------- tables of all clients


def read_tables(path: Path, client_column: str, config: TableConfig) -> ClientTables:
    """Read the rows of all clients.

    Args:
        path: A folder with one file per client (see `READERS`), or one file with a client column.
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
    """Read the rows of all clients like `read_tables`, but return problems instead of raising.

    Args:
        path: A folder with one file per client, or one file.
        client_column: The column that names the client, in one file.
        config: Options of reading.

    Returns:
        The tables, and diagnostics.

    Raises:
        UsageError: If there is no such file or folder.
    """
    import_extra("pyarrow", "reading tables")
    if path.is_dir():
        tables, diagnostics = _read_folder(path)
    elif path.is_file():
        table = read_table(path, client_column)
        tables, diagnostics = split_by_client(
            table, client_column, f"'{path}'", config.missing_site
        )
    else:
        raise UsageError(
            f"there is no file or folder '{path}': "
            "give --data a folder of CSV or Parquet files, or one file"
        )
    return _align(tables, diagnostics, config)


def tables_from_values(clients: Mapping[str, TableLike], server: TableLike = None) -> ClientTables:
    """Convert tables in Python.

    Args:
        clients: A table for each client's name; see `table_from_values`.
        server: The server's table, if it has one.

    Returns:
        The tables of all clients.

    Raises:
        UsageError: If there are no clients.
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
    table: Table, client_column: str, source: str, missing_site: str = "refuse"
) -> tuple[ClientTables, list[Diagnostic]]:
    """Split the rows of one table by the column that names the client.

    Args:
        table: The rows of all clients.
        client_column: The column that names the client.
        source: The name of the table in messages.
        missing_site: Whether to `refuse` or `drop` rows without a client.

    Returns:
        The tables, whose columns are views of one array each, and diagnostics.

    Raises:
        UsageError: If the table has no such column, or no row with a client.
    """
    if client_column not in table.columns:
        columns = ", ".join(map(repr, table.columns))
        raise UsageError(
            f"{source} has no client column '{client_column}'"
            f"{did_you_mean(client_column, table.columns)}: see --client-column (it has {columns})"
        )
    codes, names = table.columns[client_column].labels
    diagnostics = []
    if (codes < 0).any():
        rows = list_rows(table.row_numbers[codes < 0].tolist())
        if missing_site == "drop":
            message = f"has no client in {int((codes < 0).sum())} rows, which are left out: {rows}"
            diagnostics.append(Diagnostic(message, column=client_column))
        else:
            message = f"has no client in {rows}: fill it, or leave these rows out"
            option = "--missing-site drop"
            message += f" ({option})"
            diagnostics.append(Diagnostic(message, True, column=client_column, option=option))
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
        suggestion = did_you_mean(unknown[0], known)
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
    """Read one CSV file, Parquet file or spreadsheet.

    Args:
        path: The file.
        client_column: The column that names clients, if there is one.

    Returns:
        The table.

    Raises:
        UsageError: If the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise UsageError(f"'{path}' is neither .csv nor .parquet")
    return READERS[suffix](path, client_column)


def table_from_values(
    values: TableLike, source: str = "the table", client_column: str = ""
) -> Table:
    """Convert a table of pandas, polars, Arrow or the like, or a mapping of names to values.

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
    if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "iloc"):
        values = pa.table(values)  # polars and other frames; pandas has its own types
    if hasattr(values, "column_names"):
        pairs = [(name, values.column(i)) for i, name in enumerate(values.column_names)]
        read: Callable[[ArrowArray, str], Column] = _column_from_arrow
    elif isinstance(values, Mapping) or hasattr(values, "columns"):
        names = values if isinstance(values, Mapping) else values.columns
        pairs = [(name, values[name]) for name in names]
        read = column_from_values
    else:
        raise UsageError(
            f"{source} is a {type(values).__name__}: "
            "must be a table of pandas or Arrow, or columns by name"
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


def _client_names(values: ArrowArray | Iterable[object]) -> list[str]:
    """Convert values of any type to names; missing values become empty."""
    values = values.to_pylist() if hasattr(values, "to_pylist") else values
    names = []
    for value in values:
        if value is None or value != value:
            names.append("")
        else:
            names.append(format_number(value) if isinstance(value, float) else str(value))
    return names


def _column_from_arrow(cells: ArrowArray, source: str) -> Column:
    """Read a column of an Arrow table."""
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
    try:
        table = arrow_parquet.read_table(path)
        return table_from_values(table, f"'{path}'", client_column)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error


def _read_spreadsheet(path: Path, client_column: str) -> Table:
    """Read the sheet of a spreadsheet that has rows, as if it had been saved as CSV."""
    save_as_csv = "save the sheet as 'CSV UTF-8' (File, Save as) and give that file"
    try:
        calamine = importlib.import_module("python_calamine")
    except ImportError as error:
        raise UsageError(
            f"'{path}' is a spreadsheet: {save_as_csv}, or {install_hint('excel')}"
        ) from error
    try:
        with calamine.CalamineWorkbook.from_path(path) as workbook:
            sheets = {
                name: workbook.get_sheet_by_name(name).to_python(skip_empty_area=False)
                for name in workbook.sheet_names
            }
    except (OSError, ValueError, calamine.CalamineError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}; {save_as_csv}") from error
    filled = {name: rows for name, rows in sheets.items() if any(map(any, rows))}
    if not filled:
        raise UsageError(f"'{path}' has no rows: remove it or fill it")
    if len(filled) > 1:
        names = list_names(list(filled))
        raise UsageError(f"'{path}' has rows in several sheets, {names}: {save_as_csv}")
    text = io.StringIO()
    writer = csv.writer(text)
    for row in next(iter(filled.values())):
        writer.writerow([_cell_text(cell) for cell in row])
    return parse_csv(text.getvalue().encode(), ",", path, client_column)


def _cell_text(cell: object) -> str:
    """Write a cell of a spreadsheet as in a CSV file; whole numbers have no decimal point."""
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() else repr(cell)
    return str(cell)


READERS: dict[str, Callable[[Path, str], Table]] = {
    ".csv": read_csv,
    ".parquet": _read_parquet,
    **dict.fromkeys(SPREADSHEETS, _read_spreadsheet),
}
