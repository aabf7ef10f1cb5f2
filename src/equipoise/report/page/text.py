"""Words and tables of the report: cards, results with the best in bold, clients, certificates, how to repeat."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from equipoise.core.errors import UsageError
from equipoise.methods import find_method
from equipoise.report import paired, tables
from equipoise.report.folders import Group, Run
from equipoise.report.page.drawing import Score
from equipoise.report.page.figures import after
from equipoise.settings.config import options
from equipoise.tasks import find_task

LISTED = 200  # clients of the table; of more, the worst and the best


def table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[tuple[str, float | None, bool]]]) -> str:
    """Sortable. A head is a title and whether more is better; a cell its text, its figure and whether it is best."""
    top = "".join(
        f'<th data-first="{"descending" if higher else "ascending"}"><button>{escape(title)}</button></th>'
        for title, higher in head
    )
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: tuple[str, float | None, bool]) -> str:
    words, value, best = cell
    known = value is not None and math.isfinite(value)
    kind = ' class="best"' if best else ""
    data = f' data-value="{value:.10g}"' if known else (' data-value=""' if words == "—" else "")
    return f"<td{kind}{data}>{escape(words)}</td>"


def results(groups: Sequence[Group], score: Score) -> str:
    """The table of a comparison and, over seeds, the paired differences to the best."""
    finished = {group.label: group.summaries for group in groups if group.summaries}
    if not finished:
        return "<p>No run has finished yet.</p>"
    if len(groups) == 1:  # its cards say the same
        return ""
    shown = tables.columns(next(iter(finished.values()))[0])
    cells = tables.rows(finished, shown)
    best = []
    for i, column in enumerate(shown):
        means = [mean for row in cells.values() if (mean := row[i].mean) is not None]
        best.append((max if column.higher else min)(means) if len(finished) > 1 and means else None)
    rows = [
        [
            (method, None, False),
            *((str(c), c.mean, c.mean is not None and c.mean == top) for c, top in zip(row, best, strict=True)),
        ]
        for method, row in cells.items()
    ]
    head = [("method", False), *((column.title, column.higher) for column in shown)]
    note = "Mean ± standard deviation over seeds; the best of each column is bold. Press a title to sort."
    return f'<p class="faint">{note}</p>{table(head, rows)}{_paired(finished, shown)}'


def _paired(finished: dict[str, list[dict[str, Any]]], shown: Sequence[tables.Column]) -> str:
    if len(finished) < 2 or min(map(len, finished.values())) < 2 or len({len(v) for v in finished.values()}) > 1:
        return ""
    parts = []
    for column in shown:
        if not column.title.startswith(("global ", "personal ")):
            continue
        try:
            best, others = paired.against_best(finished, column)
        except ValueError:  # nobody has the figure
            continue
        digits = column.digits
        rows = [
            [
                (method, None, False),
                (f"{d.mean:+.{digits}f}", d.mean, False),
                (f"{d.low:+.{digits}f} … {d.high:+.{digits}f}", d.low, False),
                (d.verdict, None, False),
            ]
            for method, d in others.items()
            if d is not None
        ]
        head = [("method", False), ("difference", column.higher), ("95 % interval", column.higher), ("", False)]
        parts.append(f"<h3>{escape(column.title)}: difference to {escape(best)}, the best</h3>{table(head, rows)}")
    return f"<details><summary>Paired differences over seeds</summary>{''.join(parts)}</details>" if parts else ""


def cards(groups: Sequence[Group], score: Score) -> str:
    """Of one method: its main figures at a glance."""
    if len(groups) > 1 or not groups[0].summaries:
        return ""
    shown = tables.columns(groups[0].summaries[0])
    row = tables.rows({"": groups[0].summaries}, shown)[""]
    summary = groups[0].summaries[0]
    facts = [(cell.column.title, str(cell)) for cell in row if cell.mean is not None]
    facts.append(("rounds", str(summary["rounds"]) + (f" ({summary['stopped']})" if summary["stopped"] else "")))
    facts.append(("best round by validation", str(summary["best_round"])))
    facts.append(("dropped updates", str(summary["dropped_updates"])))
    if "executor" in summary:
        facts.append(("executor", summary["executor"]))
    inner = "".join(
        f'<div class="card">{escape(name)}<b{" class=long" if len(value) > 20 else ""}>{escape(value)}</b></div>'
        for name, value in facts
    )
    return f'<div class="cards">{inner}</div>'


def clients(run: Run, score: Score) -> str:
    """One line a client; of very many, the worst and the best by their personal model."""
    known = list(run.clients)
    count = len(run.clients.get("client", []))
    if not count:
        return ""
    final = after(run) or [0.0] * count
    order = sorted(range(count), key=lambda i: final[i] if math.isfinite(final[i]) else math.inf)
    half = LISTED // 2
    kept = sorted(order if count <= LISTED else [*order[:half], *order[-half:]])
    rows = [[(_figure(v), v, False) for v in (run.clients[name][i] for name in known)] for i in kept]
    which = "" if count <= LISTED else f" ({half} with the lowest and {half} with the highest score of {count})"
    head = [(name.replace("_", " "), False) for name in known]
    return f"<details><summary>Table of clients{which}</summary>{table(head, rows)}</details>"


def certificates(groups: Sequence[Group]) -> str:
    """What `equipoise certify` found."""
    rows = []
    for group in groups:
        for summary in group.summaries:
            if found := summary.get("certificate"):
                players, server = found["clients"], found.get("server", {})
                values = [found["epsilon"], players["largest"], players["mean"], players["gaining"], server.get("gain")]
                name = f"{group.label}, seed {summary['seed']}"
                figures = [(_percent(value), value, False) for value in values]
                rows.append([(name, None, False), *figures, (str(found["samples"]), float(found["samples"]), False)])
    if not rows:
        return ""
    titles = ("run", "ε", "client: largest gain", "client: mean gain", "clients that gain", "server: gain", "tried")
    about = (
        "What any player would gain in utility by deviating alone, everything else fixed; sampled, so a lower bound."
    )
    return f'<p class="faint">{about}</p>{table([(title, False) for title in titles], rows)}'


def coverage(groups: Sequence[Group]) -> str:
    """How the agents' trajectories cover the state-action space, which the theory's predictions rest on."""
    rows = []
    for group in groups:
        for summary in group.summaries[:1]:
            if found := summary.get("coverage"):
                values = [summary["error"], *(found[name] for name in ("mu_min", "mu_avg", "c_het", "t_mix"))]
                rows.append([(group.label, None, False), *((_figure(value), value, False) for value in values)])
    titles = ("method", "final error", "μ_min", "μ_avg", "C_het", "t_mix")
    return table([(title, False) for title in titles], rows) if rows else ""


def repeat(groups: Sequence[Group], command: str) -> str:
    """The command, and every option with its value."""
    configs = "".join(
        f"<details><summary>Configuration: {escape(group.label)}</summary>"
        f"<pre>{escape(json.dumps(group.first.config, indent=1))}</pre></details>"
        for group in groups
    )
    return f"<pre>{escape(command)}</pre>{configs}"


def command(config: dict[str, Any]) -> str:
    """What to type for this run: the options that are not at their defaults."""
    words = ["equipoise", "run", "--method", config["method"], "--task", config["task"]]
    try:
        known = options(find_method(config["method"]), find_task(config["task"]))
    except UsageError:  # a method or task of somebody's own, which is not here
        known = {}
    for name, value in config.items():
        if name in ("method", "task") or (name in known and known[name].default == value):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def _figure(value: float | None) -> str:
    return "—" if value is None or not math.isfinite(value) else f"{value:.4g}" if value % 1 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f} %"
