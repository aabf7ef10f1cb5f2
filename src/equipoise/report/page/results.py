"""The result: the table of a comparison with the best in bold, the cards of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from equipoise.records.summary import Summary
from equipoise.report import paired, tables
from equipoise.report.page.drawing import Score
from equipoise.report.page.table import table
from equipoise.report.reading import Group


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
            *(
                (str(c), c.mean, c.mean is not None and c.mean == top)
                for c, top in zip(row, best, strict=True)
            ),
        ]
        for method, row in cells.items()
    ]
    head = [("method", False), *((column.title, column.higher) for column in shown)]
    note = "Mean ± standard deviation over seeds; the best of each column is bold. Press a title to sort."
    return f'<p class="faint">{note}</p>{table(head, rows)}{_paired(finished, shown)}'


def _paired(finished: Mapping[str, Sequence[Summary]], shown: Sequence[tables.Column]) -> str:
    if (
        len(finished) < 2
        or min(map(len, finished.values())) < 2
        or len({len(v) for v in finished.values()}) > 1
    ):
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
        head = [
            ("method", False),
            ("difference", column.higher),
            ("95 % interval", column.higher),
            ("", False),
        ]
        parts.append(
            f"<h3>{escape(column.title)}: difference to {escape(best)}, the best</h3>{table(head, rows)}"
        )
    return (
        f"<details><summary>Paired differences over seeds</summary>{''.join(parts)}</details>"
        if parts
        else ""
    )


def cards(groups: Sequence[Group], score: Score) -> str:
    """Of one method: its main figures at a glance."""
    if len(groups) > 1 or not groups[0].summaries:
        return ""
    shown = tables.columns(groups[0].summaries[0])
    row = tables.rows({"": groups[0].summaries}, shown)[""]
    summary = groups[0].summaries[0]
    facts = [(cell.column.title, str(cell)) for cell in row if cell.mean is not None]
    facts.append(
        ("rounds", str(summary.rounds) + (f" ({summary.stopped})" if summary.stopped else ""))
    )
    if summary.best_round:
        facts.append(("best round by validation", str(summary.best_round)))
    facts.append(("dropped updates", str(summary.dropped_updates)))
    if summary.about.executor:
        facts.append(("executor", summary.about.executor))
    inner = "".join(
        f'<div class="card">{escape(name)}<b{" class=long" if len(value) > 20 else ""}>{escape(value)}</b></div>'
        for name, value in facts
    )
    return f'<div class="cards">{inner}</div>'
