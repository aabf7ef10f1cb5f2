"""Tables of summaries: on screen, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

Summary = dict[str, Any]
LOWER_IS_BETTER = ("error", "loss")  # headlines; of any other one, more is better


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


def _score(name: str, metric: str) -> Callable[[Summary], float | None]:
    return lambda summary: (summary.get(name) or {}).get(metric)


def _newcomer(epochs: str, metric: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary.get("newcomers", {}).get(epochs, {}).get(metric)


def columns(summary: Summary) -> list[Column]:
    """All named evaluations, convergence, bytes and time; the first figure of a score is the one shown."""
    headline = next(iter(summary["trained"]))
    higher = headline not in LOWER_IS_BETTER
    form = (100.0, 2, True, higher) if headline == "acc" else (1.0, 4, True, higher)
    unit = "%" if headline == "acc" else headline
    tuned = [Column(f"fine-tuned {unit}", _score("finetuned", headline), *form)] if "finetuned" in summary else []
    return [
        Column(f"global {unit}", _score("global", headline), *form),
        Column(f"personal {unit}", _score("personal", headline), *form),
        *tuned,
        Column(f"{'worst' if higher else 'best'} decile {unit}", _score("personal", "p10"), *form),
        Column(f"trained {unit}", _score("trained", headline), *form),
        Column(f"received {unit}", _score("received", headline), *form),
        *(
            Column(f"new, k={k} {unit}", _newcomer(k, headline), *form)
            for k in summary.get("newcomers", {})
            if k != "clients"
        ),
        Column("rounds to converge: global", _score("converged_round", "global"), 1, 0, on_screen=False, higher=False),
        Column("rounds to converge", _score("converged_round", "personal"), 1, 0, higher=False),
        Column("MB up", _score("bytes", "up"), 1e-6, higher=False),
        Column("MB down", _score("bytes", "down"), 1e-6, higher=False),
        Column("seconds", lambda summary: summary["seconds"], 1, 1, on_screen=False, higher=False),
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


def rows(by_method: Mapping[str, Sequence[Summary]], shown: Sequence[Column]) -> dict[str, list[Cell]]:
    """A row a method, a cell a column; a seed without the figure does not count in it."""
    return {
        method: [
            Cell(tuple(v * column.scale for s in summaries if (v := column.get(s)) is not None), column)
            for column in shown
        ]
        for method, summaries in by_method.items()
    }


def to_screen(title: str, table: dict[str, list[Cell]], shown: Sequence[Column], console: Console) -> None:
    picture = Table(title=title, title_justify="left")
    picture.add_column("method", no_wrap=True)
    for column in shown:
        if column.on_screen:
            picture.add_column(column.title, justify="right", min_width=7)
    for method, cells in table.items():
        picture.add_row(method, *(str(cell) for cell in cells if cell.column.on_screen))
    console.print(picture)


def to_markdown(title: str, table: dict[str, list[Cell]], shown: Sequence[Column], command: str) -> str:
    lines = [f"# {title}", "", f"`{command}`", "", "Mean ± standard deviation over seeds.", ""]
    lines.append("| method | " + " | ".join(column.title for column in shown) + " |")
    lines.append("|---|" + "---:|" * len(shown))
    lines += [f"| {method} | " + " | ".join(map(str, cells)) + " |" for method, cells in table.items()]
    return "\n".join(lines) + "\n"


def to_csv(table: dict[str, list[Cell]], shown: Sequence[Column]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "seeds", *(f"{c.title} {what}" for c in shown for what in ("mean", "std"))])
    for method, cells in table.items():
        figures = [value for cell in cells for value in (cell.mean, cell.spread)]
        seeds = max(len(cell.values) for cell in cells)
        writer.writerow([method, seeds, *("" if value is None else f"{value:.6g}" for value in figures)])
    return file.getvalue()
