"""Tables: columns of equal length, and the tables of all clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.data.federated_dataset import Ints
from equipoise.data.tabular.columns import Column, RowIndex, concat_columns

TableLike = Any
"""A `Table`, a frame of pandas or Arrow, or a mapping of column names to values."""


@dataclass(frozen=True)
class Table:
    """The rows of one client or of the server.

    Attributes:
        columns: Columns of equal length by name.
        row_numbers: The number of each row in its file or frame `[n]`, for messages.
        split: The split of each row as an index of `SPLITS` `[n]`, if a column gives it.
        origin: The number of the client that each row came from `[n]`, in a pool of small clients.
    """

    columns: Mapping[str, Column]
    row_numbers: Ints
    split: Ints | None = None
    origin: Ints | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.row_numbers)

    def take(self, rows: RowIndex) -> Table:
        """Select rows by a slice (views) or by indices (copies)."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        split = None if self.split is None else self.split[rows]
        origin = None if self.origin is None else self.origin[rows]
        return Table(columns, self.row_numbers[rows], split, origin)

    def drop(self, names: frozenset[str]) -> Table:
        """Remove columns; names that the table does not have are ignored."""
        columns = {name: column for name, column in self.columns.items() if name not in names}
        return Table(columns, self.row_numbers, self.split, self.origin)


@dataclass(frozen=True)
class ClientTables:
    """The tables of all clients.

    Attributes:
        clients: One table per client, by the client's name.
        server: The server's own rows, if it has any.
        source: The name of the tables in messages: the file or folder.
        served_by: For each client that is no longer here, the pool that it is part of; empty if
            it was left out.
    """

    clients: Mapping[str, Table]
    server: Table | None = None
    source: str = "the tables"
    served_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, in order."""
        return tuple(self.clients)


def concat_tables(tables: Sequence[Table]) -> Table:
    """Concatenate the rows of several tables that have the same columns; keep their origin."""
    names = tables[0].columns
    columns = {name: concat_columns([table.columns[name] for table in tables]) for name in names}
    splits = [table.split for table in tables if table.split is not None]
    row_numbers = np.concatenate([table.row_numbers for table in tables])
    origin = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return Table(columns, row_numbers, np.concatenate(splits) if splits else None, origin)
