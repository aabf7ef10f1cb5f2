"""The exchange by files, for sites whose rows stay where they are: each writes its sums and counts, one merges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.data.tables.choices import ColumnChoices, listed
from equipoise.data.tables.clients import together, with_targets
from equipoise.data.tables.exchange import merge, rule_of, statistics_of
from equipoise.data.tables.findings import refuse
from equipoise.data.tables.preparation import Preparation
from equipoise.data.tables.reading import READERS, read_file
from equipoise.data.tables.rule import Rule
from equipoise.data.tables.statistics import Statistics
from equipoise.data.tables.table import Table, Tables
from equipoise.data.tables.typed import of_json, to_json
from equipoise.utils.errors import UsageError

PREPARATION = "preparation.json"
"""The file in a site's folder that says how its rows are prepared."""


def find_table(folder: Path, name: str) -> Table | None:
    """The table of this name in a site's folder."""
    path = next((path for kind in READERS if (path := folder / f"{name}{kind}").is_file()), None)
    return None if path is None else read_file(path)


def summarise(folder: Path, client: str, choices: ColumnChoices) -> str:
    """One site's message: columns of its training rows, and the classes of these and its test rows."""
    train, rule = _known(folder, "train", choices)
    test = find_table(folder, "test")
    message = statistics_of(client, train, rule)
    if test is not None:
        both = together(
            [table.without(frozenset(table.columns) - set(rule.columns)) for table in (train, test)]
        )
        seen = with_targets(Tables({client: both}), rule, choices)[0].clients[client]
        message = Statistics(
            client, message.columns, statistics_of(client, seen, rule).target, message.trained
        )
    return to_json(message)


def training_rows(folder: Path, choices: ColumnChoices) -> int:
    """Rows of a site whose target is known."""
    return len(_known(folder, "train", choices)[0])


def of_server(folder: Path, clients: int, choices: ColumnChoices) -> Preparation:
    """From the server's public rows alone: no client tells anything, so that clients have their numbers as names."""
    public, rule = _known(folder, "public", choices)
    made = _merged(
        [statistics_of("server", public, rule)], rule, choices, f"the public rows in '{folder}'"
    )[0]
    return replace(made, clients=tuple(map(str, range(clients))))


def _known(folder: Path, name: str, choices: ColumnChoices) -> tuple[Table, Rule]:
    """A site's rows whose target is known, without ignored columns."""
    table = find_table(folder, name)
    if table is None:
        raise UsageError(
            f"'{folder}' has no {name}.csv or {name}.parquet: put the site's rows there"
        )
    table = table.without(frozenset(listed(choices.ignore_columns)))
    rule = rule_of(choices, tuple(table.columns), f"'{folder}'")
    known, findings = with_targets(Tables({name: table}), rule, choices)
    refuse(findings, f"'{folder}'")
    return known.clients[name], rule


def merge_files(paths: Sequence[Path], choices: ColumnChoices) -> tuple[Preparation, list[str]]:
    """The preparation for all, and what is to be said about columns."""
    texts = {}
    for path in paths:
        try:
            texts[f"'{path}'"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' cannot be read: {error}") from error
    if len(texts) < len(paths):
        raise UsageError("a file is given twice: give that of each site once")
    return merge_messages(texts, choices)


def merge_messages(
    texts: Mapping[str, str], choices: ColumnChoices
) -> tuple[Preparation, list[str]]:
    """The same from messages; the keys say where each is from."""
    if choices.standardise == "client":
        raise UsageError(
            "standardise is 'client': sites that are apart are standardised by the federation, or not"
        )
    messages = [of_json(Statistics, text, where) for where, text in texts.items()]
    first = messages[0]
    rule = rule_of(
        choices, tuple(c.name for c in (*first.columns, *first.target)), next(iter(texts))
    )
    names = [message.client for message in messages]
    if len(set(names)) < len(names):
        raise UsageError(f"two messages are of one client: {', '.join(names)}")
    for message in messages:
        if tuple(column.name for column in message.target) != rule.columns:
            raise UsageError(
                f"client '{message.client}' was summarised for another target than '{rule.name}'"
            )
    return _merged(messages, rule, choices, "what the sites tell")


def _merged(
    messages: Sequence[Statistics], rule: Rule, choices: ColumnChoices, where: str
) -> tuple[Preparation, list[str]]:
    preparation, findings = merge(messages, rule, choices)
    refuse(findings, where)
    assert preparation is not None
    left = [f"column '{column.name}' is left out: {column.why}" for column in preparation.left_out]
    return preparation, [*map(str, findings), *left]
