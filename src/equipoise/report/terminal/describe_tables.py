"""Tables in words: clients, columns, problems, and the command that would go on."""

from __future__ import annotations

import dataclasses
import json
import shlex
import textwrap
from collections.abc import Mapping

from equipoise.data.tables.description import ColumnView, Description

WIDTH = 80
NAME = 22  # characters of a name in a table, at most
CLASSES = 4  # classes that have a column


def as_json(found: Description, options: Mapping[str, str]) -> str:
    return json.dumps(
        {**dataclasses.asdict(found), "command": command(found, options)}, ensure_ascii=False
    )


def in_words(found: Description, options: Mapping[str, str]) -> str:
    """``options``: those that were given, as the command line has them."""
    rows = sum(client.rows for client in found.clients)
    lines = [
        f"{found.source}: {len(found.clients)} clients, {rows:,} rows",
        f"target: {_target(found)}",
        "",
    ]
    lines += [*_clients(found), "", *_columns(found)]
    notes = [str(finding) for finding in found.findings if not finding.problem]
    for title, told in (
        ("notes", notes),
        ("problems", [str(problem) for problem in found.problems]),
    ):
        if told:
            lines += ["", f"{len(told)} {title if len(told) > 1 else title[:-1]}:"]
            lines += [
                textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
                for text in told
            ]
    wish = "what might help, and then" if found.problems else "nothing is in the way;"
    return "\n".join([*lines, "", f"{wish} go on with:", f"  {command(found, options)}"])


def command(found: Description, options: Mapping[str, str]) -> str:
    """The run of these options, with what the problems ask for."""
    merged = dict(options)
    for problem in found.problems:
        name, _, value = problem.option.removeprefix("--").partition(" ")
        if name == "ignore-columns" and merged.get(name):
            value = ",".join(dict.fromkeys([*merged[name].split(","), *value.split(",")]))
        if name:
            merged[name] = value
    given = [part for name, value in merged.items() for part in (f"--{name}", value)]
    return shlex.join(["equipoise", "run", *given])


def _target(found: Description) -> str:
    target = found.target
    if target is None:
        return "not clear, see the problems"
    if target.kind == "classification":
        return f"{target.name}, {len(target.classes)} classes"
    return f"{target.name}, {target.kind}" + (f" with event {target.event}" if target.event else "")


def _clients(found: Description) -> list[str]:
    target = found.target
    classes = target.classes if target else ()
    told = classes if len(classes) <= CLASSES else ()
    other = (
        {"regression": "mean of target", "survival": "event seen"}.get(target.kind, "")
        if target
        else ""
    )
    head = ["client", "rows", "no target", *told, *([other] if other else [])]
    table = [head]
    for client in found.clients:
        total = max(1, sum(client.classes))
        shares = [f"{100 * n / total:.1f} %" for n in client.classes] if told else []
        mean = "" if client.mean is None else f"{client.mean:.4g}"
        mean = (
            f"{100 * client.mean:.1f} %"
            if client.mean is not None and other == "event seen"
            else mean
        )
        table.append(
            [
                client.name,
                f"{client.rows:,}",
                str(client.without_target),
                *shares,
                *([mean] if other else []),
            ]
        )
    return _aligned(table)


def _columns(found: Description) -> list[str]:
    table = [["column", "becomes", "values", "missing"]]
    table += [[view.name, view.kind, view.values, _missing(view)] for view in found.columns]
    return _aligned(table, left=True)


def _missing(view: ColumnView) -> str:
    if not view.missing:
        return "-"
    name, share = view.missing_at[0]
    return f"{100 * view.missing:.1f} % ({name} {100 * share:.0f} %)"


def _aligned(table: list[list[str]], left: bool = False) -> list[str]:
    """Columns side by side: the first to the left, others to the right, or all to the left and cut to fit."""
    table = [[_cut(row[0], NAME), *row[1:]] for row in table]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    if left:
        room = WIDTH - widths[0] - widths[1] - widths[3] - 6
        widths[2] = max(12, min(widths[2], room))
        table = [[*row[:2], _cut(row[2], widths[2]), row[3]] for row in table]
    lines = []
    for row in table:
        cells = [
            f"{cell:<{w}}" if left or not i else f"{cell:>{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
