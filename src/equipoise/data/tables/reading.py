"""Tables in files: a folder with one CSV or Parquet file per client, or one file with a column of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from equipoise.data.sources import import_extra
from equipoise.data.tables.cells import PLAIN
from equipoise.data.tables.choices import TableChoices, listed
from equipoise.data.tables.csv_file import read_csv
from equipoise.data.tables.findings import Finding, refuse
from equipoise.data.tables.splits import with_splits
from equipoise.data.tables.table import Table, Tables, table_of
from equipoise.utils.errors import UsageError, nearest

SERVER = "server"  # the file in a folder that holds the server's own rows
SHOWN = 5


def read_tables(path: Path, client: str, choices: TableChoices) -> Tables:
    """Everybody's rows without ignored columns; all that is wrong with the files as such is refused at once."""
    tables, findings = look_at_tables(path, client, choices)
    refuse(findings, tables.source)
    return tables


def look_at_tables(path: Path, client: str, choices: TableChoices) -> tuple[Tables, list[Finding]]:
    """The same, with what is wrong beside what could be read."""
    if path.is_dir():
        found, findings = _folder(path)
    elif path.is_file():
        found, findings = _one_file(path, client)
    else:
        raise UsageError(
            f"there is no file or folder '{path}': give --data a folder of CSV or Parquet files, or one file"
        )
    return _aligned(found, findings, choices)


def in_memory(tables: Tables, choices: TableChoices) -> Tables:
    """Tables that are there already, under the same rules as files."""
    aligned, findings = _aligned(tables, [], choices)
    refuse(findings, tables.source)
    return aligned


def read_file(path: Path, client: str = "") -> Table:
    """One CSV or Parquet file; ``client``: the column that names clients, if there is one."""
    kind = path.suffix.lower()
    if kind not in READERS:
        raise UsageError(f"'{path}' is neither .csv nor .parquet")
    return READERS[kind](path, client)


def _aligned(
    tables: Tables, findings: list[Finding], choices: TableChoices
) -> tuple[Tables, list[Finding]]:
    """Without ignored columns, and with those that everybody has; others are problems, told for each client."""
    ignore, predicted = (
        frozenset(listed(choices.ignore_columns)),
        f"{choices.target} {choices.event}",
    )
    known = {name for table in tables.clients.values() for name in table.columns}
    if unknown := sorted(ignore - known):
        near = nearest(unknown[0], known)
        raise UsageError(
            f"{tables.source} has no column '{unknown[0]}'{near}: see --ignore-columns"
        )
    tables = _without(tables, ignore)
    if choices.split_column:
        tables, about = with_splits(tables, choices.split_column)
        findings = [*findings, *about]
    everybody = [
        *tables.clients.items(),
        *([] if tables.server is None else [(SERVER, tables.server)]),
    ]
    held = Counter(name for _, table in everybody for name in table.columns)
    common = {name for name, count in held.items() if count == len(everybody)}
    usual = {name for name, count in held.items() if 2 * count > len(everybody)}
    for owner, table in everybody:
        lacks, more = sorted(usual - set(table.columns)), sorted(set(table.columns) - usual)
        parts = [f"lacks {_quoted(lacks)}"] * bool(lacks) + [f"alone has {_quoted(more)}"] * bool(
            more
        )
        if parts:
            words = (
                f"{' and '.join(parts)}: name columns alike, or leave them out (--ignore-columns)"
            )
            ignored = ",".join(name for name in [*lacks, *more] if name not in predicted)
            option = f"--ignore-columns {ignored}" if ignored else ""
            findings.append(Finding(words, True, client=owner, option=option))
    return _without(tables, frozenset(held) - common), findings


def _without(tables: Tables, gone: frozenset[str]) -> Tables:
    clients = {name: table.without(gone) for name, table in tables.clients.items()}
    return Tables(
        clients, None if tables.server is None else tables.server.without(gone), tables.source
    )


def _folder(path: Path) -> tuple[Tables, list[Finding]]:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in READERS)
    clients: dict[str, Table] = {}
    findings: list[Finding] = []
    server = None
    for file in files:
        try:
            table = read_file(file)
        except UsageError as error:
            findings.append(Finding(str(error), True, client=file.stem))
            continue
        if file.stem == SERVER:
            server = table
        elif file.stem in clients:
            findings.append(Finding("has two files: keep one of them", True, client=file.stem))
        elif len(table):
            clients[file.stem] = table
        else:
            findings.append(
                Finding(f"'{file}' has no rows: remove it or fill it", True, client=file.stem)
            )
    if not clients:
        raise UsageError(
            str(findings[0]) if findings else f"'{path}' holds no CSV or Parquet files"
        )
    return Tables(clients, server, f"'{path}'"), findings


def _one_file(path: Path, client: str) -> tuple[Tables, list[Finding]]:
    return by_client(read_file(path, client), client, f"'{path}'")


def by_client(table: Table, client: str, source: str) -> tuple[Tables, list[Finding]]:
    """Everybody's rows of one table, by the column that names clients; ``source`` is what errors call it."""
    if client not in table.columns:
        has = f"it has {', '.join(map(repr, table.columns))}"
        raise UsageError(
            f"{source} has no client column '{client}'{nearest(client, table.columns)}: see --client-column ({has})"
        )
    codes, names = table.columns[client].labels
    nobody = table.row[codes < 0]
    findings = []
    if len(nobody):
        words = f"has no client in {rows_in_words(nobody.tolist())}: fill it, or remove these rows"
        findings.append(Finding(words, True, column=client))
    if not names:
        raise UsageError(f"{source} has no rows with a client in column '{client}'")
    rest = table.without(frozenset({client}))
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    owned = {name: rest.take(order[cuts[k] : cuts[k + 1]]) for k, name in enumerate(names)}
    numbers = all(PLAIN.fullmatch(name) for name in names)
    in_order = sorted(owned, key=float) if numbers else sorted(owned)
    return Tables({name: owned[name] for name in in_order}, None, source), findings


def rows_in_words(rows: list[int]) -> str:
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows[:SHOWN]))}{more}"


def _parquet(path: Path, client: str) -> Table:
    pyarrow = import_extra("pyarrow", "reading Parquet")
    try:
        return table_of(
            import_extra("pyarrow.parquet", "reading Parquet").read_table(path), f"'{path}'", client
        )
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UsageError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )


READERS: dict[str, Callable[[Path, str], Table]] = {".csv": read_csv, ".parquet": _parquet}
