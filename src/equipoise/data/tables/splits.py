"""A column that says which rows are for training and which for test, as published benchmarks have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from equipoise.data.federated_dataset import SPLITS
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.table import Table, Tables
from equipoise.utils.errors import UsageError, nearest

WRITTEN = {**{name: place for place, name in enumerate(SPLITS)}, "validation": SPLITS.index("val")}
NEEDED = ("train", "test")


def with_splits(tables: Tables, column: str) -> tuple[Tables, list[Finding]]:
    """Rows that are in a split, each knowing its own; the column itself is no input any more."""
    known = {name for table in tables.clients.values() for name in table.columns}
    if column not in known:
        raise UsageError(
            f"{tables.source} has no column '{column}'{nearest(column, known)}: see --split-column"
        )
    clients, findings = {}, []
    for name, table in tables.clients.items():
        if column not in table.columns:
            findings.append(
                Finding("is not there, and says which rows are train and test", True, name, column)
            )
            clients[name] = table
            continue
        clients[name], about = _split(table, name, column)
        findings += about
    validated = [name for name, table in clients.items() if _holds(table, "val")]
    if validated and len(validated) < len(clients):
        lacking = next(name for name in clients if name not in validated)
        words = (
            f"no row is val, but client '{validated[0]}' has such: give every client some, or none"
        )
        findings.append(Finding(words, True, lacking, column))
    server = None if tables.server is None else tables.server.without(frozenset({column}))
    return Tables(clients, server, tables.source), findings


def _split(table: Table, name: str, column: str) -> tuple[Table, list[Finding]]:
    codes, texts = table.columns[column].labels
    places = np.array([*(WRITTEN.get(text.lower(), -1) for text in texts), -1], np.int64)[codes]
    odd = sorted(text for text in texts if text.lower() not in WRITTEN)
    findings = []
    if odd:
        shown = ", ".join(map(repr, odd[:3]))
        words = f"holds {shown}: a row is train, val or test, or empty to be left out"
        findings.append(Finding(words, True, name, column))
    empty = int((codes < 0).sum())
    if empty:
        findings.append(
            Finding(
                f"is empty in {empty} of {len(table)} rows, which are left out", False, name, column
            )
        )
    here = replace(table.without(frozenset({column})), split=places).take(
        np.flatnonzero(places >= 0)
    )
    findings += [
        Finding(f"no row is {part}", True, name, column)
        for part in NEEDED
        if not _holds(here, part)
    ]
    return here, findings


def _holds(table: Table, part: str) -> bool:
    return table.split is not None and bool((table.split == SPLITS.index(part)).any())
