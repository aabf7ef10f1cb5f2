"""Terminal output: result tables that fit any width, progress of a run, numbers as text."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Self

from rich.cells import cell_len
from rich.console import Console, Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from equipoise.records.rounds import RoundRecord
from equipoise.report.tables import Rows, SummaryColumn

COLUMN_GAP = 3  # characters between the contents of two columns: padding and line
MIN_COLUMN_WIDTH = 7
PIPE_WIDTH = 140  # width of output that is not a terminal, enough for a whole table
MAX_PROGRESS_LINES = 20  # plain lines per run, where there is no terminal
NOTABLE_SHARE = 2 / 3  # a client that keeps less of its influence is named
PROGRESS_SCORES = ("global", "personal")
SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"


def make_console() -> Console:
    """Return a console for standard output, wide enough for a table if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


# ------------------------------------------------------------------ numbers as text


def format_score(metric: str, value: float | None) -> str:
    """Write a score: accuracies in per cent, others with the name of the metric."""
    if value is None:
        return "—"
    return f"{100 * value:.2f} %" if metric == "acc" else f"{metric} {value:.4g}"


def format_duration(seconds: float) -> str:
    """Write a duration in hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def sparkline(values: Sequence[float], max_width: int) -> str:
    """Draw how a number develops, from its lowest to its highest value.

    Args:
        values: The values in order.
        max_width: Largest number of characters; neighbouring values are averaged to fit.

    Returns:
        One character per point.
    """
    if not values or max_width < 1:
        return ""
    width = min(len(values), max_width)
    edges = [i * len(values) // width for i in range(width + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(edges)]
    low = min(means)
    high = max(means)
    if math.isclose(low, high, rel_tol=1e-4):  # logs have six digits: do not draw rounding errors
        return SPARKLINE_BLOCKS[0] * width
    num_blocks = len(SPARKLINE_BLOCKS)
    levels = [int(num_blocks * (value - low) / (high - low)) for value in means]
    return "".join(SPARKLINE_BLOCKS[min(level, num_blocks - 1)] for level in levels)


# ------------------------------------------------------------------ result tables


def print_results(
    title: str,
    rows: Rows,
    columns: Sequence[SummaryColumn],
    console: Console,
    notes: Sequence[str] = (),
) -> None:
    """Print the result table of a run or a comparison.

    Args:
        title: Title of the table.
        rows: Cells by method.
        columns: Columns; those that are not meant for the screen are left out.
        console: Where to print.
        notes: Sentences to print below the table.
    """
    head = ["method", *(column.title for column in columns if column.on_screen)]
    texts = [
        [method, *(str(cell) for cell in cells if cell.column.on_screen)]
        for method, cells in rows.items()
    ]
    console.print(fit_table(title, head, texts, console.width))
    for note in notes:
        console.print(note, highlight=False, markup=False)


def fit_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Group:
    """Lay out a table within a width. Columns that do not fit continue in tables below.

    Args:
        title: Title of the first table.
        head: Titles of the columns.
        rows: Texts. The first column names the row and is repeated in every table.
        width: Characters per line.

    Returns:
        The table, or its parts one below the other.
    """
    columns = list(zip(head, *rows, strict=True))
    available = width - max(map(cell_len, columns[0])) - COLUMN_GAP - 1
    full_widths = [max(MIN_COLUMN_WIDTH, *map(cell_len, column)) for column in columns]
    folded_widths = [max(MIN_COLUMN_WIDTH, *map(_longest_word, column)) for column in columns]
    tables = []
    for number, part in enumerate(_split_columns(folded_widths[1:], available)):
        fits_unfolded = sum(full_widths[i] + COLUMN_GAP for i in part) <= available
        widths = full_widths if fits_unfolded else folded_widths
        table = Table(title=title if number == 0 else None, title_justify="left")
        table.add_column(head[0], no_wrap=True)
        for i in part:
            table.add_column(head[i], justify="right", width=widths[i])
        for row in rows:
            table.add_row(row[0], *(row[i] for i in part))
        tables.append(table)
    return Group(*tables)


def _split_columns(widths: Sequence[int], available: int) -> Iterator[list[int]]:
    """Yield the numbers of columns, from 1 on, that fit beside each other."""
    part: list[int] = []
    left = available
    for number, width in enumerate(widths, start=1):
        if part and width + COLUMN_GAP > left:
            yield part
            part = []
            left = available
        part.append(number)
        left -= width + COLUMN_GAP
    yield part


def _longest_word(text: str) -> int:
    """Return the width of a folded cell: titles break between words, "mean ± std" does not."""
    if "±" in text:
        return cell_len(text)
    return max(map(cell_len, text.split()), default=0)


# ------------------------------------------------------------------ progress


def _progress_columns() -> Sequence[ProgressColumn]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[scores]}"),
        TimeRemainingColumn(),
    )


def _print_plain(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def step_progress(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of steps: a bar on a terminal, plain lines elsewhere.

    Args:
        title: What is counted.
        quiet: Whether to show nothing.

    Yields:
        A function to call with the number of finished steps and of all steps.
    """
    console = Console(stderr=True)
    has_bar = not quiet and console.is_terminal
    with Progress(*_progress_columns(), console=console, disable=not has_bar) as bar:
        task = bar.add_task(title, total=None, scores="")

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if not quiet and not has_bar:
                _print_plain(console, f"{title}: {done} of {total}")

        yield update


class ProgressDisplay:
    """Show the rounds of a run as they end: a bar on a terminal, plain lines elsewhere."""

    def __init__(
        self,
        title: str,
        rounds: int,
        quiet: bool,
        done: int = 0,
        read_names: Callable[[], Mapping[int, str]] | None = None,
    ) -> None:
        """Prepare the display.

        Args:
            title: Name of the run.
            rounds: Planned number of rounds.
            quiet: Whether to show nothing.
            done: Rounds that had ended before, if the run is resumed.
            read_names: Returns the names of clients by number once the run has begun; clients
                without one are called by their number.
        """
        self.title = title
        self.rounds = rounds
        self.quiet = quiet
        self.console = Console(stderr=True)
        self._read_names = read_names
        self._start_time = time.perf_counter()
        self._first_round = done
        self._scores = ""
        self._bar: Progress | None = None
        # Clients whose limited influence was shown already.
        self._limited: set[int] = set()

    def __enter__(self) -> Self:
        """Show the progress bar."""
        if not self.quiet and self.console.is_terminal:
            self._bar = Progress(*_progress_columns(), console=self.console)
            self._bar.start()
            self._task = self._bar.add_task(
                self.title, total=self.rounds, completed=self._first_round, scores=""
            )
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the progress bar."""
        if self._bar:
            self._bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        """Show one round."""
        if self.quiet:
            return
        t = record.round
        if record.has_client_scores:
            self._scores = _score_line(record)
        if record.dropped:
            reason = next(iter(record.rejected.values()), "not finite")
            names = self._names_of(record.dropped)
            _print_plain(self.console, f"round {t}: left out clients {names} ({reason})")
        notable = {client for client, share in record.shrunk.items() if share < NOTABLE_SHARE}
        newly_limited = sorted(notable - self._limited)
        if newly_limited:
            self._limited.update(newly_limited)
            _print_plain(
                self.console,
                f"round {t}: limited the influence of clients {self._names_of(newly_limited)} "
                "(weight or change far above the others')",
            )
        if self._bar:
            self._bar.update(self._task, completed=t, scores=self._scores)
            return
        interval = max(1, self.rounds // MAX_PROGRESS_LINES)
        if t == self.rounds or record.stop or t % interval == 0:
            per_round = (time.perf_counter() - self._start_time) / max(1, t - self._first_round)
            left = per_round * (self.rounds - t)
            line = f"{self.title}  round {t}/{self.rounds}  {self._scores}  {left:.0f} s left"
            _print_plain(self.console, line)

    def _names_of(self, clients: Sequence[int]) -> str:
        """List clients by name, those without one by number."""
        names = self._read_names() if self._read_names else {}
        return ", ".join(names.get(client, str(client)) for client in clients)


def _score_line(record: RoundRecord) -> str:
    metric = record.trained.metric or "acc"
    return "  ".join(
        f"{name} {format_score(metric, record.evaluation(name).get(metric))}"
        for name in PROGRESS_SCORES
    )
