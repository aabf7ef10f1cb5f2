"""A table of one owner, and those of all: from files, or from values in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.data.federated_dataset import Ints
from equipoise.data.tables.cells import Column, of_names, of_values, spelled
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Table:
    """Columns of one length, by name, and the number of each row where it comes from."""

    columns: Mapping[str, Column]
    row: Ints
    split: Ints | None = None
    """Where each row belongs, as a place in :data:`SPLITS`, if the table says so itself."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Any) -> Table:
        split = None if self.split is None else self.split[rows]
        return Table(
            {name: column.take(rows) for name, column in self.columns.items()},
            self.row[rows],
            split,
        )

    def without(self, names: frozenset[str]) -> Table:
        return Table(
            {name: column for name, column in self.columns.items() if name not in names},
            self.row,
            self.split,
        )


def table_of(values: Any, where: str = "the table", client: str = "") -> Table:
    """A pandas or Arrow table, or a mapping of column names to values, as a table; rows are numbered from 1."""
    if isinstance(values, Table):
        return values
    if hasattr(values, "column_names"):  # Arrow
        pairs = [
            (name, _arrow(values.column(place))) for place, name in enumerate(values.column_names)
        ]
    elif isinstance(values, Mapping) or hasattr(values, "columns"):  # pandas
        pairs = [
            (name, values[name])
            for name in (values if isinstance(values, Mapping) else values.columns)
        ]
    else:
        raise UsageError(
            f"{where} is a {type(values).__name__}: must be a table of pandas or Arrow, or columns by name"
        )
    try:
        columns = {str(name): _column(column, str(name), client) for name, column in pairs}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} cannot be read: {error}") from error
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"{where} has columns of different lengths: {lengths}")
    return Table(columns, np.arange(1, next(iter(lengths.values()), 0) + 1))


def _column(values: Any, name: str, client: str) -> Column:
    column = of_values(values, f"column '{name}'")
    if name != client:
        return column
    return of_names(["" if value is None or value != value else _name(value) for value in values])


def _name(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else spelled(value)
        if isinstance(value, float)
        else str(value)
    )


def _arrow(column: Any) -> Any:
    """Categories as their values, decimal numbers as floats, moments as NumPy's, other times as texts."""
    kind = str(column.type)
    if kind.startswith("dictionary"):
        return _arrow(column.cast(column.type.value_type))
    if kind.startswith("decimal"):
        column = column.cast("float64")
    elif kind.startswith("timestamp"):
        column = column.cast("timestamp[s]", safe=False)
    elif kind.startswith(("date", "time")) or (kind == "bool" and column.null_count):
        column = column.cast("string")
    return column.to_numpy()


@dataclass(frozen=True)
class Tables:
    """Everybody's rows: one table per client, by name, and the server's own if it has one."""

    clients: Mapping[str, Table]
    server: Table | None = None
    source: str = "the tables"
    """What errors call them: the file or folder."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.clients)


def tables_of(clients: Mapping[str, Any], server: Any = None) -> Tables:
    """Tables of clients in Python, by the clients' names."""
    if not clients:
        raise UsageError("there are no clients: give at least one table")
    named = {
        str(name): table_of(values, f"the table of client '{name}'")
        for name, values in clients.items()
    }
    return Tables(named, None if server is None else table_of(server, "the server's table"))
