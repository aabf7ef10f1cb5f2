"""A run as it goes on, in the terminal: scores with their course, decisions, traffic, time left."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from equipoise.records.rounds import Bytes, MeanMinMax
from equipoise.records.run_dir import Folder
from equipoise.records.scores import NAMED
from equipoise.report.folders import run_folders
from equipoise.report.reading import readable
from equipoise.report.terminal.tail import Tail
from equipoise.report.terminal.words import duration, sparkline, written
from equipoise.utils.errors import UsageError

WIDTH = 40  # characters of a course, where there is room
NARROW = 8  # characters of a course below which names and states share a column

Row = tuple[list[str], list[float]]
"""The texts of a line, and the course that is drawn at its end."""


def watch(path: Path, every: float, console: Console) -> None:
    """Look again and again until everything is finished; once where the output is no terminal."""
    if not 0 < every < math.inf:
        raise UsageError(f"every is {every}: must be a number of seconds above 0")
    tails = [Tail(folder) for folder in run_folders(path)]
    if not console.is_terminal:
        console.print(frame(tails, console.width))
        return
    with Live(frame(tails, console.width), console=console, auto_refresh=False) as live:
        while not all(tail.finished for tail in tails):
            time.sleep(every)
            if len(tails) > 1 or not Folder(path).config.is_file():  # a comparison gets new cells
                known = {tail.folder.path for tail in tails}
                tails += [Tail(folder) for folder in run_folders(path) if folder not in known]
            live.update(frame(tails, console.width), refresh=True)


def frame(tails: Sequence[Tail], width: int) -> RenderableType:
    """One look: a run in detail, or a line each of several."""
    with readable(tails[0].folder.path):
        for tail in tails:
            tail.look()
        return _one(tails[0], width) if len(tails) == 1 else _several(tails, width)


def _one(tail: Tail, width: int) -> RenderableType:
    head = Text(f"{tail.title}   {tail.state}", style="bold")
    long = min(2 * WIDTH, width)
    filled = long * tail.done // tail.planned
    bar = Text("━" * filled, style="green").append("─" * (long - filled), style="dim")
    if not tail.records:
        return Group(head, bar, Text("no round has ended yet"))
    scores: list[Row] = []
    for name in NAMED:
        if values := tail.course(name):
            figures = [
                written(tail.headline, value) for value in (values[-1], min(values), max(values))
            ]
            scores.append(([name, *figures], values))
    sent = sum((record.bytes for record in tail.records), Bytes(0, 0))
    dropped = sum(len(record.dropped) for record in tail.records)
    spent = duration(sum(record.seconds for record in tail.records))
    foot = f"{sent.up / 1e6:.2f} MB up, {sent.down / 1e6:.2f} MB down, {spent}, {dropped} updates dropped"
    return Group(
        *(head, bar),
        _table(["score", "now", "lowest", "highest", "over rounds"], scores, width),
        _table(
            ["decisions of the clients", "mean", "least", "most", "mean over rounds"],
            _decisions(tail),
            width,
        ),
        Text(foot, style="dim"),
    )


def _decisions(tail: Tail) -> list[Row]:
    """What clients chose, and what the method noted: figures of the last round, means of all."""
    last, rows = tail.records[-1], []
    for name, spread in last.train.items():
        means = [record.train[name].mean for record in tail.records if name in record.train]
        rows.append((_line(name, spread), means))
    for name, note in last.logged.items():
        values = [
            known.mean for record in tail.records if (known := _spread(record.logged.get(name)))
        ]
        if isinstance(note, list) and (noted := _spread(note)):
            rows.append((_line(name, noted), values))
        elif (
            isinstance(note, int | float) and values
        ):  # one number: its least and most are those of all rounds
            rows.append((_line(name, MeanMinMax(note, min(values), max(values))), values))
    return rows


def _line(name: str, spread: MeanMinMax) -> list[str]:
    return [name, *(f"{value:.4g}" for value in (spread.mean, spread.min, spread.max))]


def _spread(note: Any) -> MeanMinMax | None:
    """Of a note that is a number, or one number per client; unknown ones do not count."""
    values = [
        value
        for value in (note if isinstance(note, list) else [note])
        if isinstance(value, int | float)
    ]
    known = [value for value in values if math.isfinite(value)]
    return MeanMinMax(fmean(known), min(known), max(known)) if known else None


def _several(tails: Sequence[Tail], width: int) -> RenderableType:
    rows: list[Row] = []
    for tail in tails:
        ours, theirs = tail.course("global"), tail.course("personal")
        figures = [
            written(tail.headline, values[-1] if values else None) for values in (ours, theirs)
        ]
        rows.append(([tail.title, tail.state, *figures], theirs))
    titles = ["run", "state", "global", "personal", "personal over rounds"]
    if _room(titles, rows, width) < NARROW:  # the state goes below the name
        titles = [titles[0], *titles[2:]]
        rows = [([f"{texts[0]}\n  {texts[1]}", *texts[2:]], course) for texts, course in rows]
    return _table(titles, rows, width)


def _table(titles: Sequence[str], rows: Sequence[Row], width: int) -> Table:
    """Courses take the room that is left; the last title folds with them."""
    room = max(1, min(WIDTH, _room(titles, rows, width)))
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(titles[:-1]):
        table.add_column(title, justify="left" if i == 0 else "right", no_wrap=True)
    table.add_column(titles[-1], max_width=room)
    for texts, course in rows:
        table.add_row(*texts, sparkline(course, room))
    return table


def _room(titles: Sequence[str], rows: Sequence[Row], width: int) -> int:
    """Characters that are left for the course beside all other columns."""
    lines = [titles[:-1], *(texts for texts, _ in rows)]
    taken = sum(
        max(cell_len(part) for line in lines for part in line[i].split("\n"))
        for i in range(len(titles) - 1)
    )
    return width - taken - 2 * (len(titles) - 1)
