"""A run as it goes on, in the terminal: scores with their course, decisions, traffic, time left."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from equipoise.core.errors import UsageError
from equipoise.records.summary import NAMED
from equipoise.report.folders import readable, run_folders
from equipoise.report.terminal.progress import written
from equipoise.runs.running import Folder
from equipoise.runtime.round import RoundLog
from equipoise.settings.config import read_config

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # characters of a course
RECENT = 20  # rounds that tell how long the next ones take


class Tail:
    """A run's rounds, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self.config = read_config(self.folder.config)
        self.logs: list[RoundLog] = []
        self._offset = 0

    def look(self) -> None:
        """Take in the lines that are whole; a file that shrank was written anew by a resume."""
        file = self.folder.rounds
        size = file.stat().st_size if file.exists() else 0
        if size < self._offset:
            self.logs, self._offset = [], 0
        if size == self._offset:
            return
        with open(file, "rb") as lines:
            lines.seek(self._offset)
            text = lines.read()
        whole = text.rfind(b"\n") + 1
        self._offset += whole
        self.logs += [json.loads(line) for line in text[:whole].splitlines()]

    @property
    def finished(self) -> bool:
        return self.folder.summary.exists()

    @property
    def title(self) -> str:
        return f"{self.config['method']} on {self.config['task']}, seed {self.config['seed']}"

    @property
    def state(self) -> str:
        """Rounds done, and what is to come."""
        done, planned = (self.logs[-1]["round"] if self.logs else 0), self.config["rounds"]
        if self.finished:
            stop = self.logs[-1].get("stop") if self.logs else None
            return f"round {done}/{planned}, finished" + (f": {stop}" if stop else "")
        left = seconds_left(self.logs, planned)
        return f"round {done}/{planned}" + ("" if left is None else f", {duration(left)} left")

    def course(self, name: str) -> tuple[str, list[float]]:
        """The headline, and a named score over rounds."""
        headline = next((next(iter(log["trained"])) for log in self.logs if log.get("trained")), "acc")
        values = [(log.get(name) or {}).get(headline) for log in self.logs]
        return headline, [value for value in values if value is not None]


def watch(path: Path, every: float, console: Console) -> None:
    """Look again and again until everything is finished; once where the output is no terminal."""
    if not 0 < every < math.inf:
        raise UsageError(f"every is {every}: must be a number of seconds above 0")
    tails = [Tail(folder) for folder in run_folders(path)]
    if not console.is_terminal:
        console.print(frame(tails))
        return
    with Live(frame(tails), console=console, auto_refresh=False) as live:
        while not all(tail.finished for tail in tails):
            time.sleep(every)
            if len(tails) > 1 or not Folder(path).config.is_file():  # a comparison gets new cells
                known = {tail.folder.path for tail in tails}
                tails += [Tail(folder) for folder in run_folders(path) if folder not in known]
            live.update(frame(tails), refresh=True)


def frame(tails: Sequence[Tail]) -> RenderableType:
    """One look: a run in detail, or a line each of several."""
    with readable(tails[0].folder.path):
        for tail in tails:
            tail.look()
        return _one(tails[0]) if len(tails) == 1 else _several(tails)


def _one(tail: Tail) -> RenderableType:
    done = tail.logs[-1]["round"] if tail.logs else 0
    head = Text(f"{tail.title}   {tail.state}", style="bold")
    filled = 2 * WIDTH * done // tail.config["rounds"]
    bar = Text("━" * filled, style="green").append("─" * (2 * WIDTH - filled), style="dim")
    if not tail.logs:
        return Group(head, bar, Text("no round has ended yet"))
    last = tail.logs[-1]
    scores = _table("score", "now", "lowest", "highest", "over rounds")
    for name in NAMED:
        headline, values = tail.course(name)
        if values:
            figures = [written(headline, value) for value in (values[-1], min(values), max(values))]
            scores.add_row(name, *figures, sparkline(values))
    choices = _table("decisions of the clients", "mean", "least", "most", "mean over rounds")
    for name, spread in last["train"].items():
        means = [log["train"][name]["mean"] for log in tail.logs if name in log["train"]]
        choices.add_row(name, *(f"{spread[key]:.4g}" for key in ("mean", "min", "max")), sparkline(means))
    for name, note in last.get("notes", {}).items():
        if isinstance(note, list) and note:
            means = [_mean(log.get("notes", {}).get(name)) for log in tail.logs]
            figures = [f"{value:.4g}" for value in (_mean(note), min(note), max(note))]
            choices.add_row(name, *figures, sparkline([mean for mean in means if mean == mean]))
        elif isinstance(note, int | float):
            values = [v for log in tail.logs if isinstance(v := log.get("notes", {}).get(name), int | float)]
            choices.add_row(name, f"{note:.4g}", f"{min(values):.4g}", f"{max(values):.4g}", sparkline(values))
    sent = {way: sum(log["bytes"][way] for log in tail.logs) / 1e6 for way in ("up", "down")}
    dropped = sum(len(log["dropped"]) for log in tail.logs)
    spent = duration(sum(log["seconds"] for log in tail.logs))
    foot = f"{sent['up']:.2f} MB up, {sent['down']:.2f} MB down, {spent}, {dropped} updates dropped"
    return Group(head, bar, scores, choices, Text(foot, style="dim"))


def _several(tails: Sequence[Tail]) -> RenderableType:
    table = _table("run", "state", "global", "personal", "personal over rounds")
    for tail in tails:
        headline, theirs = tail.course("personal")
        ours = tail.course("global")[1]
        figures = [written(headline, values[-1] if values else None) for values in (ours, theirs)]
        table.add_row(tail.title, tail.state, *figures, sparkline(theirs))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i in (0, len(titles) - 1) else "right", no_wrap=True)
    return table


def _mean(values: Any) -> float:
    return sum(values) / len(values) if isinstance(values, list) and values else float("nan")


def sparkline(values: Sequence[float]) -> str:
    """The course of a number from its lowest to its highest, averaged to at most :data:`WIDTH` blocks."""
    if not values:
        return ""
    count = min(len(values), WIDTH)
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [_mean(list(values[a:b])) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if math.isclose(low, high, rel_tol=1e-4):  # logs have six digits: do not draw what rounding left
        return BLOCKS[0] * count
    return "".join(BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in means)


def seconds_left(logs: Sequence[RoundLog], planned: int) -> float | None:
    """What the last rounds took, for those to come."""
    recent = [log["seconds"] for log in logs[-RECENT:]]
    return sum(recent) / len(recent) * (planned - logs[-1]["round"]) if recent else None


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
