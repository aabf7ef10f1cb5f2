"""Look for mistakes in tables before training: leaks, other codings, duplicates, lonely columns.

Every check but that of duplicates needs only the statistics that clients send before round 1, so
that it works where the rows stay at their owners. Findings are notes: they stop nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints, Kind
from equipoise.data.tabular.columns import Column, concat_columns, format_number
from equipoise.data.tabular.dates import FORMATS, Floats
from equipoise.data.tabular.diagnostics import (
    Diagnostic,
    list_groups,
    list_names,
    texts_alike,
)
from equipoise.data.tabular.preprocessing import Category, Encoder, Number
from equipoise.data.tabular.statistics import Association, ClientStatistics, ColumnStatistics
from equipoise.data.tabular.table import Table
from equipoise.data.tabular.target_spec import TargetSpec

MAX_ROWS = 2000  # rows of a client from which the strength of columns is measured
MAX_CLASSES = 10  # most frequent classes that columns are compared with
MIN_PAIRS = 400  # pairs of rows of different classes below which no AUC is believed
MIN_REGRESSION_ROWS = 30  # rows below which no R2 is believed
LEAK_STRENGTH = 0.98  # AUC or R2 of a single column that is hardly honest
MIN_CODED_ROWS = 20  # values that a client needs before its coding is compared
MIN_FEW_CODES_ROWS = 5  # the same, where all others have a few values that are each frequent
MAX_FEW_CODES = 10  # values that are a few
MAX_NAMED_CLIENTS = 2  # with other values in one column; of more, the column names places
MAX_STD_DISTANCE = 8.0  # standard deviations between the means of a client and of the others
MIN_DISTINCT_SHARE = 0.5  # of rows, below which equal rows are no surprise
MIN_DUPLICATE_SHARE = 0.05  # of test rows; a few equal rows are chance where inputs are few


# --------------------------------------------------------------- what a client sends about its rows


def associations(table: Table, spec: TargetSpec, kind: Kind) -> tuple[Association, ...]:
    """Measure how far each input column alone decides the target, as sums to be added.

    Args:
        table: The training rows of one client.
        spec: The target.
        kind: Its kind.

    Returns:
        For classes, pairs of rows that a column puts in order and all pairs, by class. For
        numbers and times, products of deviations.
    """
    rows = np.flatnonzero(spec.is_known(table, kind))
    if not len(rows):
        return ()
    if len(rows) > MAX_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64)]
    table = table.take(rows)
    inputs = [name for name in table.columns if name not in spec.columns]
    target = table.columns[spec.target.column]
    if kind != "classification":
        y = target.numbers
        return tuple(_products(name, table.columns[name], y) for name in inputs)
    codes, labels = class_codes(target, spec)
    counts = np.bincount(codes, minlength=len(labels))
    frequent = [int(label) for label in np.argsort(-counts, kind="stable")[:MAX_CLASSES]]
    if len(labels) == 2:
        frequent = [1]  # the other one is its mirror image
    frequent = [label for label in frequent if 0 < counts[label] < len(codes)]
    return tuple(
        _ordered_pairs(name, table.columns[name], codes == label, labels[label])
        for name in inputs
        for label in frequent
    )


def class_codes(target: Column, spec: TargetSpec) -> tuple[Ints, tuple[str, ...]]:
    """Return the class of each row `[n]` as an index, and the names of the classes."""
    if spec.target.operator:
        return spec.target.is_true(target).astype(np.int64), spec.classes
    return target.labels


def _ordered_pairs(
    name: str, column: Column, is_class: NDArray[np.bool_], label: str
) -> Association:
    """Count the pairs (row of the class, other row) where the former has the larger value."""
    values = _ranked_values(column)
    is_text = values is None
    if values is None:
        values = _leave_one_out_rates(column, is_class)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    num_class = int(is_class.sum())
    rank_sum = float(ranks[inverse][is_class].sum())
    ordered = rank_sum - num_class * (num_class + 1) / 2
    num_pairs = float(num_class * (len(is_class) - num_class))
    if is_text:
        # Rates without the row itself are lower for rows of the class where texts say nothing.
        ordered = max(ordered, num_pairs / 2)
    return Association(name, label, (ordered, num_pairs))


def _ranked_values(column: Column) -> Floats | None:
    """Return numbers or days that can be put in order, missing ones first; None for texts."""
    numbers = column.numbers
    if not 2 * np.count_nonzero(~np.isnan(numbers)) > np.count_nonzero(~column.missing):
        days = (column.days(date_format) for date_format in FORMATS if len(column.texts))
        numbers = next((parsed for parsed in days if not np.isnan(parsed).all()), numbers)
        if np.isnan(numbers).all() and not column.missing.all():
            return None
    return np.where(np.isnan(numbers), -np.inf, numbers)


def _leave_one_out_rates(column: Column, is_class: NDArray[np.bool_]) -> Floats:
    """Return how many other rows with the same text are of the class, as a share.

    The row itself is left out, so that texts that no other row has say nothing.
    """
    codes, labels = column.labels
    codes = np.where(codes < 0, len(labels), codes)
    counts = np.bincount(codes, minlength=len(labels) + 1)
    hits = np.bincount(codes, weights=is_class, minlength=len(labels) + 1)
    others = counts[codes] - 1
    rates = (hits[codes] - is_class) / np.maximum(others, 1)
    return np.where(others > 0, rates, is_class.mean())


def _products(name: str, column: Column, y: Floats) -> Association:
    """Compute the sums of products of deviations from this client's means, and the rows."""
    numbers = _ranked_values(column)
    if numbers is None:
        return Association(name, "", (0.0, 0.0, 0.0, 0.0))
    known = np.isfinite(numbers) & np.isfinite(y)
    x = numbers[known]
    z = y[known]
    if not len(x):
        return Association(name, "", (0.0, 0.0, 0.0, 0.0))
    x = x - x.mean()
    z = z - z.mean()
    return Association(name, "", (float(x @ z), float(x @ x), float(z @ z), float(len(x))))


# --------------------------------------------------------------- what the server finds in the sums


def check_statistics(
    messages: Sequence[ClientStatistics], encoders: Sequence[Encoder], kind: Kind
) -> list[Diagnostic]:
    """Look for mistakes in the statistics of all clients.

    Args:
        messages: The statistics of all clients, with the same columns.
        encoders: What the input columns become.
        kind: The kind of target.

    Returns:
        Notes, the most important first.
    """
    names = {encoder.name for encoder in encoders}
    notes = _check_leaks(messages, names, kind)
    by_column = zip(*(message.columns for message in messages), strict=True)
    columns = {columns[0].name: columns for columns in by_column}
    clients = [message.client for message in messages]
    for encoder in encoders:
        notes += _check_coding(encoder, columns[encoder.name], clients)
    notes += _check_few_sites([columns[encoder.name] for encoder in encoders])
    lonely = [message.client for message in messages if message.num_classes == 1]
    if kind == "classification" and lonely:
        have = "clients have" if len(lonely) > 1 else "client has"
        notes.append(
            Diagnostic(
                f"{len(lonely)} {have} rows of one class only ({list_names(lonely)}): "
                "AUC is not defined there, and a model of their own cannot tell classes apart"
            )
        )
    num_shared = sum(message.num_shared_rows for message in messages)
    if num_shared:
        notes.append(Diagnostic(_duplicates_message(num_shared)))
    return notes


def _check_leaks(
    messages: Sequence[ClientStatistics], names: set[str], kind: Kind
) -> list[Diagnostic]:
    """Name columns that alone nearly decide the target."""
    sums: dict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros(1))
    for message in messages:
        for association in message.associations:
            key = (association.column, association.label)
            sums[key] = sums[key] + np.array(association.sums)
    strongest: dict[str, float] = {}
    for (name, _), total in sums.items():
        strength = _r2(total) if kind != "classification" else _auc(total)
        strongest[name] = max(strongest.get(name, 0.0), strength)
    measure = "AUC" if kind == "classification" else "R2"
    return [
        Diagnostic(
            f"alone nearly decides the target ({measure} {strength:.3f}). Is it known before the "
            f"target is? If not, leave it out: --ignore-columns {name}",
            column=name,
        )
        for name, strength in strongest.items()
        if name in names and strength > LEAK_STRENGTH
    ]


def _auc(sums: Floats) -> float:
    """Return the AUC of a column in its better direction; 0 if there are few pairs."""
    ordered, num_pairs = sums
    return float(max(ordered, num_pairs - ordered) / num_pairs) if num_pairs >= MIN_PAIRS else 0.0


def _r2(sums: Floats) -> float:
    """Return the squared correlation within clients; 0 if there are few rows."""
    if len(sums) < 4 or sums[3] < MIN_REGRESSION_ROWS or not sums[1] * sums[2] > 0:
        return 0.0
    return float(sums[0] ** 2 / (sums[1] * sums[2]))


def _check_coding(
    encoder: Encoder, columns: Sequence[ColumnStatistics], clients: Sequence[str]
) -> list[Diagnostic]:
    """Name clients that seem to use another unit or other words than all others."""
    notes = []
    if isinstance(encoder, Category) and (alike := texts_alike(encoder.values)):
        text = f"{list_groups(alike)} differ in capital letters or spaces alone: are they the same?"
        notes.append(Diagnostic(text, column=encoder.name))
    others = {}
    for k, column in enumerate(columns):
        rest = [other for i, other in enumerate(columns) if i != k]
        message = ""
        if isinstance(encoder, Number) and rest:
            message = _other_unit(column, rest)
        elif isinstance(encoder, Category) and rest:
            message = _other_values(column, rest)
        if message:
            others[clients[k]] = message
    if isinstance(encoder, Category) and len(others) > MAX_NAMED_CLIENTS:
        text = (
            f"{len(others)} of {len(clients)} clients have values that no other client has: either "
            "it is coded in different ways, or it names places inside a client, of which the "
            f"others learn nothing (--ignore-columns {encoder.name} leaves it out)"
        )
        return [*notes, Diagnostic(text, column=encoder.name)]
    of_clients = [
        Diagnostic(f"{message}: is it coded alike?", False, client, encoder.name)
        for client, message in others.items()
    ]
    # Of two clients, each differs from the other: one note is enough.
    return [*notes, *(of_clients[:1] if len(columns) == 2 else of_clients)]


def _other_values(column: ColumnStatistics, others: Sequence[ColumnStatistics]) -> str:
    """Say that a client shares no category with any other; empty if it shares one."""
    own = _values(column)
    foreign = set().union(*map(_values, others))
    count = column.num_rows - column.num_missing
    num_others = sum(other.num_rows - other.num_missing for other in others)
    are_few = len(foreign) <= MAX_FEW_CODES and num_others >= MIN_CODED_ROWS * len(foreign)
    if count < (MIN_FEW_CODES_ROWS if are_few else MIN_CODED_ROWS):
        return ""
    if not own or not foreign or own & foreign:
        return ""
    return f"holds {list_names(sorted(own))}, which no other client has"


def _other_unit(column: ColumnStatistics, others: Sequence[ColumnStatistics]) -> str:
    """Say that a client's numbers are far from all others; empty if they are not."""
    own = column.numbers
    rest = others[0].numbers
    for other in others[1:]:
        rest = rest + other.numbers
    if min(own.count, rest.count) < MIN_CODED_ROWS:
        return ""
    if abs(own.mean - rest.mean) <= MAX_STD_DISTANCE * max(own.std, rest.std):
        return ""
    return f"has numbers around {own.mean:.3g}, others around {rest.mean:.3g}"


def _values(column: ColumnStatistics) -> set[str]:
    """Return the values of a column of categories."""
    numbers = {format_number(value) for value, _ in column.histogram}
    return numbers | {text for text, _ in column.text_counts}


def _check_few_sites(columns: Sequence[Sequence[ColumnStatistics]]) -> list[Diagnostic]:
    """Name columns that are empty at most clients."""
    rare = []
    for of_clients in columns:
        num_with = sum(column.num_missing < column.num_rows for column in of_clients)
        if 2 * num_with <= len(of_clients) and len(of_clients) > 2:
            rare.append(f"'{of_clients[0].name}' ({num_with})")
    if not rare:
        return []
    listed = ", ".join(rare)
    return [
        Diagnostic(
            f"of {len(columns[0])} clients, few have values in {listed}: elsewhere these columns "
            "are filled, and a model may only learn where a row comes from"
        )
    ]


# ------------------------------------------------------------------------------- duplicated rows


def check_duplicates(
    tables: Sequence[Table], names: Sequence[str], train_rows: Ints, test_rows: Ints
) -> list[Diagnostic]:
    """Count test rows that are also training rows.

    Args:
        tables: The rows of all clients.
        names: The columns that are compared: inputs and target.
        train_rows: Indices of the training rows among all rows of all clients.
        test_rows: Indices of the test rows.
    """
    num_shared = count_shared_rows(tables, names, train_rows, test_rows)
    return [Diagnostic(_duplicates_message(num_shared, len(test_rows)))] if num_shared else []


def count_shared_rows(
    tables: Sequence[Table], names: Sequence[str], train_rows: Ints, test_rows: Ints
) -> int:
    """Count test rows that equal a training row in all of these columns.

    Args:
        tables: The tables of all clients.
        names: The columns that are compared.
        train_rows: Numbers of the training rows, over all tables in their order.
        test_rows: Numbers of the test rows.

    Returns:
        The number; 0 if such rows are rare, or if rows are so alike that they prove nothing.
    """
    num_rows = sum(map(len, tables))
    keys = np.zeros(num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            column = concat_columns([table.columns[name] for table in tables])
            bits = np.where(np.isnan(column.numbers), 0.0, column.numbers).view(np.uint64)
            cell = _mix(bits ^ _mix(column.codes.astype(np.uint64)))
            keys = _mix(keys * np.uint64(31) + cell)
    if len(np.unique(keys)) < MIN_DISTINCT_SHARE * num_rows:
        return 0
    num_shared = int(np.isin(keys[test_rows], keys[train_rows]).sum())
    return num_shared if num_shared >= MIN_DUPLICATE_SHARE * len(test_rows) else 0


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits (the finaliser of SplitMix64; Steele, Lea and Flood, 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _duplicates_message(num_shared: int, num_test: int = 0) -> str:
    """Say that test rows are training rows."""
    of_all = f" of {num_test:,}" if num_test else ""
    return (
        f"{num_shared:,}{of_all} test rows equal a training row in every input and the target: if "
        "they are the same cases, scores are too good; remove duplicates"
    )
