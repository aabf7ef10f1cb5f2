"""A look at everybody's tables before any run: columns, clients, and all that is wrong, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from equipoise.data.federated_dataset import Target
from equipoise.data.tables.choices import TableChoices
from equipoise.data.tables.clients import together, with_small, with_targets
from equipoise.data.tables.dates import SECONDS, read_days
from equipoise.data.tables.exchange import decide_columns, kind_of, rule_of, statistics_of
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.preparation import (
    Category,
    Date,
    LeftOut,
    Number,
    PreparedColumn,
    unread,
)
from equipoise.data.tables.rule import Rule
from equipoise.data.tables.statistics import moments
from equipoise.data.tables.table import Table, Tables
from equipoise.data.tables.targets import decide_target
from equipoise.utils.errors import UsageError

NAMED = 6  # values of a category that are shown


@dataclass(frozen=True)
class ColumnView:
    """One column: what it becomes, what is in it, and where it is missing."""

    name: str
    kind: str
    values: str
    missing: float
    """Share of all rows."""
    missing_at: tuple[tuple[str, float], ...]
    """Clients that miss some, with their shares, the largest first."""


@dataclass(frozen=True)
class ClientView:
    """One client: its rows, and how its target is spread."""

    name: str
    rows: int
    without_target: int
    classes: tuple[int, ...]
    """Rows of each class."""
    mean: float | None
    """Of a regression's target; of survival, the share of rows whose event was seen."""


@dataclass(frozen=True)
class Description:
    """Everything that is to be said about tables."""

    source: str
    target: Target | None
    clients: tuple[ClientView, ...]
    columns: tuple[ColumnView, ...]
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.problem)


def describe(
    tables: Tables, choices: TableChoices, findings: Sequence[Finding] = ()
) -> Description:
    """``findings``: what is known already, from reading the files."""
    found = list(findings)
    names = tuple(next(iter(tables.clients.values())).columns)
    rule, target = None, None
    try:
        rule = rule_of(choices, names, tables.source)
    except UsageError as error:
        found.append(Finding(str(error), True))
    messages = [statistics_of(name, table, rule) for name, table in tables.clients.items()]
    if rule is not None:
        target, against = decide_target(messages, rule, choices)
        known, gone = with_targets(tables, rule, choices)
        found += [*against, *gone, *with_small(known, choices)[1]]
    columns, left_out, about = decide_columns(messages, choices)
    found += about
    whole = together(list(tables.clients.values()))
    views = [_view(column, whole, tables) for column in [*columns, *left_out]]
    order = {name: place for place, name in enumerate(names)}
    views.sort(key=lambda view: order[view.name])
    clients = [
        _client(name, table, rule, target, choices) for name, table in tables.clients.items()
    ]
    return Description(tables.source, target, tuple(clients), tuple(views), tuple(found))


def _view(column: PreparedColumn | LeftOut, whole: Table, tables: Tables) -> ColumnView:
    def gone(table: Table) -> float:
        cells = table.columns[column.name]
        return (
            float((cells.missing if isinstance(column, LeftOut) else unread(column, cells)).mean())
            if len(table)
            else 0.0
        )

    shares = [(name, share) for name, table in tables.clients.items() if (share := gone(table))]
    shares.sort(key=lambda pair: -pair[1])
    kind, values = _values(column, whole)
    return ColumnView(column.name, kind, values, gone(whole), tuple(shares))


def _values(column: PreparedColumn | LeftOut, whole: Table) -> tuple[str, str]:
    cells = whole.columns[column.name]
    if isinstance(column, Number):
        low, high = np.nanmin(cells.number), np.nanmax(cells.number)
        return "number", f"{low:.5g} to {high:.5g}, median {column.median:.5g}"
    if isinstance(column, Date):
        days = read_days(cells.texts, column.form)[cells.code]
        ends = (_day(day, column) for day in (np.nanmin(days), np.nanmax(days)))
        return "date", " to ".join(ends)
    if isinstance(column, Category):
        shown = ", ".join(column.values[:NAMED])
        more = len(column.values) - NAMED
        return "category", shown + (f" and {more} more" if more > 0 else "") + (
            ", rare ones together" if column.other else ""
        )
    return "left out", column.why


def _day(day: float, column: Date) -> str:
    if column.form == "hour:minute":
        minutes = round(day * 24 * 60)
        return f"{minutes // 60}:{minutes % 60:02}"
    return datetime.fromtimestamp(day * SECONDS, UTC).strftime(
        "%Y-%m-%d %H:%M" if column.timed else "%Y-%m-%d"
    )


def _client(
    name: str, table: Table, rule: Rule | None, target: Target | None, choices: TableChoices
) -> ClientView:
    if rule is None:
        return ClientView(name, len(table), 0, (), None)
    known = rule.known(table, kind_of(choices))
    gone = int((~known).sum())
    if target is None or not known.any():
        return ClientView(name, len(table), gone, (), None)
    y = rule.read(table.take(np.flatnonzero(known)), target)
    if target.kind == "classification":
        counts = np.bincount(y, minlength=len(target.classes))
        return ClientView(name, len(table), gone, tuple(counts.tolist()), None)
    return ClientView(
        name, len(table), gone, (), moments(y.reshape(len(y), -1)[:, -1].astype(np.float64)).mean
    )
