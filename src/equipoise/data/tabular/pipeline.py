"""From the raw tables of all clients to a federation: split, fit the preprocessor, transform.

`prepare_tables` makes all decisions. `data describe` shows its result and `build_federation` trains
on it, so that what is described is what is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from equipoise.data.federated_dataset import AnyArray, Federation, InputTransform, Ints
from equipoise.data.splits import RowAssignment, UserRows, assign_rows
from equipoise.data.tabular.clients import (
    check_client_names,
    drop_unlabelled_rows,
    min_client_rows,
    treat_small_clients,
)
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.diagnostics import Diagnostic, raise_problems
from equipoise.data.tabular.exchange import FittedColumns, compute_statistics, fit_columns
from equipoise.data.tabular.io import SERVER
from equipoise.data.tabular.preprocessing import Preprocessor, fit_client_scale
from equipoise.data.tabular.sanity import check_duplicates
from equipoise.data.tabular.statistics import ClientStatistics
from equipoise.data.tabular.table import ClientTables, Table, concat_tables
from equipoise.data.tabular.target_spec import TargetSpec, parse_target
from equipoise.utils.errors import UsageError
from equipoise.utils.record import to_json


@dataclass(frozen=True)
class PreparedTables:
    """Tables about which everything is decided.

    Attributes:
        tables: The rows and clients that take part.
        fitted: What each column becomes, and what the target is.
        assignment: The split of each row; None if clients are too small for it.
        diagnostics: All problems and notes.
        upload_bytes: Bytes of the statistics that clients send before round 1.
    """

    tables: ClientTables
    fitted: FittedColumns
    assignment: RowAssignment | None
    diagnostics: tuple[Diagnostic, ...]
    upload_bytes: int


@dataclass(frozen=True)
class TabularFederation:
    """Tables that are ready for training.

    Attributes:
        data: The federation.
        preprocessor: How raw rows became its inputs.
        names: The names of the clients, in the order of their numbers.
        upload_bytes: Bytes of the statistics that all clients sent before round 1.
        download_bytes: Bytes of the preprocessor, once for each client.
        notes: Sentences that the user should read before training.
    """

    data: Federation
    preprocessor: Preprocessor
    names: tuple[str, ...]
    upload_bytes: int
    download_bytes: int
    notes: tuple[str, ...]


def prepare_tables(
    tables: ClientTables,
    config: TableConfig,
    rng: np.random.Generator,
    diagnostics: Sequence[Diagnostic] = (),
) -> PreparedTables:
    """Select rows and clients, split the rows, and decide what columns become.

    Columns are decided from statistics of training rows. Nothing is raised: problems are listed.

    Args:
        tables: The raw tables of all clients, with the same columns.
        config: Options of tables.
        rng: Draws the splits.
        diagnostics: Problems and notes from reading the files.

    Returns:
        The tables with the splits of their rows, and how columns are encoded.
    """
    all_diagnostics = [*diagnostics, *check_client_names(tables.names)]
    columns = next(iter(tables.clients.values())).columns
    spec = None
    try:
        spec = parse_target(config, columns, tables.source)
    except UsageError as error:
        all_diagnostics.append(Diagnostic(str(error), True))
    assignment = None
    if spec is not None:
        labelled, about_targets = drop_unlabelled_rows(tables, spec, config)
        all_diagnostics += about_targets
        if sum(map(len, labelled.clients.values())):
            tables, about_clients = treat_small_clients(labelled, config)
            all_diagnostics += about_clients
        if not any(diagnostic.is_problem for diagnostic in all_diagnostics):
            assignment = _assign(tables, config, rng)
    messages, upload_bytes = _compute_messages(tables, spec, assignment, config)
    fitted = fit_columns(messages, spec, config)
    all_diagnostics += fitted.diagnostics
    if assignment is not None and spec is not None:
        names = [*(encoder.name for encoder in fitted.encoders), *spec.columns]
        splits = assignment.splits
        owners = list(tables.clients.values())
        if "test" in splits:
            all_diagnostics += check_duplicates(
                owners, names, splits["train"].rows, splits["test"].rows
            )
    return PreparedTables(tables, fitted, assignment, tuple(all_diagnostics), upload_bytes)


def build_federation(
    tables: ClientTables, config: TableConfig, rng: np.random.Generator, for_trees: bool = False
) -> TabularFederation:
    """Split the rows of all clients, fit the preprocessor to training rows, and transform all.

    Args:
        tables: The raw tables of all clients, with the same columns.
        config: Options of tables.
        rng: Draws the splits.
        for_trees: Whether the model is made of trees, see `Preprocessor`.

    Returns:
        The federation, with its preprocessor and notes.

    Raises:
        UsageError: If tables cannot be used; all problems are listed.
    """
    prepared = prepare_tables(tables, config, rng)
    raise_problems(prepared.diagnostics, tables.source)
    preprocessor = prepared.fitted.preprocessor
    assignment = prepared.assignment
    assert preprocessor is not None
    assert assignment is not None
    tables = prepared.tables
    preprocessor = msgspec.structs.replace(
        preprocessor,
        clients=tables.names,
        served_by=tuple(tables.served_by.items()),
        for_trees=for_trees,
    )
    if config.standardise == "client":
        scales = [
            fit_client_scale(client, preprocessor.encoders, table.take(rows))
            for (client, table), rows in zip(
                tables.clients.items(), _train_rows(tables, assignment), strict=True
            )
        ]
        preprocessor = msgspec.structs.replace(preprocessor, client_scales=tuple(scales))

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
    rows = UserRows(x, y, _owner(tables), server, target.outputs, tables.names, target)
    data = rows.build(assignment, config, InputTransform(), rng)
    return TabularFederation(
        data=data,
        preprocessor=preprocessor,
        names=tables.names,
        upload_bytes=prepared.upload_bytes,
        download_bytes=len(preprocessor.to_json().encode()) * len(tables.names),
        notes=tuple(str(note) for note in prepared.diagnostics),
    )


def _assign(tables: ClientTables, config: TableConfig, rng: np.random.Generator) -> RowAssignment:
    """Assign every row to the training, validation or test split of its client, or the server."""
    shares = dataclasses.replace(config, min_rows=min_client_rows(config))
    splits = [table.split for table in tables.clients.values() if table.split is not None]
    fixed_splits = np.concatenate(splits) if splits else None
    needs_holdout = tables.server is None
    return assign_rows(_owner(tables), shares, rng, needs_holdout, tables.names, fixed_splits)


def _owner(tables: ClientTables) -> Ints:
    """Return the number of the client of each row `[n]`."""
    num_rows = [len(table) for table in tables.clients.values()]
    return np.repeat(np.arange(len(num_rows)), num_rows)


def _compute_messages(
    tables: ClientTables,
    spec: TargetSpec | None,
    assignment: RowAssignment | None,
    config: TableConfig,
) -> tuple[list[ClientStatistics], int]:
    """Compute the statistics that decide the columns, and the bytes that clients send for them."""
    if config.preprocess_from == "server" and assignment is not None:
        server = tables.server
        if server is None:
            pooled = concat_tables(list(tables.clients.values()))
            server = pooled.take(np.sort(assignment.server_holdout))
        return [compute_statistics(SERVER, server, spec, config)], 0
    train_rows: Sequence[Ints | None] = [None] * len(tables.clients)
    if assignment is not None:
        train_rows = _train_rows(tables, assignment)
    messages = [
        compute_statistics(client, table, spec, config, rows)
        for (client, table), rows in zip(tables.clients.items(), train_rows, strict=True)
    ]
    return messages, sum(len(to_json(message).encode()) for message in messages)


def _train_rows(tables: ClientTables, assignment: RowAssignment) -> list[Ints]:
    """Return the training rows of each client, as indices of its own table."""
    train = assignment.splits["train"]
    num_rows = np.array([len(table) for table in tables.clients.values()])
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
