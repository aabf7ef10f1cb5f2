"""Result tables over seeds, as Markdown and CSV; terminal and HTML report show the same cells."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from equipoise.records.client_table import spreadsheet_cell
from equipoise.records.cost_to_target import Spending, best, cost_to_reach, target_of
from equipoise.records.rounds import RoundRecord
from equipoise.records.scores import NOTHING, Scores
from equipoise.records.summary import Summary
from equipoise.report.run_data import main_metric
from equipoise.report.statistics import PairedDifference, compare_to_best
from equipoise.utils.metrics import higher_is_better, metric_info, score_digits

GLOBAL = "global"
PERSONAL = "personal"
BASELINE_LABELS = {"local": "(each site alone)", "constant": "(a constant)"}
"""Rows of the table that are no methods."""
MAIN_SCORES = (GLOBAL, PERSONAL)  # scores whose differences are compared seed by seed
TARGET_SHARES = (0.9, 0.95)  # of the reference method's best score
COSTS: dict[str, Callable[[Spending], float]] = {
    "seconds": lambda spending: spending.seconds,
    "kJ": lambda spending: spending.joules / 1000,
    "MB": lambda spending: spending.megabytes,
}
TARGET_EXPLANATION = (
    "Until the first evaluation that is as good as the share of its best score, seed by seed; "
    "in brackets how\nmany seeds get there, if not all."
)
CLOCK_COSTS = ("seconds", "kJ")  # costs that need a clock

SummariesByMethod = Mapping[str, Sequence[Summary]]
"""One summary per seed, by method."""


@dataclass(frozen=True)
class SummaryColumn:
    """One number of a summary: how to find it and how to write it."""

    title: str
    get: Callable[[Summary], float | None]
    scale: float = 1.0
    digits: int = 2
    on_screen: bool = True
    """Whether the terminal shows the column."""
    higher_is_better: bool = True
    score: str = ""
    """The evaluation it belongs to, such as ``personal``; empty if it is no score."""
    metric: str = ""
    """The metric of that evaluation."""

    @property
    def is_main_score(self) -> bool:
        """Whether the column is the main metric of the global or of the personal models."""
        return self.score in MAIN_SCORES


@dataclass(frozen=True)
class Cell:
    """A number over seeds, in the unit of its column."""

    values: tuple[float, ...]
    column: SummaryColumn

    @property
    def mean(self) -> float | None:
        """Mean over seeds, None if no seed has the number."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        """Return mean and standard deviation as text."""
        if self.mean is None:
            return "—"
        digits = self.column.digits
        text = f"{self.mean:,.{digits}f}"
        return f"{text} ± {self.std:,.{digits}f}" if self.std else text


Rows = dict[str, list[Cell]]
"""One row of cells per method."""


def summary_columns(summary: Summary, *, with_clock: bool = False) -> list[SummaryColumn]:
    """List the columns of a result table.

    Args:
        summary: A finished run, whose main metric and extra evaluations decide about columns.
        with_clock: Whether to show simulated time and energy.

    Returns:
        Columns for all evaluations, convergence, steps, bytes and time.
    """
    return [*_score_columns(summary), *_cost_columns(with_clock)]


def _score_columns(summary: Summary) -> list[SummaryColumn]:
    """List the columns of all evaluations, in the unit of the main metric."""
    metric = summary.trained.metric or "acc"
    higher = higher_is_better(metric)
    is_percent = metric == "acc"
    unit = "%" if is_percent else metric
    size = summary.personal.get(metric) or summary.trained.get(metric) or 0.0
    is_small = metric_info(metric).highest == 1 or size < 1
    digits = 4 if is_small else score_digits(metric, size)

    def value_column(
        title: str,
        get: Callable[[Summary], float | None],
        name: str = "",
        on_screen: bool = True,
    ) -> SummaryColumn:
        return SummaryColumn(
            f"{title} {unit}",
            get,
            scale=100.0 if is_percent else 1.0,
            digits=2 if is_percent else digits,
            on_screen=on_screen,
            higher_is_better=higher,
            score=name,
            metric=metric if name else "",
        )

    def score_column(title: str, get: Callable[[Summary], Scores], name: str = "") -> SummaryColumn:
        return value_column(title, lambda summary: get(summary).get(metric), name)

    columns = [
        score_column("global", lambda s: s.global_, "global"),
        score_column("personal", lambda s: s.personal, "personal"),
    ]
    if summary.finetuned:
        columns.append(
            score_column("fine-tuned", lambda s: s.finetuned.scores if s.finetuned else NOTHING)
        )
    if PERSONAL in summary.same_rows:
        columns += [
            value_column("global on clients' rows,", _same_rows(GLOBAL, "mean")),
            value_column("personal, each row alike,", _same_rows(PERSONAL, "weighted"), "", False),
        ]
    columns += [
        value_column("worst decile", _worst_decile),
        score_column("trained", lambda s: s.trained, "trained"),
        score_column("received", lambda s: s.received, "received"),
    ]
    for epochs in summary.newcomers.after if summary.newcomers else ():
        columns.append(score_column(f"new, k={epochs}", _newcomer_scores(epochs)))
    return columns


def _cost_columns(with_clock: bool) -> list[SummaryColumn]:
    """List the columns of convergence, steps, bytes and time."""

    def column(
        title: str,
        get: Callable[[Summary], float | None],
        scale: float = 1.0,
        digits: int = 2,
        on_screen: bool = True,
    ) -> SummaryColumn:
        return SummaryColumn(title, get, scale, digits, on_screen, higher_is_better=False)

    columns = [
        column(
            "rounds to converge: global", lambda s: s.converged_round.global_, 1, 0, on_screen=False
        ),
        column("rounds to converge", lambda s: s.converged_round.personal, 1, 0),
        column("steps, thousands", lambda s: s.steps, 1e-3, 1),
        column("MB up", lambda s: s.bytes.up, 1e-6),
        column("MB down", lambda s: s.bytes.down, 1e-6),
    ]
    if with_clock:
        columns += [
            column("clock s", lambda s: s.clock, 1, 1, on_screen=False),
            column("kJ", lambda s: s.energy, 1e-3, 2, on_screen=False),
        ]
    columns.append(column("seconds", lambda s: s.seconds, 1, 1, on_screen=False))
    return columns


def _same_rows(model: str, name: str) -> Callable[[Summary], float | None]:
    """Return a getter for a score on the clients' own test rows."""

    def get(summary: Summary) -> float | None:
        estimate = summary.same_rows.get(model)
        return None if estimate is None else getattr(estimate, name)

    return get


def _worst_decile(summary: Summary) -> float | None:
    """Return the score that nine of ten personal models reach."""
    scores = summary.same_rows.get(PERSONAL)
    return scores.worst_decile if scores else summary.personal.get("p10")


def _newcomer_scores(epochs: int) -> Callable[[Summary], Scores]:
    """Return a getter for held-out clients' scores after some epochs of their own."""

    def get(summary: Summary) -> Scores:
        if summary.newcomers is None:
            return NOTHING
        return summary.newcomers.after.get(epochs, NOTHING)

    return get


def summary_rows(by_method: SummariesByMethod, columns: Sequence[SummaryColumn]) -> Rows:
    """Make one row of cells per method. Seeds without a number do not count in its cell."""

    def cell(summaries: Sequence[Summary], column: SummaryColumn) -> Cell:
        values = [column.get(summary) for summary in summaries]
        return Cell(tuple(column.scale * value for value in values if value is not None), column)

    rows = {
        method: [cell(summaries, column) for column in columns]
        for method, summaries in by_method.items()
    }
    return {**rows, **_baseline_rows(by_method, columns)}


def _baseline_rows(by_method: SummariesByMethod, columns: Sequence[SummaryColumn]) -> Rows:
    """Make rows for a constant and for each site's own model, on the rows of personal models."""
    rows: Rows = {}
    for model, label in BASELINE_LABELS.items():
        if model in by_method:  # the method of this name has a row of its own
            continue
        known = [
            summaries
            for summaries in by_method.values()
            if all(model in s.same_rows for s in summaries)
        ]
        if not known:
            continue
        cells = []
        for column in columns:
            values = [s.same_rows[model].mean for s in known[0] if column.score == "personal"]
            scaled = tuple(column.scale * value for value in values if value is not None)
            cells.append(Cell(scaled, column))
        rows[label] = cells
    return rows


def scores_over_seeds(
    by_method: SummariesByMethod, column: SummaryColumn
) -> dict[str, list[float]]:
    """Return one number per seed, for those methods that have it with every seed."""
    scores: dict[str, list[float]] = {}
    for method, summaries in by_method.items():
        values = [column.get(summary) for summary in summaries]
        known = [column.scale * value for value in values if value is not None]
        if len(known) == len(values):
            scores[method] = known
    return scores


def undefined_reason(by_method: SummariesByMethod, column: SummaryColumn) -> str:
    """Explain why no method has a score.

    Args:
        by_method: Summaries of all methods.
        column: A column of a score.

    Returns:
        The reason in words; empty if some method has the score with every seed.
    """
    if scores_over_seeds(by_method, column):
        return ""
    summaries = [summary for same_method in by_method.values() for summary in same_method]
    if any(column.get(summary) is not None for summary in summaries):
        return "no method has it with every seed"
    if not any(summary.evaluation(column.score) for summary in summaries):
        return (
            "no method has a global model" if column.score == "global" else "it was not evaluated"
        )
    condition = metric_info(column.metric).undefined_if or "its value is not a finite number"
    location = "the server's test set" if column.score == "global" else "every client"
    return f"{column.metric} has no value where {condition}, which is the case for {location}"


def undefined_notes(by_method: SummariesByMethod, columns: Sequence[SummaryColumn]) -> list[str]:
    """Write a sentence for each main score that was evaluated and is undefined for everybody."""
    notes = []
    for column in columns:
        if not column.is_main_score:
            continue
        reason = undefined_reason(by_method, column)
        summaries = [summary for same_method in by_method.values() for summary in same_method]
        if reason and any(summary.evaluation(column.score) for summary in summaries):
            notes.append(f"{column.title} is undefined: {reason}.")
    return notes


@dataclass(frozen=True)
class PairedTable:
    """Differences of all methods to the best one in one score."""

    column: SummaryColumn
    best: str = ""
    differences: Mapping[str, PairedDifference] = field(default_factory=dict)
    undefined: str = ""
    """Why there is nothing to compare; empty if there is."""


def paired_tables(
    by_method: SummariesByMethod, columns: Sequence[SummaryColumn]
) -> list[PairedTable]:
    """Compare all methods with the best one, seed by seed.

    Args:
        by_method: Summaries of all methods with the same seeds.
        columns: Columns to compare.

    Returns:
        One table per column, its differences from the best to the worst. Empty for a single method,
        a single seed, or methods with different numbers of seeds.
    """
    num_seeds = {len(summaries) for summaries in by_method.values()}
    if len(by_method) < 2 or len(num_seeds) > 1 or min(num_seeds) < 2:
        return []
    tables = []
    for column in columns:
        scores = scores_over_seeds(by_method, column)
        if not scores:
            tables.append(PairedTable(column, undefined=undefined_reason(by_method, column)))
            continue
        best_method, differences = compare_to_best(scores, column.higher_is_better)
        known = [
            (method, difference)
            for method, difference in differences.items()
            if difference is not None
        ]
        known.sort(key=lambda item: item[1].mean, reverse=column.higher_is_better)
        tables.append(PairedTable(column, best_method, dict(known)))
    return tables


def results_markdown(
    title: str,
    rows: Rows,
    columns: Sequence[SummaryColumn],
    command: str,
    notes: Sequence[str] = (),
) -> str:
    """Write the result table as Markdown.

    Args:
        title: Heading of the document.
        rows: Cells by method.
        columns: Columns of the table.
        command: Command that made the results.
        notes: Sentences to put below the table.

    Returns:
        The table.
    """
    lines = [f"# {title}", "", f"`{command}`", "", "Mean ± standard deviation over seeds.", ""]
    lines.append("| method | " + " | ".join(column.title for column in columns) + " |")
    lines.append("|---|" + "---:|" * len(columns))
    for method, cells in rows.items():
        lines.append(f"| {method} | " + " | ".join(map(str, cells)) + " |")
    for note in notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def results_csv(rows: Rows, columns: Sequence[SummaryColumn]) -> str:
    """Write the result table as CSV: mean and standard deviation of every column."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    titles = [f"{column.title} {kind}" for column in columns for kind in ("mean", "std")]
    writer.writerow(["method", "seeds", *titles])
    for method, cells in rows.items():
        num_seeds = max(len(cell.values) for cell in cells)
        numbers = [number for cell in cells for number in (cell.mean, cell.std)]
        texts = ["" if number is None else f"{number:.6g}" for number in numbers]
        writer.writerow([spreadsheet_cell(method), num_seeds, *texts])
    return file.getvalue()


def paired_markdown(by_method: SummariesByMethod, columns: Sequence[SummaryColumn]) -> str:
    """Write the paired differences as Markdown; empty for a single method or a single seed."""
    tables = paired_tables(by_method, columns)
    if not tables:
        return ""
    lines = ["", "## Paired differences to the best, 95 % intervals over seeds", ""]
    for table in tables:
        if table.undefined:
            lines += [f"**{table.column.title}**: undefined, {table.undefined}.", ""]
            continue
        lines += [f"**{table.column.title}**, best: {table.best}", ""]
        lines += ["| method | difference | interval | |", "|---|---:|---:|---|"]
        digits = table.column.digits
        for method, difference in table.differences.items():
            interval = f"{difference.low:+.{digits}f} … {difference.high:+.{digits}f}"
            lines.append(
                f"| {method} | {difference.mean:+.{digits}f} | {interval} | {difference.verdict} |"
            )
        lines.append("")
    return "\n".join(lines)


RecordsByMethod = Mapping[str, Sequence[Sequence[RoundRecord]]]
"""The rounds of each seed, by method."""


def cost_to_target_markdown(runs: RecordsByMethod, *, with_clock: bool = True) -> str:
    """Write what each method spends until it reaches 90 and 95 % of a reference's best score.

    The reference is FedAvg, or else the first method.

    Args:
        runs: Rounds by method and seed.
        with_clock: Whether to count time and energy too, and not bytes alone.

    Returns:
        One table per main score. Empty if there is a single method, or if the runs have no clock.
    """
    reference = "fedavg" if "fedavg" in runs else next(iter(runs))
    first_seed = runs[reference][0]
    if len(runs) < 2 or any(record.clock is None for record in first_seed):
        return ""
    costs = [name for name in COSTS if with_clock or name not in CLOCK_COSTS]
    tables = []
    for score in MAIN_SCORES:
        tables += _target_table(runs, reference, score, main_metric(first_seed), costs)
    if not tables:
        return ""
    topic = "Time, energy and bytes" if with_clock else "Bytes"
    return "\n".join(
        ["", f"## {topic} to {reference}'s scores", "", TARGET_EXPLANATION, "", *tables]
    )


def _target_table(
    runs: RecordsByMethod, reference: str, score: str, metric: str, costs: Sequence[str]
) -> list[str]:
    """Write one table of `cost_to_target_markdown`; empty if the reference lacks the score."""
    higher = higher_is_better(metric)
    best_scores = [best(records, score, metric, higher) for records in runs[reference]]
    known_scores = [value for value in best_scores if value is not None]
    if len(known_scores) < len(best_scores):
        return []
    titles = [f"{name} to {100 * share:.0f} %" for share in TARGET_SHARES for name in costs]
    lines = [f"**{score}**", "", "| method | " + " | ".join(titles) + " |"]
    lines.append("|---|" + "---:|" * len(titles))
    for method, seeds in runs.items():
        cells = []
        for share in TARGET_SHARES:
            spendings = [
                cost_to_reach(records, score, metric, higher, target_of(best_score, share, higher))
                for records, best_score in zip(seeds, known_scores, strict=False)
            ]
            cells += [_cost_cell(spendings, COSTS[name]) for name in costs]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cost_cell(spendings: Sequence[Spending | None], cost: Callable[[Spending], float]) -> str:
    """Write mean and standard deviation over the seeds that reached the target."""
    costs = [cost(spending) for spending in spendings if spending is not None]
    known = [value for value in costs if math.isfinite(value)]
    if not known:
        return "-"
    text = f"{fmean(known):.4g}"
    if len(known) > 1:
        text += f" ± {stdev(known):.3g}"
    if len(known) < len(spendings):
        text += f" ({len(known)} of {len(spendings)})"
    return text
