"""The exchange before round 1: clients send statistics, the server returns one preprocessor.

The same messages go through memory in a simulation, through files (`equipoise data summarise` and
`equipoise data merge`), and through Flower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from equipoise.data.federated_dataset import Ints, Target
from equipoise.data.tabular.clients import drop_unlabelled_rows
from equipoise.data.tabular.config import ColumnConfig, parse_names
from equipoise.data.tabular.diagnostics import Diagnostic, raise_problems
from equipoise.data.tabular.io import READERS, SERVER, read_table
from equipoise.data.tabular.preprocessing import (
    FORMAT_VERSION,
    DroppedColumn,
    Encoder,
    Preprocessor,
)
from equipoise.data.tabular.sanity import (
    associations,
    check_statistics,
    class_codes,
    count_shared_rows,
)
from equipoise.data.tabular.schema import infer_schema
from equipoise.data.tabular.statistics import (
    ClientStatistics,
    column_statistics,
    moments,
)
from equipoise.data.tabular.table import ClientTables, Table, concat_tables
from equipoise.data.tabular.target_spec import (
    TargetSpec,
    infer_target,
    parse_target,
    target_kind,
)
from equipoise.utils.errors import UsageError
from equipoise.utils.record import from_json, to_json

PREPROCESSOR_FILE = "preparation.json"
"""The file in a site's folder that says how its rows are preprocessed."""


def compute_statistics(
    client: str,
    table: Table,
    spec: TargetSpec | None,
    config: ColumnConfig,
    train_rows: Ints | None = None,
) -> ClientStatistics:
    """Compute the message of one client.

    Args:
        client: The client's name.
        table: Its rows.
        spec: The target; without it, all columns are inputs.
        config: Options of columns.
        train_rows: The indices of its training rows, if not all are.

    Returns:
        Counts and sums of the client's training rows.
    """
    train = table if train_rows is None else table.take(np.sort(train_rows))
    target_columns = spec.columns if spec else ()
    columns = tuple(
        column_statistics(name, column, train.origin)
        for name, column in train.columns.items()
        if name not in target_columns
    )
    if spec is None:
        return ClientStatistics(client, columns, ())
    kind = target_kind(config)
    num_classes = 0
    if kind == "classification":
        codes, _ = class_codes(table.columns[spec.target.column], spec)
        num_classes = len(np.unique(codes[codes >= 0]))
    return ClientStatistics(
        client,
        columns,
        target=tuple(column_statistics(name, table.columns[name]) for name in target_columns),
        train_target=moments(train.columns[spec.target.column].numbers),
        associations=associations(train, spec, kind),
        num_classes=num_classes,
    )


@dataclass(frozen=True)
class FittedColumns:
    """What the statistics of all clients say about the columns.

    Attributes:
        encoders: How each input column is encoded.
        dropped: Columns that are no inputs.
        spec: How the target is read; None if it is not known.
        target: The target; None if there are problems with it.
        clients: The names of the clients.
        diagnostics: Problems and notes.
    """

    encoders: tuple[Encoder, ...]
    dropped: tuple[DroppedColumn, ...]
    spec: TargetSpec | None
    target: Target | None
    clients: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def preprocessor(self) -> Preprocessor | None:
        """The preprocessor, or None if there are problems."""
        has_problems = any(diagnostic.is_problem for diagnostic in self.diagnostics)
        if self.spec is None or self.target is None or has_problems:
            return None
        return Preprocessor(
            FORMAT_VERSION, self.encoders, self.dropped, self.spec, self.target, self.clients
        )


def fit_columns(
    messages: Sequence[ClientStatistics], spec: TargetSpec | None, config: ColumnConfig
) -> FittedColumns:
    """Decide what columns become, from the statistics of all clients.

    Args:
        messages: The statistics of all clients.
        spec: The target; without it, all columns are described as inputs.
        config: Options of columns.

    Returns:
        The encoder of each column, and diagnostics.
    """
    messages, diagnostics = _align(messages)
    target = None
    if spec is not None:
        target, spec, about_target = infer_target(messages, spec, config)
        diagnostics += about_target
    encoders, dropped, about_columns = infer_schema(messages, config)
    diagnostics += about_columns
    if target is not None:
        diagnostics += check_statistics(messages, encoders, target.kind)
    return FittedColumns(
        encoders=tuple(encoders),
        dropped=tuple(dropped),
        spec=spec,
        target=target,
        clients=tuple(message.client for message in messages),
        diagnostics=tuple(diagnostics),
    )


def _align(
    messages: Sequence[ClientStatistics],
) -> tuple[list[ClientStatistics], list[Diagnostic]]:
    """Restrict messages to the columns that all clients have, in the order of the first.

    A column that some clients lack is a problem of those that lack it, or of those that have it if
    they are fewer.
    """
    by_name = [{column.name: column for column in message.columns} for message in messages]
    names = dict.fromkeys(name for columns in by_name for name in columns)
    common = [name for name in names if all(name in columns for columns in by_name)]
    aligned = [
        replace(message, columns=tuple(columns[name] for name in common))
        for message, columns in zip(messages, by_name, strict=True)
    ]
    diagnostics = []
    for name in names:
        has_column = [name in columns for columns in by_name]
        num_with = sum(has_column)
        if num_with == len(messages):
            continue
        is_missing = 2 * num_with >= len(messages)
        text = f"only {num_with} of {len(messages)} clients have it"
        if is_missing:
            text = f"it is missing here, and {num_with} of {len(messages)} clients have it"
        option = f"--ignore-columns {name}"
        diagnostics += [
            Diagnostic(f"{text}: add the column, or {option}", True, message.client, name, option)
            for message, has in zip(messages, has_column, strict=True)
            if has != is_missing
        ]
    return aligned, diagnostics


# ----------------------------------------------------------- sites that keep their rows in folders


def find_table(folder: Path, name: str) -> Table | None:
    """Read the table of this name in a site's folder; None if there is none."""
    for suffix in READERS:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return read_table(path)
    return None


def summarise_site(folder: Path, client: str, config: ColumnConfig) -> str:
    """Compute the message of one site.

    Args:
        folder: The site's folder, with the tables `train` and optionally `test`.
        client: The site's name.
        config: Options of columns.

    Returns:
        The JSON of its statistics; the classes are those of the training and the test rows.
    """
    train, spec = _read_labelled(folder, "train", config)
    message = compute_statistics(client, train, spec, config)
    test = find_table(folder, "test")
    if test is not None:
        targets = [
            table.drop(frozenset(table.columns) - set(spec.columns)) for table in (train, test)
        ]
        both = ClientTables({client: concat_tables(targets)})
        labelled, _ = drop_unlabelled_rows(both, spec, config)
        targets_of_all = labelled.clients[client]
        message = replace(
            message,
            target=compute_statistics(client, targets_of_all, spec, config).target,
            num_shared_rows=_count_shared_rows(train, test),
        )
    return to_json(message)


def _count_shared_rows(train: Table, test: Table) -> int:
    """Count the test rows of a site that equal one of its training rows."""
    names = [name for name in train.columns if name in test.columns]
    rows = np.arange(len(train) + len(test))
    return count_shared_rows([train, test], names, rows[: len(train)], rows[len(train) :])


def count_train_rows(folder: Path, config: ColumnConfig) -> int:
    """Count the training rows of a site that have a target."""
    return len(_read_labelled(folder, "train", config)[0])


def fit_on_server_rows(folder: Path, num_clients: int, config: ColumnConfig) -> Preprocessor:
    """Fit the preprocessor to the server's public rows alone.

    No client sends anything, so the names of clients are their numbers.

    Args:
        folder: The folder with the server's public rows.
        num_clients: Number of clients of the run.
        config: Options of columns.

    Returns:
        The fitted preprocessor.
    """
    public, spec = _read_labelled(folder, "public", config)
    messages = [compute_statistics(SERVER, public, spec, config)]
    preprocessor, _ = _fit_or_raise(messages, spec, config, f"the public rows in '{folder}'")
    return replace(preprocessor, clients=tuple(map(str, range(num_clients))))


def merge_files(paths: Sequence[Path], config: ColumnConfig) -> tuple[Preprocessor, list[str]]:
    """Fit the preprocessor to files that `summarise_site` wrote; see `merge_messages`.

    Args:
        paths: The files.
        config: Options of columns.

    Returns:
        The fitted preprocessor, and its notes.

    Raises:
        UsageError: If a file is given twice or cannot be read.
    """
    texts = {}
    for path in paths:
        try:
            texts[f"'{path}'"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' cannot be read: {error}") from error
    if len(texts) < len(paths):
        raise UsageError("a file is given twice: give that of each site once")
    return merge_messages(texts, config)


def merge_messages(
    texts: Mapping[str, str], config: ColumnConfig
) -> tuple[Preprocessor, list[str]]:
    """Fit the preprocessor to the messages of all sites.

    Args:
        texts: The JSON of each message, by the name that it has in errors.
        config: Options of columns.

    Returns:
        The preprocessor, and notes on columns.

    Raises:
        UsageError: If messages are damaged or do not fit together.
    """
    if config.standardise == "client":
        raise UsageError(
            "standardise is 'client': "
            "sites that are apart are standardised by the federation, or not"
        )
    messages = [from_json(ClientStatistics, text, source) for source, text in texts.items()]
    columns = [column.name for column in (*messages[0].columns, *messages[0].target)]
    spec = parse_target(config, columns, next(iter(texts)))
    clients = [message.client for message in messages]
    if len(set(clients)) < len(clients):
        raise UsageError(f"two messages are of one client: {', '.join(clients)}")
    for message in messages:
        if tuple(column.name for column in message.target) != spec.columns:
            raise UsageError(
                f"client '{message.client}' was summarised for another target than "
                f"'{spec.target.name}'"
            )
    return _fit_or_raise(messages, spec, config, "the statistics of the sites")


def _fit_or_raise(
    messages: Sequence[ClientStatistics], spec: TargetSpec, config: ColumnConfig, source: str
) -> tuple[Preprocessor, list[str]]:
    """Fit the preprocessor; problems are raised, notes are returned."""
    fitted = fit_columns(messages, spec, config)
    raise_problems(fitted.diagnostics, source)
    preprocessor = fitted.preprocessor
    assert preprocessor is not None
    notes = [str(diagnostic) for diagnostic in fitted.diagnostics]
    notes += [f"column '{c.name}' is left out: {c.reason}" for c in preprocessor.dropped]
    return preprocessor, notes


def _read_labelled(folder: Path, name: str, config: ColumnConfig) -> tuple[Table, TargetSpec]:
    """Read a site's rows that have a target, without ignored columns."""
    table = find_table(folder, name)
    if table is None:
        raise UsageError(
            f"'{folder}' has no {name}.csv or {name}.parquet: put the site's rows there"
        )
    table = table.drop(frozenset(parse_names(config.ignore_columns)))
    spec = parse_target(config, table.columns, f"'{folder}'")
    labelled, diagnostics = drop_unlabelled_rows(ClientTables({name: table}), spec, config)
    raise_problems(diagnostics, f"'{folder}'")
    return labelled.clients[name], spec
