"""The exchange before round 1: one message of sums and counts per client up, one preparation for all down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.data.federated_dataset import Ints, Kind
from equipoise.data.tables.choices import ColumnChoices, listed
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.preparation import (
    VERSION,
    LeftOut,
    OwnScale,
    Preparation,
    PreparedColumn,
)
from equipoise.data.tables.rule import Rule, find_rule
from equipoise.data.tables.schema import decide_column
from equipoise.data.tables.statistics import Moments, Statistics, column_statistics, moments
from equipoise.data.tables.table import Table
from equipoise.data.tables.targets import decide_target
from equipoise.utils.errors import UsageError, nearest


def rule_of(choices: ColumnChoices, columns: Sequence[str], source: str) -> Rule:
    """What is predicted; names of columns that are nowhere are refused."""
    rule = find_rule(choices.target, choices.event, columns, source)
    for option in ("categories", "numbers"):
        for name in listed(getattr(choices, option)):
            if name not in columns:
                raise UsageError(
                    f"{source} has no column '{name}'{nearest(name, columns)}: see --{option}"
                )
    return rule


def kind_of(choices: ColumnChoices) -> Kind:
    """The kind that is asked for; values decide only whether it is possible."""
    if choices.kind in ("regression", "survival"):
        return choices.kind  # type: ignore[return-value]  # one of the two
    return "survival" if choices.event else "classification"


def statistics_of(
    client: str, table: Table, rule: Rule | None, train: Ints | None = None
) -> Statistics:
    """The message of one client; ``train``: its training rows, if not all. Without a rule all columns are inputs."""
    rows = table if train is None else table.take(np.sort(train))
    predicted = rule.columns if rule else ()
    return Statistics(
        client,
        tuple(
            column_statistics(name, column)
            for name, column in rows.columns.items()
            if name not in predicted
        ),
        tuple(column_statistics(name, table.columns[name]) for name in predicted),
        moments(rows.columns[rule.column].number) if rule else Moments(),
    )


def merge(
    messages: Sequence[Statistics], rule: Rule, choices: ColumnChoices
) -> tuple[Preparation | None, list[Finding]]:
    """The server's side: the preparation for all, or the problems that stand against it."""
    messages, findings = _aligned(messages)
    target, against = decide_target(messages, rule, choices)
    columns, left_out, about = decide_columns(messages, choices)
    findings += [*against, *about]
    if target is None or any(finding.problem for finding in findings):
        return None, findings
    names = tuple(message.client for message in messages)
    return Preparation(VERSION, tuple(columns), tuple(left_out), rule, target, names), findings


def decide_columns(
    messages: Sequence[Statistics], choices: ColumnChoices
) -> tuple[list[PreparedColumn], list[LeftOut], list[Finding]]:
    """What becomes of every column that is not predicted."""
    columns: list[PreparedColumn] = []
    left_out: list[LeftOut] = []
    findings: list[Finding] = []
    for place in range(len(messages[0].columns)):
        column, about = decide_column(messages, place, choices)
        findings += about
        if isinstance(column, LeftOut):
            left_out.append(column)
        else:
            columns.append(column)
    findings += [
        Finding("has missing values, which --missing refuse forbids", True, column=column.name)
        for column in columns
        if column.missing and choices.missing == "refuse"
    ]
    if not columns:
        findings.append(Finding("no column is left to predict from", True))
    return columns, left_out, findings


def with_own_scales(preparation: Preparation, scales: Sequence[OwnScale]) -> Preparation:
    return replace(preparation, own=tuple(scales))


def _aligned(messages: Sequence[Statistics]) -> tuple[list[Statistics], list[Finding]]:
    """Columns in the order of the first client, and only those that everybody has."""
    held = [{column.name: column for column in message.columns} for message in messages]
    common = [name for name in held[0] if all(name in own for own in held)]
    findings = [
        Finding("not every client has it", True, message.client, name, f"--ignore-columns {name}")
        for message, own in zip(messages, held, strict=True)
        for name in own
        if name not in common
    ]
    aligned = [
        replace(message, columns=tuple(own[name] for name in common))
        for message, own in zip(messages, held, strict=True)
    ]
    return aligned, findings
