"""Which rows and which clients take part."""

from __future__ import annotations

import numpy as np

from equipoise.data.splits import MIN_CLIENT_ROWS
from equipoise.data.tables.cells import joined
from equipoise.data.tables.choices import ColumnChoices, TableChoices
from equipoise.data.tables.exchange import kind_of
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.reading import rows_in_words
from equipoise.data.tables.rule import Rule
from equipoise.data.tables.table import Table, Tables

NAMED = 3  # clients whose names a pool of them has


def with_targets(
    tables: Tables, rule: Rule, choices: ColumnChoices
) -> tuple[Tables, list[Finding]]:
    """Rows whose target is known; the others are left out, or refused if that is asked for."""
    kind = kind_of(choices)
    findings: list[Finding] = []
    clients = {}
    for name, table in tables.clients.items():
        known = rule.known(table, kind)
        clients[name] = table if known.all() else table.take(np.flatnonzero(known))
        if choices.missing == "refuse" and not known.all():
            rows = rows_in_words(table.row[~known].tolist())
            findings.append(
                Finding(
                    f"no target in {rows}, which --missing refuse forbids", True, name, rule.column
                )
            )
    server = tables.server
    if server is not None:
        server = server.take(np.flatnonzero(rule.known(server, kind)))
    return Tables(clients, server, tables.source), findings


def with_small(tables: Tables, choices: TableChoices) -> tuple[Tables, list[Finding]]:
    """What becomes of clients with few rows."""
    floor = MIN_CLIENT_ROWS if choices.small == "keep" else choices.min_rows
    small = [name for name, table in tables.clients.items() if len(table) < floor]
    if not small:
        return tables, []
    kept = {name: table for name, table in tables.clients.items() if name not in small}
    counted = [(name, len(tables.clients[name])) for name in small]
    if choices.small == "drop" and kept:
        findings = [Finding(f"is left out: it has {n} rows", client=name) for name, n in counted]
        return Tables(kept, tables.server, tables.source), findings
    if choices.small == "pool" and len(tables.clients) > 1:
        return _pooled(tables, floor)
    words = f"rows with a target: a client needs {floor}; --small drop leaves it out, pool puts small ones together"
    return tables, [
        Finding(f"has {n} {words}", True, name, option="--small drop") for name, n in counted
    ]


def _pooled(tables: Tables, floor: int) -> tuple[Tables, list[Finding]]:
    """Small clients as one; where they are too few, the next larger ones join them."""
    sizes = {name: len(table) for name, table in tables.clients.items()}
    pool: list[str] = []
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if sizes[name] >= floor and sum(sizes[one] for one in pool) >= floor:
            break
        pool.append(name)
    members = [name for name in tables.clients if name in pool]
    called = " + ".join(members) if len(members) <= NAMED else f"{len(members)} small clients"
    findings = [
        Finding(f"is pooled into '{called}': it has {sizes[name]} rows", client=name)
        for name in members
    ]
    kept = {name: table for name, table in tables.clients.items() if name not in pool}
    whole = together([tables.clients[name] for name in members])
    return Tables({**kept, called: whole}, tables.server, tables.source), findings


def together(tables: list[Table]) -> Table:
    """Rows of several tables, one after the other."""
    columns = {
        name: joined([table.columns[name] for table in tables]) for name in tables[0].columns
    }
    splits = [table.split for table in tables if table.split is not None]
    return Table(
        columns,
        np.concatenate([table.row for table in tables]),
        np.concatenate(splits) if splits else None,
    )
