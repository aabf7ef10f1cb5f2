"""From everybody's raw tables to a federation: splits first, then the exchange, then every row prepared alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Federation, Ints
from equipoise.data.own import OwnRows, deal
from equipoise.data.splits import MIN_CLIENT_ROWS
from equipoise.data.tables.choices import TableChoices
from equipoise.data.tables.clients import together, with_small, with_targets
from equipoise.data.tables.description import describe
from equipoise.data.tables.exchange import merge, rule_of, statistics_of, with_own_scales
from equipoise.data.tables.findings import Finding, refuse
from equipoise.data.tables.preparation import Preparation, own_scale
from equipoise.data.tables.reading import SERVER
from equipoise.data.tables.table import Table, Tables
from equipoise.data.tables.typed import to_json
from equipoise.data.transforms import InputTransform
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Federated:
    """Tables, made ready to learn from."""

    data: Federation
    preparation: Preparation
    names: tuple[str, ...]
    """Of the clients, as the federation numbers them."""
    up: int
    """Bytes that the exchange took: messages of all clients."""
    down: int
    """Bytes of the preparation, once for each client."""


def federate(tables: Tables, choices: TableChoices, rng: np.random.Generator) -> Federated:
    columns = tuple(next(iter(tables.clients.values())).columns)
    rule = rule_of(choices, columns, tables.source)
    given = tables
    tables, findings = with_targets(tables, rule, choices)
    tables, small = with_small(tables, choices)
    _refuse([*findings, *small], given, choices)
    sizes = np.array([len(table) for table in tables.clients.values()])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    floor = MIN_CLIENT_ROWS if choices.small == "keep" else choices.min_rows
    dealt = deal(
        owner,
        replace(choices, min_rows=floor),
        rng,
        tables.server is None,
        tables.names,
        _chosen(tables),
    )
    train, first = dealt.splits["train"], np.cumsum(sizes) - sizes
    rows = [train.rows_of(k) - first[k] for k in range(len(sizes))]
    each = list(zip(tables.clients.items(), rows, strict=True))
    if choices.prepare_by == "server":
        messages = [statistics_of(SERVER, _of_server(tables, dealt.lent), rule)]
    else:
        messages = [statistics_of(name, table, rule, mine) for (name, table), mine in each]
    preparation, findings = merge(messages, rule, choices)
    _refuse(findings, given, choices)
    assert preparation is not None
    preparation = replace(preparation, clients=tables.names)
    if choices.standardise == "client":
        scales = [
            own_scale(name, preparation.columns, table.take(mine)) for (name, table), mine in each
        ]
        preparation = with_own_scales(preparation, scales)
    x = np.concatenate([preparation.prepare(table, name) for name, table in tables.clients.items()])
    y = np.concatenate(
        [_targets(preparation, name, table) for name, table in tables.clients.items()]
    )
    target = preparation.target
    server = None if tables.server is None else preparation.rows(tables.server, "the server's rows")
    own = OwnRows(x, y, owner, server, target.outputs, tables.names, target)
    up = (
        0
        if choices.prepare_by == "server"
        else sum(len(to_json(message).encode()) for message in messages)
    )
    down = len(preparation.write().encode()) * len(sizes)
    return Federated(
        own.share(dealt, choices, InputTransform(), rng), preparation, tables.names, up, down
    )


def _chosen(tables: Tables) -> Ints | None:
    """The split of every row, where tables say so themselves."""
    splits = [table.split for table in tables.clients.values() if table.split is not None]
    return np.concatenate(splits) if splits else None


def _of_server(tables: Tables, lent: Ints) -> Table:
    """The server's own rows; where it has none, those that clients lend it."""
    return (
        together(list(tables.clients.values())).take(np.sort(lent))
        if tables.server is None
        else tables.server
    )


def _targets(preparation: Preparation, name: str, table: Table) -> NDArray[Any]:
    y = preparation.targets(table)
    if preparation.target.kind == "classification" and (y < 0).any():
        row = int(table.row[np.argmax(y < 0)])
        raise UsageError(
            f"row {row} of client '{name}' has a class that the server's rows lack: give it more rows"
        )
    return y


def _refuse(findings: list[Finding], tables: Tables, choices: TableChoices) -> None:
    """One problem is reason to look for all."""
    if any(finding.problem for finding in findings):
        refuse(describe(tables, choices).problems, tables.source)
        refuse(findings, tables.source)
