"""From raw rows to a model's input: what was learned of the columns of all clients, ready for new rows too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Target
from equipoise.data.tables.cells import Column, Floats
from equipoise.data.tables.dates import parts, parts_of, read_days
from equipoise.data.tables.rule import Rule
from equipoise.data.tables.table import Table, table_of
from equipoise.data.tables.typed import of_json, to_json
from equipoise.utils.errors import UsageError

VERSION = 1


@dataclass(frozen=True)
class Number:
    """A measurement: missing ones become the median, then all are shifted and scaled."""

    name: str
    median: float
    mean: float
    scale: float
    missing: bool
    """Whether a column tells which values were missing."""

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, column: Column) -> Floats:
        """The numbers before shifting and scaling."""
        return np.where(np.isnan(column.number), self.median, column.number)

    def encode(self, column: Column) -> Floats:
        return ((self.values(column) - self.mean) / self.scale)[:, None]


@dataclass(frozen=True)
class Category:
    """One column of 0 and 1 per value; a value that no client had is 0 in all. Of two values, the second's suffices."""

    name: str
    values: tuple[str, ...]
    frequent: str
    """The most frequent value, which stands in for missing ones."""
    other: bool
    """Whether rare values have a column together."""
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        named = self.values if self.other or len(self.values) != 2 else self.values[1:]
        return tuple(
            f"{self.name} = {value}" for value in (*named, *(["(other)"] if self.other else []))
        )

    def encode(self, column: Column) -> Floats:
        codes, texts = column.labels
        place = {value: i for i, value in enumerate(self.values)}
        rest = len(self.values)
        at = np.array([*(place.get(text, rest) for text in texts), place[self.frequent]])[codes]
        hot: Floats = np.eye(rest + 1)[at, : rest + self.other]
        return hot[:, -len(self.features) :]


@dataclass(frozen=True)
class Date:
    """A moment: its day as a number, and where it lies in its year, week and day. Missing ones are the mean of all."""

    name: str
    form: str
    timed: bool
    middle: float
    mean: float
    scale: float
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name, *(f"{self.name} ({part})" for part in parts_of(self.form, self.timed)))

    def values(self, column: Column) -> Floats:
        days = read_days(column.texts, self.form)[column.code]
        return np.where(np.isnan(days), self.middle, days)

    def encode(self, column: Column) -> Floats:
        days = self.values(column)
        return np.concatenate(
            [((days - self.mean) / self.scale)[:, None], parts(days, self.form, self.timed)], 1
        )


PreparedColumn = Number | Category | Date


@dataclass(frozen=True)
class LeftOut:
    """A column that no model sees, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class OwnScale:
    """Mean and deviation of one client's own numbers, where each client is standardised by itself."""

    client: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]


@dataclass(frozen=True)
class Preparation:
    """Everything that it takes to use a model of this federation on new rows."""

    version: int
    columns: tuple[PreparedColumn, ...]
    left_out: tuple[LeftOut, ...]
    rule: Rule
    target: Target
    clients: tuple[str, ...]
    own: tuple[OwnScale, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        extra = tuple(f"{column.name} is missing" for column in self.columns if column.missing)
        return tuple(name for column in self.columns for name in column.features) + extra

    def prepare(self, rows: Any, client: str | None = None) -> NDArray[np.float32]:
        """Raw rows (a table of pandas or Arrow, or columns by name) as the model takes them."""
        table = table_of(rows)
        if lacking := self.lacking(table):
            raise UsageError(f"the rows lack columns that the model needs: {quoted(lacking)}")
        given = [table.columns[column.name] for column in self.columns]
        parts = [
            column.encode(cells)
            for column, cells in zip(self.of(client).columns, given, strict=True)
        ]
        for column, cells in zip(self.columns, given, strict=True):
            if column.missing:
                parts.append(unread(column, cells)[:, None].astype(np.float64))
        return np.concatenate([np.zeros((len(table), 0)), *parts], axis=1).astype(np.float32)

    def lacking(self, table: Table) -> list[str]:
        """Columns that the model needs and these rows do not have."""
        return [column.name for column in self.columns if column.name not in table.columns]

    def targets(self, table: Table) -> NDArray[Any]:
        """The ``y`` of rows whose target is known; see :class:`~equipoise.data.federated_dataset.Target`."""
        return self.rule.read(table, self.target)

    def rows(self, table: Table, where: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """``x`` and ``y`` of the rows whose target is known; a class that no client had is refused."""
        absent = [name for name in self.rule.columns if name not in table.columns]
        if absent:
            raise UsageError(f"{where} lack the column to be predicted, '{absent[0]}'")
        known = table.take(np.flatnonzero(self.rule.known(table, self.target.kind)))
        y = self.targets(known)
        if self.target.kind == "classification" and (y < 0).any():
            row = int(known.row[np.argmax(y < 0)])
            raise UsageError(
                f"row {row} of {where} has a class that no client had: correct or remove it"
            )
        return self.prepare(known), y

    def of(self, client: str | None) -> Preparation:
        """The same, standardised by this client's own numbers if it has such."""
        own = next((scale for scale in self.own if scale.client == client), None)
        if own is None:
            return self
        scales = iter(zip(own.mean, own.scale, strict=True))
        columns = []
        for column in self.columns:
            if isinstance(column, Number | Date):
                mean, scale = next(scales)
                column = replace(column, mean=mean, scale=scale)
            columns.append(column)
        return replace(self, columns=tuple(columns))

    def write(self) -> str:
        return to_json(self)

    @staticmethod
    def read(file: Path) -> Preparation:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{file}' cannot be read: {error}") from error
        return Preparation.of_text(text, f"'{file}'")

    @staticmethod
    def of_text(text: str, where: str) -> Preparation:
        """The inverse of :meth:`write`."""
        found = of_json(Preparation, text, where)
        if found.version != VERSION:
            raise UsageError(
                f"{where} is of version {found.version}, this program reads version {VERSION}"
            )
        return found


def quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def unread(column: PreparedColumn, cells: Column) -> NDArray[np.bool_]:
    """Which cells count as missing once it is known what the column holds."""
    if isinstance(column, Number):
        return np.isnan(cells.number)
    if isinstance(column, Date):
        return np.isnan(read_days(cells.texts, column.form)[cells.code])
    return cells.missing


def own_scale(client: str, columns: tuple[PreparedColumn, ...], table: Table) -> OwnScale:
    """One client's means and deviations, after missing values are filled."""
    values = [c.values(table.columns[c.name]) for c in columns if isinstance(c, Number | Date)]
    deviations = [float(value.std()) for value in values]
    return OwnScale(
        client,
        tuple(float(v.mean()) for v in values),
        tuple(d if d > 0 else 1.0 for d in deviations),
    )
