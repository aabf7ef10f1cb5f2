"""Tables of summaries over seeds, as Markdown and CSV; on screen they are drawn by ``terminal.results``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from equipoise.records.scores import NOTHING, Scores
from equipoise.records.summary import Summary
from equipoise.utils.metrics import higher_is_better


@dataclass(frozen=True)
class Column:
    """One figure of a summary: how to find it and how to write it."""

    title: str
    get: Callable[[Summary], float | None]
    scale: float = 1.0
    digits: int = 2
    on_screen: bool = True
    higher: bool = True
    """Whether more is better."""


def columns(summary: Summary) -> list[Column]:
    """All named evaluations, convergence, bytes and time; the first figure of a score is the one shown."""
    headline = summary.trained.headline or "acc"
    higher = higher_is_better(headline)
    unit = "%" if headline == "acc" else headline

    def score(title: str, get: Callable[[Summary], Scores], metric: str = headline) -> Column:
        scale, digits = (100.0, 2) if headline == "acc" else (1.0, 4)
        return Column(
            f"{title} {unit}", lambda summary: get(summary).get(metric), scale, digits, True, higher
        )

    def newcomers(after: int) -> Column:
        return score(
            f"new, k={after}",
            lambda s: s.newcomers.after.get(after, NOTHING) if s.newcomers else NOTHING,
        )

    tuned = [score("fine-tuned", lambda s: s.finetuned.scores if s.finetuned else NOTHING)]
    return [
        score("global", lambda s: s.global_),
        score("personal", lambda s: s.personal),
        *(tuned if summary.finetuned else []),
        score(f"{'worst' if higher else 'best'} decile", lambda s: s.personal, "p10"),
        score("trained", lambda s: s.trained),
        score("received", lambda s: s.received),
        *(newcomers(after) for after in (summary.newcomers.after if summary.newcomers else {})),
        Column(
            "rounds to converge: global",
            lambda s: s.converged_round.global_,
            1,
            0,
            on_screen=False,
            higher=False,
        ),
        Column("rounds to converge", lambda s: s.converged_round.personal, 1, 0, higher=False),
        Column("steps, thousands", lambda s: s.steps, 1e-3, 1, higher=False),
        Column("MB up", lambda s: s.bytes.up, 1e-6, higher=False),
        Column("MB down", lambda s: s.bytes.down, 1e-6, higher=False),
        Column("clock s", lambda s: s.clock, 1, 1, on_screen=False, higher=False),
        Column("kJ", lambda s: s.energy, 1e-3, 2, on_screen=False, higher=False),
        Column("seconds", lambda s: s.seconds, 1, 1, on_screen=False, higher=False),
    ]


@dataclass(frozen=True)
class Cell:
    """A figure over seeds."""

    values: tuple[float, ...]
    column: Column

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return "—"
        text = f"{self.mean:.{self.column.digits}f}"
        return f"{text} ± {self.spread:.{self.column.digits}f}" if self.spread else text


def rows(
    by_method: Mapping[str, Sequence[Summary]], shown: Sequence[Column]
) -> dict[str, list[Cell]]:
    """One row per method, one cell per column; a seed without the figure does not count in it."""
    return {
        method: [
            Cell(
                tuple(v * column.scale for s in summaries if (v := column.get(s)) is not None),
                column,
            )
            for column in shown
        ]
        for method, summaries in by_method.items()
    }


def to_markdown(
    title: str, table: dict[str, list[Cell]], shown: Sequence[Column], command: str
) -> str:
    lines = [f"# {title}", "", f"`{command}`", "", "Mean ± standard deviation over seeds.", ""]
    lines.append("| method | " + " | ".join(column.title for column in shown) + " |")
    lines.append("|---|" + "---:|" * len(shown))
    lines += [
        f"| {method} | " + " | ".join(map(str, cells)) + " |" for method, cells in table.items()
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: dict[str, list[Cell]], shown: Sequence[Column]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["method", "seeds", *(f"{c.title} {what}" for c in shown for what in ("mean", "std"))]
    )
    for method, cells in table.items():
        figures = [value for cell in cells for value in (cell.mean, cell.spread)]
        seeds = max(len(cell.values) for cell in cells)
        writer.writerow(
            [method, seeds, *("" if value is None else f"{value:.6g}" for value in figures)]
        )
    return file.getvalue()
