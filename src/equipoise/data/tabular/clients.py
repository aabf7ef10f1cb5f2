"""Select the rows and clients that take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from equipoise.data.federated_dataset import SPLITS, Kind
from equipoise.data.splits import MIN_CLIENT_ROWS
from equipoise.data.tabular.config import ColumnConfig, TableConfig
from equipoise.data.tabular.diagnostics import (
    Diagnostic,
    list_groups,
    list_names,
    list_rows,
    texts_alike,
)
from equipoise.data.tabular.statistics import MIN_TYPE_SHARE
from equipoise.data.tabular.table import ClientTables, Table, concat_tables
from equipoise.data.tabular.target_spec import TargetSpec, target_kind
from equipoise.utils.errors import UsageError, did_you_mean

SPLIT_NAMES = {**{name: i for i, name in enumerate(SPLITS)}, "validation": SPLITS.index("val")}
"""Texts of a split column (in lower case), as indices of `SPLITS`."""
MAX_NAMES_OF_POOL = 3  # clients whose names form the name of a pool


def read_split_column(tables: ClientTables, column: str) -> tuple[ClientTables, list[Diagnostic]]:
    """Read the split of each row from a column.

    Args:
        tables: The tables of all clients.
        column: The column with the texts train, val or test; rows without a text are dropped.

    Returns:
        Tables that know the split of each row and do not have the column, and diagnostics.

    Raises:
        UsageError: If the tables have no such column.
    """
    known = {name for table in tables.clients.values() for name in table.columns}
    if column not in known:
        raise UsageError(
            f"{tables.source} has no column '{column}'{did_you_mean(column, known)}: "
            "see --split-column"
        )
    clients = {}
    diagnostics = []
    for client, table in tables.clients.items():
        if column in table.columns:
            clients[client], about_client = _read_split(table, client, column)
            diagnostics += about_client
        else:
            clients[client] = table
            message = "is not there, and says which rows are train and test"
            diagnostics.append(Diagnostic(message, True, client, column))
    with_val = [client for client, table in clients.items() if _has_split(table, "val")]
    if with_val and len(with_val) < len(clients):
        without_val = next(client for client in clients if client not in with_val)
        message = (
            f"no row is val, but client '{with_val[0]}' has such: give every client some, or none"
        )
        diagnostics.append(Diagnostic(message, True, without_val, column))
    server = None if tables.server is None else tables.server.drop(frozenset({column}))
    return ClientTables(clients, server, tables.source), diagnostics


def _read_split(table: Table, client: str, column: str) -> tuple[Table, list[Diagnostic]]:
    """Read the split of each row of one client."""
    codes, labels = table.columns[column].labels
    diagnostics = []
    if others := sorted(label for label in labels if label.lower() not in SPLIT_NAMES):
        examples = ", ".join(map(repr, others[:3]))
        message = f"holds {examples}: a row is train, val or test, or empty to be left out"
        diagnostics.append(Diagnostic(message, True, client, column))
    if num_empty := int((codes < 0).sum()):
        message = f"is empty in {num_empty} of {len(table)} rows, which are left out"
        diagnostics.append(Diagnostic(message, False, client, column))
    split_of_label = [SPLIT_NAMES.get(label.lower(), -1) for label in labels]
    splits = np.array([*split_of_label, -1], np.int64)[codes]
    with_splits = replace(table.drop(frozenset({column})), split=splits)
    selected = with_splits.take(np.flatnonzero(splits >= 0))
    absent = [name for name in ("train", "test") if not _has_split(selected, name)]
    diagnostics += [Diagnostic(f"no row is {name}", True, client, column) for name in absent]
    return selected, diagnostics


def _has_split(table: Table, name: str) -> bool:
    """Whether any row is in this split."""
    return table.split is not None and bool((table.split == SPLITS.index(name)).any())


def drop_unlabelled_rows(
    tables: ClientTables, spec: TargetSpec, config: ColumnConfig
) -> tuple[ClientTables, list[Diagnostic]]:
    """Drop rows without a target; with `--missing refuse`, report them as problems.

    Where many cells of a target of numbers are texts, their rows stay: the target is mistaken, and
    `infer_target` says so.

    Args:
        tables: The tables of all clients.
        spec: How the target is read.
        config: What to do with missing values.

    Returns:
        The tables without these rows, and diagnostics.
    """
    kind = target_kind(config)
    diagnostics, are_many = _check_texts(tables, spec, kind)
    clients = {}
    for client, table in tables.clients.items():
        known = spec.is_known(table, kind)
        if are_many:
            known |= spec.invalid_texts(table, kind) != ""
        clients[client] = table if known.all() else table.take(np.flatnonzero(known))
        if config.missing == "refuse" and not known.all():
            rows = list_rows(table.row_numbers[~known].tolist())
            message = f"no target in {rows}, which --missing refuse forbids"
            diagnostics.append(Diagnostic(message, True, client, spec.target.column))
    server = tables.server
    if server is not None:
        server = server.take(np.flatnonzero(spec.is_known(server, kind)))
    return replace(tables, clients=clients, server=server), diagnostics


def _check_texts(
    tables: ClientTables, spec: TargetSpec, kind: Kind
) -> tuple[list[Diagnostic], bool]:
    """Look for texts in a target of numbers.

    Returns:
        Notes on clients with a few of them, and whether they are too many to be slips.
    """
    notes = []
    num_rows = 0
    num_invalid = 0
    for client, table in tables.clients.items():
        texts = spec.invalid_texts(table, kind)
        wrong = np.flatnonzero(texts != "")
        num_rows += int((spec.is_known(table, kind) | (texts != "")).sum())
        num_invalid += len(wrong)
        if len(wrong):
            are_left_out = "is left out" if len(wrong) == 1 else "are left out"
            message = (
                f"{list_names(list(dict.fromkeys(texts[wrong].tolist())))} is no number: "
                f"{list_rows(table.row_numbers[wrong].tolist())} {are_left_out}"
            )
            notes.append(Diagnostic(message, False, client, spec.target.column))
    are_many = num_invalid > (1 - MIN_TYPE_SHARE) * num_rows
    return [] if are_many else notes, are_many


def check_client_names(names: Sequence[str]) -> list[Diagnostic]:
    """Report clients whose names differ in capital letters or spaces alone."""
    alike = texts_alike(names)
    if not alike:
        return []
    message = (
        f"clients {list_groups(alike)} differ in capital letters or spaces alone: if they are one "
        "site, give it one name"
    )
    return [Diagnostic(message)]


def min_client_rows(config: TableConfig) -> int:
    """Return the number of rows that a client needs."""
    return MIN_CLIENT_ROWS if config.small_clients == "keep" else config.min_rows


def treat_small_clients(
    tables: ClientTables, config: TableConfig
) -> tuple[ClientTables, list[Diagnostic]]:
    """Drop or pool clients with few rows, or report them as a problem.

    Returns:
        The tables of the clients that take part, which know what became of the others, and one
        diagnostic for all small clients.
    """
    num_rows = {client: len(table) for client, table in tables.clients.items()}
    min_rows = min_client_rows(config)
    small = [client for client, count in num_rows.items() if count < min_rows]
    if not small:
        return tables, []
    if config.small_clients == "drop" and len(small) < len(num_rows):
        clients = {name: table for name, table in tables.clients.items() if name not in small}
        message = f"{_count_small(small, num_rows, min_rows)} and are left out"
        merged = replace(tables, clients=clients, served_by=dict.fromkeys(small, ""))
        return merged, [Diagnostic(message)]
    if config.small_clients == "pool" and len(num_rows) > 1:
        members = _pool_members(num_rows, min_rows)
        pool = _pool_name(members)
        clients = {name: table for name, table in tables.clients.items() if name not in members}
        clients[pool] = concat_tables([tables.clients[name] for name in members])
        message = f"{_count_small(small, num_rows, min_rows)} and are pooled into '{pool}'"
        if len(members) > len(small):
            larger = [name for name in members if name not in small]
            message += f", with {list_names(larger)} to have enough rows"
        merged = replace(tables, clients=clients, served_by=dict.fromkeys(members, pool))
        return merged, [Diagnostic(message)]
    message = (
        f"{_count_small(small, num_rows, min_rows)}: --small-clients pool puts them together, "
        "drop leaves them out, keep trains them as they are"
    )
    return tables, [Diagnostic(message, True, option="--small-clients pool")]


def _count_small(small: list[str], num_rows: Mapping[str, int], min_rows: int) -> str:
    """Say how many clients are small, and name the first ones with their rows."""
    names = list_names(small)
    if len(small) == 1:
        rows = num_rows[small[0]]
        return f"client {names} has {rows} rows with a target, fewer than {min_rows}"
    counts = [num_rows[client] for client in small]
    return (
        f"{len(small)} clients have fewer than {min_rows} rows with a target "
        f"({min(counts)} to {max(counts)}: {names})"
    )


def _pool_members(num_rows: Mapping[str, int], min_rows: int) -> list[str]:
    """Choose the small clients, and the next larger ones until the pool has enough rows."""
    members: set[str] = set()
    total = 0
    for client in sorted(num_rows, key=lambda client: num_rows[client]):
        if num_rows[client] >= min_rows and total >= min_rows:
            break
        members.add(client)
        total += num_rows[client]
    return [client for client in num_rows if client in members]


def _pool_name(members: list[str]) -> str:
    """Name a pool after its members, if they are few."""
    if len(members) <= MAX_NAMES_OF_POOL:
        return " + ".join(members)
    return f"{len(members)} small clients"
