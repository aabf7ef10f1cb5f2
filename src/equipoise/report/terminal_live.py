"""`equipoise watch`: runs in the terminal as they go on, with scores, decisions and time left."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from equipoise.records import codec
from equipoise.records.rounds import Bytes, MeanMinMax, RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.scores import NAMED
from equipoise.report.run_data import explain_damaged_files, find_run_folders, main_metric
from equipoise.report.terminal import format_duration, format_score, sparkline
from equipoise.utils.errors import UsageError

MAX_SPARKLINE_WIDTH = 40
MIN_SPARKLINE_WIDTH = 8  # below it, name and state of a run share a column
NUM_RECENT_ROUNDS = 20  # rounds that the time left is estimated from


class RunFollower:
    """The rounds of a run that may still go on, read from where the last poll ended."""

    def __init__(self, path: Path) -> None:
        """Open the folder of a run."""
        self.folder = RunFolder(path)
        self.config = self.folder.read_config()
        self._log = self.folder.follow()

    @property
    def records(self) -> list[RoundRecord]:
        """Rounds so far."""
        return self._log.records

    def poll(self) -> None:
        """Read the rounds that are new."""
        self._log.poll()

    @property
    def is_finished(self) -> bool:
        """Whether the run has written its summary."""
        return self.folder.summary.exists()

    @property
    def title(self) -> str:
        """Method, task and seed."""
        return f"{self.config['method']} on {self.config['task']}, seed {self.config['seed']}"

    @property
    def last_round(self) -> int:
        """Number of the last round so far, 0 before the first."""
        return self.records[-1].round if self.records else 0

    @property
    def num_rounds(self) -> int:
        """Planned number of rounds."""
        return int(self.config["rounds"])

    @property
    def state(self) -> str:
        """Rounds so far, and the time left or the reason of the end."""
        state = f"round {self.last_round}/{self.num_rounds}"
        if self.is_finished:
            reason = self.records[-1].stop if self.records else None
            return f"{state}, finished" + (f": {reason}" if reason else "")
        recent = [record.seconds for record in self.records[-NUM_RECENT_ROUNDS:]]
        if not recent:
            return state
        left = fmean(recent) * (self.num_rounds - self.last_round)
        return f"{state}, {format_duration(left)} left"

    @property
    def metric(self) -> str:
        """Name of the task's main metric."""
        return main_metric(self.records)

    def score_history(self, name: str) -> list[float]:
        """Return the main metric of some models over rounds, such as ``personal``."""
        scores = [record.evaluation(name).get(self.metric) for record in self.records]
        return [score for score in scores if score is not None]


class _Row(NamedTuple):
    """A line of a table: its texts, and the values whose sparkline ends it."""

    texts: list[str]
    history: list[float]


def watch(path: Path, interval: float, console: Console) -> None:
    """Show runs until all of them are finished; once if the output is not a terminal.

    Args:
        path: Folder of a run or a comparison.
        interval: Seconds between polls.
        console: Where to show them.

    Raises:
        UsageError: There is no run, a file is damaged, or ``interval`` is not above 0.
    """
    if not 0 < interval < math.inf:
        raise UsageError(f"every is {interval}: must be a number of seconds above 0")
    runs = [RunFollower(folder) for folder in find_run_folders(path)]
    if not console.is_terminal:
        console.print(render_runs(runs, console.width))
        return
    is_comparison = not RunFolder(path).has_config()
    with Live(render_runs(runs, console.width), console=console, auto_refresh=False) as live:
        while not all(run.is_finished for run in runs):
            time.sleep(interval)
            if is_comparison:  # runs are added as they begin
                known = {run.folder.path for run in runs}
                folders = [folder for folder in find_run_folders(path) if folder not in known]
                runs += [RunFollower(folder) for folder in folders]
            live.update(render_runs(runs, console.width), refresh=True)


def runs_so_far(path: Path) -> list[dict[str, object]]:
    """Return the state of runs, for programs.

    Args:
        path: Folder of a run or a comparison.

    Returns:
        For each run its folder, method, task, seed, the last and the planned round, whether it is
        finished, and the last round's record if there is one.

    Raises:
        UsageError: There is no run, or a file is damaged.
    """
    runs = [RunFollower(folder) for folder in find_run_folders(path)]
    with explain_damaged_files(path):
        for run in runs:
            run.poll()
    return [
        {
            "folder": str(run.folder.path),
            "method": run.config["method"],
            "task": run.config["task"],
            "seed": run.config["seed"],
            "round": run.last_round,
            "rounds": run.num_rounds,
            "finished": run.is_finished,
            "last": codec.encode(run.records[-1]) if run.records else None,
        }
        for run in runs
    ]


def render_runs(runs: Sequence[RunFollower], width: int) -> RenderableType:
    """Poll the runs and show one in detail, or several with a line each."""
    with explain_damaged_files(runs[0].folder.path):
        for run in runs:
            run.poll()
        return _render_run(runs[0], width) if len(runs) == 1 else _render_list(runs, width)


def _render_run(run: RunFollower, width: int) -> RenderableType:
    """Draw a run: progress, scores and decisions over rounds, traffic."""
    head = Text(f"{run.title}   {run.state}", style="bold")
    bar_width = min(2 * MAX_SPARKLINE_WIDTH, width)
    filled = bar_width * run.last_round // run.num_rounds
    bar = Text("━" * filled, style="green").append("─" * (bar_width - filled), style="dim")
    if not run.records:
        return Group(head, bar, Text("no round has ended yet"))
    scores: list[_Row] = []
    for name in NAMED:
        history = run.score_history(name)
        if history:
            numbers = (history[-1], min(history), max(history))
            texts = [format_score(run.metric, value) for value in numbers]
            scores.append(_Row([name, *texts], history))
    sent = sum((record.bytes for record in run.records), Bytes(0, 0))
    dropped = sum(len(record.dropped) for record in run.records)
    spent = format_duration(sum(record.seconds for record in run.records))
    traffic = f"{sent.up / 1e6:.2f} MB up, {sent.down / 1e6:.2f} MB down"
    score_titles = ["score", "now", "lowest", "highest", "over rounds"]
    decision_titles = ["decisions of the clients", "mean", "least", "most", "mean over rounds"]
    return Group(
        head,
        bar,
        _table(score_titles, scores, width),
        _table(decision_titles, _decision_rows(run), width),
        Text(f"{traffic}, {spent}, {dropped} updates dropped", style="dim"),
    )


def _decision_rows(run: RunFollower) -> list[_Row]:
    """Show what clients chose and what the method logged: the last round, and means over rounds."""
    last = run.records[-1]
    rows = []
    for name, spread in last.train.items():
        means = [record.train[name].mean for record in run.records if name in record.train]
        rows.append(_Row(_spread_texts(name, spread), means))
    for name, value in last.logged.items():
        spreads = [_spread(record.logged.get(name)) for record in run.records]
        means = [spread.mean for spread in spreads if spread is not None]
        if isinstance(value, list):
            last_spread = _spread(value)
            if last_spread is not None:
                rows.append(_Row(_spread_texts(name, last_spread), means))
        elif isinstance(value, int | float) and means:
            # One number per round: least and most are those of all rounds.
            over_rounds = MeanMinMax(value, min(means), max(means))
            rows.append(_Row(_spread_texts(name, over_rounds), means))
    return rows


def _spread_texts(name: str, spread: MeanMinMax) -> list[str]:
    return [name, *(f"{value:.4g}" for value in (spread.mean, spread.min, spread.max))]


def _spread(logged: object) -> MeanMinMax | None:
    """Summarise the finite numbers of a logged number, or of one number per client."""
    values = logged if isinstance(logged, list) else [logged]
    numbers = [value for value in values if isinstance(value, int | float)]
    finite = [value for value in numbers if math.isfinite(value)]
    return MeanMinMax(fmean(finite), min(finite), max(finite)) if finite else None


def _render_list(runs: Sequence[RunFollower], width: int) -> RenderableType:
    rows: list[_Row] = []
    for run in runs:
        histories = [run.score_history(name) for name in ("global", "personal")]
        last_scores = [history[-1] if history else None for history in histories]
        texts = [format_score(run.metric, score) for score in last_scores]
        rows.append(_Row([run.title, run.state, *texts], histories[1]))
    titles = ["run", "state", "global", "personal", "personal over rounds"]
    if _sparkline_width(titles, rows, width) < MIN_SPARKLINE_WIDTH:  # the state goes below the name
        titles.remove("state")
        rows = [
            _Row([f"{row.texts[0]}\n  {row.texts[1]}", *row.texts[2:]], row.history) for row in rows
        ]
    return _table(titles, rows, width)


def _table(titles: Sequence[str], rows: Sequence[_Row], width: int) -> Table:
    """Lay out a table whose last column, the sparklines, takes the width that is left."""
    sparkline_width = max(1, min(MAX_SPARKLINE_WIDTH, _sparkline_width(titles, rows, width)))
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(titles[:-1]):
        table.add_column(title, justify="left" if i == 0 else "right", no_wrap=True)
    table.add_column(titles[-1], max_width=sparkline_width)
    for row in rows:
        table.add_row(*row.texts, sparkline(row.history, sparkline_width))
    return table


def _sparkline_width(titles: Sequence[str], rows: Sequence[_Row], width: int) -> int:
    """Return the characters that the other columns leave."""
    columns = list(zip(titles[:-1], *(row.texts for row in rows), strict=True))
    widths = [
        max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns
    ]
    return width - sum(widths) - 2 * len(widths)
