"""``equipoise.compare``: several methods, several seeds, on one task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from equipoise.api.given import GivenMethod, gathered, given_in_python, given_means, label_of
from equipoise.api.page import Page
from equipoise.api.result import Run
from equipoise.api.running import new_folder
from equipoise.api.task import Task
from equipoise.core.errors import UsageError, nearest
from equipoise.records.scores import NAMED
from equipoise.report import paired, tables
from equipoise.report.page import html
from equipoise.report.paired import Difference
from equipoise.runs.compare import cell_folder
from equipoise.runs.compare import compare as compare_cells


@dataclass(frozen=True)
class Table:
    """A row for each method, mean and standard deviation over seeds; ``str`` and notebooks show it."""

    columns: list[str]
    rows: dict[str, list[tables.Cell]]

    def __str__(self) -> str:
        shown = {label: [str(cell) for cell in cells] for label, cells in self.rows.items()}
        lines = [("method", self.columns), *shown.items()]
        widths = [max(len(cells[k]) for _, cells in lines) for k in range(len(self.columns))]
        first = max(len(label) for label, _ in lines)
        return "\n".join(
            "  ".join([f"{label:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))])
            for label, cells in lines
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(title)}</th>" for title in ("method", *self.columns))
        body = "".join(
            f"<tr><td>{escape(method)}</td>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
            for method, cells in self.rows.items()
        )
        return f"<table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods over the same seeds."""

    folder: Path
    runs: dict[str, list[Run]]
    """By the method's label, one run for each seed."""

    def table(self) -> Table:
        """All figures, mean and standard deviation over seeds."""
        summaries = {label: [run.summary for run in runs] for label, runs in self.runs.items()}
        shown = tables.columns(next(iter(summaries.values()))[0])
        return Table([column.title for column in shown], tables.rows(summaries, shown))

    def paired(self, score: str = "personal", *, against: str) -> dict[str, Difference | None]:
        """Every other method's score minus that of one of them: mean and 95 % interval over paired seeds.

        Arguments:
            score: ``personal``, ``global``, ``trained`` or ``received``.
            against: the label of the method that is subtracted.

        Returns:
            Differences in the table's unit by label, ``None`` for fewer than two seeds. A method without it is absent.
        """
        if score not in NAMED:
            raise UsageError(f"score is '{score}': must be one of {', '.join(NAMED)}{nearest(score, NAMED)}")
        values = self._values(score)
        if against not in values:
            raise UsageError(f"no method '{against}' with a {score} score is here{nearest(against, values)}")
        column = self._column(score)
        return {
            label: paired.difference(found, values[against], column.higher)
            for label, found in values.items()
            if label != against
        }

    def report(self) -> Page:
        """Draw one page for all runs; gives its path, which a notebook shows as the page itself."""
        return Page(html.write([self.folder], self.folder / "report.html"))

    def _column(self, score: str) -> tables.Column:
        shown = [cell.column for cell in next(iter(self.table().rows.values()))]
        return next(column for column in shown if column.title.startswith(f"{score} "))

    def _values(self, score: str) -> dict[str, list[float]]:
        """The score over seeds of each method that has it."""
        column = self._column(score)
        found = {label: [column.get(run.summary) for run in runs] for label, runs in self.runs.items()}
        return {
            label: [column.scale * value for value in values if value is not None]
            for label, values in found.items()
            if all(value is not None for value in values)
        }


def compare(
    methods: Iterable[GivenMethod],
    task: str | Task = "synthetic",
    *,
    seeds: int = 3,
    seed: int = 0,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    processes: int | None = None,
    state_memory: float | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on a task over several seeds.

    Arguments:
        methods: names, classes, instances or wrapped ones. Each is labelled by its name and the options that it sets.
        task: a name, or a :class:`Task`.
        seeds: how many seeds, from ``seed`` on.
        rounds: federated rounds of each run.
        out: the folder of the comparison; without it, a new one under ``runs/``.
        resume: go on with what is in ``out``.
        overwrite: replace what is in ``out``.
        processes, state_memory: what each run may use of the machine, as in :func:`equipoise.run`.
        options: options of all runs, as in :func:`equipoise.run`; those of one method stand in its instance.

    Returns:
        The comparison, whose runs are finished.
    """
    by_label: dict[str, GivenMethod] = {}
    for method in methods:
        label = label_of(method)
        if label in by_label:
            raise UsageError(f"method '{label}' is named twice: leave one out")
        by_label[label] = method
    if not by_label:
        raise UsageError("methods is empty: name at least one")
    common = {**options, "rounds": rounds, "seed": seed}
    cells = {label: gathered(method, task, common) for label, method in by_label.items()}
    name = task.name if isinstance(task, Task) else task
    folder = Path(out) if out is not None else new_folder(f"compare-{name}")
    call = f"equipoise.compare(methods=[{', '.join(by_label)}], task={name}, seeds={seeds})"
    means = given_means(processes, state_memory)
    compare_cells(cells, seeds, folder, [call], resume=resume, overwrite=overwrite, means=means)
    html.offer(folder)
    runs = {
        label: [
            Run(folder / cell_folder(label, seed + k), *given_in_python(cells[label]["method"], task))
            for k in range(seeds)
        ]
        for label in by_label
    }
    return Comparison(folder, runs)
