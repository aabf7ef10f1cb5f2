"""From the raw tables of all clients to a federation: split, fit the preprocessor, transform."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec
import numpy as np

from equipoise.data.federated_dataset import AnyArray, Federation, Ints
from equipoise.data.splits import RowAssignment, UserRows, assign_rows
from equipoise.data.tabular.clients import (
    drop_unlabelled_rows,
    min_client_rows,
    treat_small_clients,
)
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.description import describe_tables
from equipoise.data.tabular.diagnostics import Diagnostic, raise_problems
from equipoise.data.tabular.exchange import compute_statistics, fit_preprocessor
from equipoise.data.tabular.io import SERVER
from equipoise.data.tabular.preprocessing import Preprocessor, fit_client_scale
from equipoise.data.tabular.table import ClientTables, Table, concat_tables
from equipoise.data.tabular.target_spec import TargetSpec, parse_target
from equipoise.data.transforms import InputTransform
from equipoise.utils.errors import UsageError
from equipoise.utils.record import to_json


@dataclass(frozen=True)
class TabularFederation:
    """Tables that are ready for training.

    Attributes:
        data: The federation.
        preprocessor: How raw rows became its inputs.
        names: The names of the clients, in the order of their numbers.
        upload_bytes: Bytes of the statistics that all clients sent before round 1.
        download_bytes: Bytes of the preprocessor, once for each client.
    """

    data: Federation
    preprocessor: Preprocessor
    names: tuple[str, ...]
    upload_bytes: int
    download_bytes: int


def build_federation(
    tables: ClientTables, config: TableConfig, rng: np.random.Generator, for_trees: bool = False
) -> TabularFederation:
    """Split the rows of all clients, fit the preprocessor to training rows, and transform all.

    Args:
        tables: The raw tables of all clients, with the same columns.
        config: Options of tables.
        rng: Draws the splits.
        for_trees: Whether the model is made of trees, see `Preprocessor`.

    Raises:
        UsageError: If tables cannot be used; all problems are listed.
    """
    raw_tables = tables
    columns = next(iter(tables.clients.values())).columns
    spec = parse_target(config, columns, tables.source)
    tables, about_targets = drop_unlabelled_rows(tables, spec, config)
    tables, about_clients = treat_small_clients(tables, config)
    _raise_all_problems([*about_targets, *about_clients], raw_tables, config)

    # Assign every row to the training, validation or test split of its client, or to the server.
    num_rows = np.array([len(table) for table in tables.clients.values()])
    owner = np.repeat(np.arange(len(num_rows)), num_rows)
    shares = dataclasses.replace(config, min_rows=min_client_rows(config))
    needs_holdout = tables.server is None
    fixed_splits = _fixed_splits(tables)
    assignment = assign_rows(owner, shares, rng, needs_holdout, tables.names, fixed_splits)

    # Fit the preprocessor to statistics of the training rows.
    train_rows = _train_rows(assignment, num_rows)
    preprocessor, upload_bytes = _fit(tables, train_rows, assignment, spec, config, raw_tables)
    preprocessor = msgspec.structs.replace(preprocessor, for_trees=for_trees)

    x = np.concatenate(
        [preprocessor.transform(table, client) for client, table in tables.clients.items()]
    )
    y = np.concatenate(
        [_read_targets(preprocessor, client, table) for client, table in tables.clients.items()]
    )
    server = None
    if tables.server is not None:
        server = preprocessor.transform_labelled(tables.server, "the server's rows")
    target = preprocessor.target
    rows = UserRows(x, y, owner, server, target.outputs, tables.names, target)
    data = rows.build(assignment, config, InputTransform(), rng)
    download_bytes = len(preprocessor.to_json().encode()) * len(num_rows)
    return TabularFederation(data, preprocessor, tables.names, upload_bytes, download_bytes)


def _fit(
    tables: ClientTables,
    train_rows: list[Ints],
    assignment: RowAssignment,
    spec: TargetSpec,
    config: TableConfig,
    raw_tables: ClientTables,
) -> tuple[Preprocessor, int]:
    """Fit the preprocessor; return it with the bytes that clients sent for it."""
    if config.preprocess_from == "server":
        server = tables.server
        if server is None:
            pooled = concat_tables(list(tables.clients.values()))
            server = pooled.take(np.sort(assignment.server_holdout))
        messages = [compute_statistics(SERVER, server, spec)]
        upload_bytes = 0
    else:
        messages = [
            compute_statistics(client, table, spec, rows)
            for (client, table), rows in zip(tables.clients.items(), train_rows, strict=True)
        ]
        upload_bytes = sum(len(to_json(message).encode()) for message in messages)
    preprocessor, diagnostics = fit_preprocessor(messages, spec, config)
    _raise_all_problems(diagnostics, raw_tables, config)
    assert preprocessor is not None
    preprocessor = msgspec.structs.replace(preprocessor, clients=tables.names)
    if config.standardise == "client":
        scales = [
            fit_client_scale(client, preprocessor.encoders, table.take(rows))
            for (client, table), rows in zip(tables.clients.items(), train_rows, strict=True)
        ]
        preprocessor = msgspec.structs.replace(preprocessor, client_scales=tuple(scales))
    return preprocessor, upload_bytes


def _fixed_splits(tables: ClientTables) -> Ints | None:
    """Return the split of every row, where tables have a split column."""
    splits = [table.split for table in tables.clients.values() if table.split is not None]
    return np.concatenate(splits) if splits else None


def _train_rows(assignment: RowAssignment, num_rows: Ints) -> list[Ints]:
    """Return the training rows of each client, as indices of its own table."""
    train = assignment.splits["train"]
    first_row = np.cumsum(num_rows) - num_rows
    return [train.rows_of(k) - first_row[k] for k in range(len(num_rows))]


def _read_targets(preprocessor: Preprocessor, client: str, table: Table) -> AnyArray:
    """Read the targets of a client; a class that the preprocessor does not know is an error."""
    y = preprocessor.transform_target(table)
    if preprocessor.target.kind == "classification" and (y < 0).any():
        row = int(table.row_numbers[np.argmax(y < 0)])
        raise UsageError(
            f"row {row} of client '{client}' has a class that the server's rows lack: "
            "give it more rows"
        )
    return y


def _raise_all_problems(
    diagnostics: list[Diagnostic], tables: ClientTables, config: TableConfig
) -> None:
    """If there is a problem, look for all others as well before raising."""
    if any(diagnostic.is_problem for diagnostic in diagnostics):
        raise_problems(describe_tables(tables, config).problems, tables.source)
        raise_problems(diagnostics, tables.source)
