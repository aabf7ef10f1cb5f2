"""The exchange by files, for sites whose rows stay where they are: each writes its sums and counts, one merges them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.core.errors import UsageError
from equipoise.data.tables.choices import TableChoices, listed
from equipoise.data.tables.clients import together, with_targets
from equipoise.data.tables.exchange import merge, rule_of, statistics_of
from equipoise.data.tables.findings import refuse
from equipoise.data.tables.preparation import Preparation
from equipoise.data.tables.reading import READERS, read_file
from equipoise.data.tables.statistics import Statistics
from equipoise.data.tables.table import Table, Tables
from equipoise.data.tables.typed import of_json, to_json

PREPARATION = "preparation.json"
"""The file in a site's folder that says how its rows are prepared."""


def find_table(folder: Path, name: str) -> Table | None:
    """The table of this name in a site's folder."""
    path = next((path for kind in READERS if (path := folder / f"{name}{kind}").is_file()), None)
    return None if path is None else read_file(path)


def summarise(folder: Path, client: str, choices: TableChoices) -> str:
    """One site's message: columns of its training rows, and the classes of these and its test rows."""
    train = find_table(folder, "train")
    if train is None:
        raise UsageError(f"'{folder}' has no train.csv or train.parquet: put the site's training rows there")
    ignore = frozenset(listed(choices.ignore_columns))
    train, test = train.without(ignore), find_table(folder, "test")
    rule = rule_of(choices, tuple(train.columns), f"'{folder}'")
    known, findings = with_targets(Tables({client: train}), rule, choices)
    refuse(findings, f"'{folder}'")
    message = statistics_of(client, known.clients[client], rule)
    if test is not None:
        both = together([table.without(frozenset(table.columns) - set(rule.columns)) for table in (train, test)])
        seen = with_targets(Tables({client: both}), rule, choices)[0].clients[client]
        message = Statistics(client, message.columns, statistics_of(client, seen, rule).target, message.trained)
    return to_json(message)


def merge_files(paths: Sequence[Path], choices: TableChoices) -> tuple[Preparation, list[str]]:
    """The preparation for all, and what is to be said about columns."""
    if choices.standardise == "client":
        raise UsageError("standardise is 'client': sites that are apart are standardised by the federation, or not")
    messages = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' cannot be read: {error}") from error
        messages.append(of_json(Statistics, text, f"'{path}'"))
    first = messages[0]
    rule = rule_of(choices, tuple(c.name for c in (*first.columns, *first.target)), f"'{paths[0]}'")
    names = [message.client for message in messages]
    if len(set(names)) < len(names):
        raise UsageError(f"two files are of one client: {', '.join(names)}")
    for message in messages:
        if tuple(column.name for column in message.target) != rule.columns:
            raise UsageError(f"client '{message.client}' was summarised for another target than '{rule.name}'")
    preparation, findings = merge(messages, rule, choices)
    refuse(findings, "what the sites tell")
    assert preparation is not None
    left = [f"column '{column.name}' is left out: {column.why}" for column in preparation.left_out]
    return preparation, [*map(str, findings), *left]
