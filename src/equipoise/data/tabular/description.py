"""Describe the tables of all clients before a run: columns, clients, and all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.columns import MISSING_NUMBER_TEXTS
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.dates import SECONDS_PER_DAY, Floats
from equipoise.data.tabular.diagnostics import Diagnostic, list_rows
from equipoise.data.tabular.exchange import FittedColumns
from equipoise.data.tabular.pipeline import prepare_tables
from equipoise.data.tabular.preprocessing import Category, Date, DroppedColumn, Encoder, Number
from equipoise.data.tabular.statistics import moments
from equipoise.data.tabular.table import ClientTables, Table

MAX_LISTED_CATEGORIES = 6
MIN_MAJORITY_SHARE = 0.8  # of the rows in one of two classes, from which accuracy misleads
MAX_LISTED_TEXTS = 3


@dataclass(frozen=True)
class ColumnDescription:
    """One column.

    Attributes:
        name: The column.
        kind: What it becomes: number, category, date or left out.
        values: Its values, or the reason why it is left out.
        missing: Share of missing cells in all rows.
        missing_at: Clients with missing cells and their shares, the largest first.
    """

    name: str
    kind: str
    values: str
    missing: float
    missing_at: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ClientDescription:
    """One client.

    Attributes:
        name: The client.
        rows: The number of its rows.
        without_target: Rows without a target.
        classes: Rows of each class.
        mean: The mean of a regression's target; of survival, the share of events.
    """

    name: str
    rows: int
    without_target: int
    classes: tuple[int, ...] = ()
    mean: float | None = None


@dataclass(frozen=True)
class Description:
    """The tables of all clients.

    Attributes:
        source: The file or folder.
        target: The target; None if there are problems with it.
        clients: The clients.
        columns: The input columns, in the order of the table.
        findings: Problems and notes.
    """

    source: str
    target: Target | None
    clients: tuple[ClientDescription, ...]
    columns: tuple[ColumnDescription, ...]
    findings: tuple[Diagnostic, ...]

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """The problems that stop a run."""
        return tuple(diagnostic for diagnostic in self.findings if diagnostic.is_problem)


def describe_tables(
    tables: ClientTables,
    config: TableConfig,
    rng: np.random.Generator,
    diagnostics: Sequence[Diagnostic] = (),
) -> Description:
    """Describe what a run would train on, without running it.

    Args:
        tables: The raw tables of all clients.
        config: Options of tables.
        rng: Draws the splits, like that of the run.
        diagnostics: Problems and notes from reading the files.

    Returns:
        Clients, columns, target and problems.
    """
    prepared = prepare_tables(tables, config, rng, diagnostics)
    fitted = prepared.fitted
    names = list(next(iter(tables.clients.values())).columns)
    columns = [
        _describe_column(column, prepared.tables) for column in (*fitted.encoders, *fitted.dropped)
    ]
    columns.sort(key=lambda column: names.index(column.name))
    served_by = prepared.tables.served_by
    num_raw_rows = Counter[str]()
    for name, table in tables.clients.items():
        num_raw_rows[served_by.get(name, name)] += len(table)
    clients = [
        _describe_client(name, num_raw_rows[name], table, fitted)
        for name, table in prepared.tables.clients.items()
    ]
    unread = _unread_numbers(prepared.tables, fitted, prepared.diagnostics)
    return Description(
        tables.source,
        fitted.target,
        tuple(clients),
        tuple(columns),
        (*prepared.diagnostics, *unread, *_check_balance(clients, fitted.target)),
    )


def with_notes_of(description: Description, solved: Description) -> Description:
    """Add the notes that a description makes once the problems are solved.

    Args:
        description: The description, with problems.
        solved: That of the same tables with options that solve them.

    Returns:
        The first description with the further notes of the second.
    """
    known = set(map(str, description.findings))
    notes = [one for one in solved.findings if not one.is_problem and str(one) not in known]
    return replace(description, findings=(*description.findings, *notes))


def _check_balance(clients: Sequence[ClientDescription], target: Target | None) -> list[Diagnostic]:
    """Report that one of two classes is so frequent that accuracy says little."""
    if target is None or len(target.classes) != 2:
        return []
    counts = np.array([client.classes for client in clients if client.classes]).sum(0)
    share = counts.max() / max(1, counts.sum())
    if share < MIN_MAJORITY_SHARE:
        return []
    message = (
        f"{100 * share:.0f} % of the rows are of class '{target.classes[counts.argmax()]}', and a "
        "constant has that accuracy: --metric auc scores whether rows are put in the right order"
    )
    return [Diagnostic(message, option="--metric auc")]


def _unread_numbers(
    tables: ClientTables, fitted: FittedColumns, known: Sequence[Diagnostic]
) -> list[Diagnostic]:
    """Report cells of number columns that are no numbers in rows that are not trained on.

    Those of training rows are known from the sums that clients send.

    Args:
        tables: All rows of all clients.
        fitted: What columns become.
        known: What was reported before.
    """
    reported = {(one.client, one.column) for one in known}
    diagnostics = []
    for name in [column.name for column in fitted.encoders if isinstance(column, Number)]:
        for client, table in tables.clients.items():
            codes, texts = table.columns[name].labels
            is_text = np.isnan(table.columns[name].numbers) & (codes >= 0)
            rows = [
                (texts[codes[row]], int(table.row_numbers[row]))
                for row in np.flatnonzero(is_text)
                if texts[codes[row]].lower() not in MISSING_NUMBER_TEXTS
            ]
            if not rows or (client, name) in reported:
                continue
            examples = ", ".join(sorted({repr(text) for text, _ in rows})[:MAX_LISTED_TEXTS])
            where = list_rows([number for _, number in rows])
            text = f"{examples} in {where} is no number: taken as missing"
            diagnostics.append(Diagnostic(text, False, client, name))
    return diagnostics


def _describe_column(column: Encoder | DroppedColumn, tables: ClientTables) -> ColumnDescription:
    """Describe the values of a column, and where they are missing."""
    num_missing = {}
    for client, table in tables.clients.items():
        cells = table.columns[column.name]
        is_missing = cells.missing
        if not isinstance(column, DroppedColumn):
            is_missing = column.is_missing(cells)
        num_missing[client] = int(is_missing.sum())
    total = sum(map(len, tables.clients.values()))
    shares = [
        (client, count / len(tables.clients[client]))
        for client, count in num_missing.items()
        if count
    ]
    shares.sort(key=lambda pair: -pair[1])
    missing = sum(num_missing.values()) / total if total else 0.0
    kind, values = _describe_values(column, tables)
    return ColumnDescription(column.name, kind, values, missing, tuple(shares))


def _describe_values(column: Encoder | DroppedColumn, tables: ClientTables) -> tuple[str, str]:
    """Return what a column becomes, and its values in words."""
    if isinstance(column, DroppedColumn):
        return "left out", column.reason
    cells = [table.columns[column.name] for table in tables.clients.values()]
    if isinstance(column, Number):
        low, high = _range([cell.numbers for cell in cells])
        return "number", f"{low:.5g} to {high:.5g}, median {column.median:.5g}"
    if isinstance(column, Date):
        low, high = _range([cell.days(column.format) for cell in cells])
        return "date", f"{_format_day(low, column)} to {_format_day(high, column)}"
    return "category", _list_categories(column)


def _range(parts: Sequence[Floats]) -> tuple[float, float]:
    """Return the smallest and the largest value of all clients; NaN is ignored."""
    low = min(float(np.fmin.reduce(part, initial=np.inf)) for part in parts)
    high = max(float(np.fmax.reduce(part, initial=-np.inf)) for part in parts)
    return low, high


def _list_categories(column: Category) -> str:
    """List the first categories."""
    text = ", ".join(column.values[:MAX_LISTED_CATEGORIES])
    num_more = len(column.values) - MAX_LISTED_CATEGORIES
    if num_more > 0:
        text += f" and {num_more} more"
    return text + (", rare ones together" if column.has_other else "")


def _format_day(day: float, column: Date) -> str:
    """Format a day as a date, or as a time of day."""
    if column.format == "hour:minute":
        minutes = round(day * 24 * 60)
        return f"{minutes // 60}:{minutes % 60:02}"
    date_format = "%Y-%m-%d %H:%M" if column.has_time else "%Y-%m-%d"
    return datetime.fromtimestamp(day * SECONDS_PER_DAY, UTC).strftime(date_format)


def _describe_client(
    client: str, num_rows: int, table: Table, fitted: FittedColumns
) -> ClientDescription:
    """Describe the targets of a client.

    Args:
        client: The client's name.
        num_rows: Its rows, with and without a target.
        table: Its rows with a target, if the target is known.
        fitted: What the target is.
    """
    target = fitted.target
    if fitted.spec is None or target is None or not len(table):
        return ClientDescription(client, num_rows, num_rows - len(table))
    y = fitted.spec.read(table, target)
    num_unknown = num_rows - len(table)
    if target.kind == "classification":
        counts = np.bincount(y[y >= 0], minlength=len(target.classes))
        return ClientDescription(client, num_rows, num_unknown, tuple(counts.tolist()))
    last_column = y.reshape(len(y), -1)[:, -1].astype(np.float64)
    return ClientDescription(client, num_rows, num_unknown, mean=moments(last_column).mean)
