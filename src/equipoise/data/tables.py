"""CSV and Parquet: one file a client in a folder, or one file with a client column; column types are detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError, nearest
from equipoise.data.federation import Ints
from equipoise.data.own import OwnRows
from equipoise.data.source import needs

SUFFIXES = (".csv", ".parquet")
MOST_TEXTS = 50  # different texts in a column that is taken for a category
MOST_CLASSES = 1000
Columns = list[tuple[str, Any]]
"""Feature names, and for a category its values (``None`` for numbers)."""
Where = Callable[[int], str]
"""The words for a row, counted from 0 behind the line of names."""


def read(path: Path, label: str, client: str, ignore: tuple[str, ...]) -> tuple[OwnRows, list[str], Columns]:
    """Rows of all clients; also the clients' names and what each feature column is."""
    if path.is_dir():
        table, owner, names, server = _folder(path)
    elif path.is_file():
        table, owner, names = _one_file(path, client)
        ignore, server = (*ignore, client), None
    else:
        raise UsageError(
            f"there is no file or folder '{path}': give --data a folder of CSV or Parquet files, or one file"
        )
    for name in (label, *(column for column in ignore if column != client)):
        if name not in table.column_names:
            raise UsageError(f"'{path}' has no column '{name}'{nearest(name, table.column_names)}")
    features = [name for name in table.column_names if name != label and name not in ignore]
    if not features:
        raise UsageError(f"'{path}' has no feature columns beside '{label}'")
    row: Where = _row_of_a_folder(owner, names) if path.is_dir() else "row {}".format
    kinds: Columns = [(name, _kind(table[name], name, row)) for name in features]
    values = _classes(table[label], label, row)
    rows = _features(table, kinds, row), _codes(table[label], values, label)
    served = None
    if server is not None:
        served = _features(server, kinds, "row {} of the server's file".format), _codes(server[label], values, label)
    return OwnRows(*rows, owner, served, len(values), names, values), names, kinds


def features(rows: Any, kinds: Columns) -> NDArray[np.float32]:
    """New rows (a data frame, an Arrow table, columns by name, or a file) as the features that ``kinds`` describes."""
    table = _table(Path(rows)) if isinstance(rows, str | Path) else given(rows, "what is to be predicted")
    for name, _ in kinds:
        if name not in table.column_names:
            raise UsageError(f"the rows have no column '{name}'{nearest(name, table.column_names)}")
        if table[name].null_count:
            raise UsageError(f"column '{name}' has no value in row {_missing(table[name])}: fill it")
    return _features(table, kinds, "row {}".format)


def given(table: Any, where: str) -> Any:
    """A table that Python code holds, as an Arrow table."""
    pyarrow = needs("pyarrow", "reading tables")
    try:
        if hasattr(table, "iloc"):  # pandas, whose index is no column
            return _plain(pyarrow.Table.from_pandas(table, preserve_index=False))
        return _plain(pyarrow.table(table))
    except (TypeError, ValueError, pyarrow.ArrowException) as error:
        raise UsageError(
            f"{where} is no table: give a data frame, an Arrow table, or columns by name ({error})"
        ) from error


def _row_of_a_folder(owner: Ints, names: list[str]) -> Where:
    first = np.searchsorted(owner, np.arange(len(names)))
    return lambda row: f"row {row - first[owner[row]]} of file '{names[owner[row]]}'"


def _folder(path: Path) -> tuple[Any, Ints, list[str], Any]:
    """One file a client; a file named ``server`` holds the server's rows."""
    pyarrow = needs("pyarrow", "reading tables")
    paths = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    clients = [file for file in paths if file.stem != "server"]
    if not clients:
        raise UsageError(f"'{path}' holds no CSV or Parquet files")
    tables = [_table(file) for file in clients]
    for file, table in zip(clients, tables, strict=True):
        if set(table.column_names) != set(tables[0].column_names):
            odd = sorted(set(table.column_names) ^ set(tables[0].column_names))
            raise UsageError(f"'{file}' has other columns than '{clients[0]}': {', '.join(odd)}")
        if not table.num_rows:
            raise UsageError(f"'{file}' has no rows: remove it or fill it")
    owner = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    try:
        whole = pyarrow.concat_tables(tables, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise UsageError(f"the files in '{path}' hold a column with different types: {error}") from error
    server = next((_table(file) for file in paths if file.stem == "server"), None)
    if server is not None and set(server.column_names) != set(whole.column_names):
        raise UsageError(f"the server's file in '{path}' has other columns than the clients' files")
    return whole, owner, [file.stem for file in clients], server


def _one_file(path: Path, client: str) -> tuple[Any, Ints, list[str]]:
    table = _table(path)
    if client not in table.column_names:
        raise UsageError(
            f"'{path}' has no client column '{client}'{nearest(client, table.column_names)}: see --client-column"
        )
    if table[client].null_count or not table.num_rows:
        raise UsageError(f"'{path}' has rows without a client in column '{client}', or no rows at all")
    names, owner = np.unique(np.array([str(value) for value in table[client].to_pylist()]), return_inverse=True)
    return table, owner.astype(np.int64), names.tolist()


def _table(path: Path) -> Any:
    pyarrow = needs("pyarrow", "reading tables")
    try:
        if path.suffix.lower() == ".csv":
            csv = needs("pyarrow.csv", "reading CSV")
            missing = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
            return _plain(csv.read_csv(path, convert_options=missing))
        if path.suffix.lower() == ".parquet":
            return _plain(needs("pyarrow.parquet", "reading Parquet").read_table(path))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"'{path}' cannot be read: {reason}") from error
    raise UsageError(f"'{path}' is neither .csv nor .parquet")


def _plain(table: Any) -> Any:
    """Categories (as pandas writes them) as their values, decimal numbers as floats."""
    types, pyarrow = needs("pyarrow.types", "reading tables"), needs("pyarrow", "reading tables")
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if types.is_dictionary(column.type):
            table = table.set_column(place, name, column.cast(column.type.value_type))
        elif types.is_decimal(column.type):
            table = table.set_column(place, name, column.cast(pyarrow.float64()))
    return table


def _kind(column: Any, name: str, row: Where) -> Any:
    """``None`` for numbers; for texts, their different values in order."""
    types = needs("pyarrow.types", "reading tables")
    if column.null_count:
        raise UsageError(
            f"column '{name}' has no value in {row(_missing(column))}: fill it, or leave the column out "
            "(--ignore-columns)"
        )
    if types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type):
        return None
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise UsageError(f"column '{name}' holds {column.type}, not numbers or texts: use --ignore-columns {name}")
    values = sorted(column.unique().to_pylist())
    if len(values) > MOST_TEXTS:
        raise UsageError(
            f"column '{name}' holds {len(values)} different texts, too many for a category: use --ignore-columns {name}"
        )
    return values


def _missing(column: Any) -> int:
    return next(i for i, value in enumerate(column) if not value.is_valid)


def _features(table: Any, kinds: Columns, row: Where) -> NDArray[np.float32]:
    """Numbers as they are, a category as one column a value."""
    parts = []
    for name, values in kinds:
        if values is None:
            part = table[name].to_numpy().astype(np.float32)[:, None]
        else:
            part = (np.array(table[name].to_pylist())[:, None] == np.array(values)).astype(np.float32)
            if not part.any(1).all():  # only the server's file can hold what the clients do not
                raise UsageError(
                    f"column '{name}' holds a text that no client has in {row(int(np.argmin(part.any(1))))}"
                )
        if not np.isfinite(part).all():
            bad = int(np.argmin(np.isfinite(part).all(1)))
            raise UsageError(f"column '{name}' holds NaN or infinity in {row(bad)}: clean the data first")
        parts.append(part)
    return np.concatenate(parts, 1)


def _classes(column: Any, label: str, row: Where) -> list[Any]:
    if column.null_count:
        raise UsageError(f"label column '{label}' has no value in {row(_missing(column))}: fill or remove such rows")
    values = sorted(column.unique().to_pylist())
    fractions = any(isinstance(value, float) and not value.is_integer() for value in values)
    if fractions or len(values) > MOST_CLASSES:
        raise UsageError(f"label column '{label}' holds measurements, not classes: only classification is supported")
    if len(values) < 2:
        raise UsageError(f"label column '{label}' has one value only: there is nothing to tell apart")
    return values


def _codes(column: Any, values: list[Any], label: str) -> Ints:
    code = {value: number for number, value in enumerate(values)}
    try:
        return np.array([code[value] for value in column.to_pylist()], np.int64)
    except KeyError as error:
        raise UsageError(f"the server's file has the label {error} in '{label}', which no client has") from error
