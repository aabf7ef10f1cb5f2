"""Run folders as the report reads them: rounds without their long lists, summaries, client tables; grouped by seed."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.core.errors import UsageError
from equipoise.runs.running import Folder
from equipoise.runtime.round import RoundLog
from equipoise.settings.config import read_config

MOST_RUNS = 300  # of one page


@dataclass(frozen=True)
class Run:
    """One run, finished or not. Per-client lists of the rounds stay on disk; :func:`rounds` streams them."""

    path: Path
    config: dict[str, Any]
    logs: list[RoundLog]
    summary: dict[str, Any] | None
    clients: dict[str, list[float]]
    labels: dict[str, list[float]]
    """Training samples of each class, a row a client; empty where a task has no classes."""

    @property
    def headline(self) -> str:
        scored = next((log["trained"] for log in self.logs if log.get("trained")), {"acc": None})
        return str(next(iter(scored)))

    def series(self, name: str, metric: str | None = None) -> dict[int, float]:
        """A named test score by round, where it was evaluated and exists."""
        found = {}
        for log in self.logs:
            value = (log.get(name) or {}).get(metric or self.headline)
            if value is not None:
                found[int(log["round"])] = float(value)
        return found

    def note(self, name: str) -> dict[int, float]:
        """A number that the method noted, by round."""
        noted = ((log["round"], log.get("notes", {}).get(name)) for log in self.logs)
        return {t: float(value) for t, value in noted if isinstance(value, int | float)}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed: one line of a plot, one row of a table."""

    label: str
    runs: list[Run] = field(default_factory=list)

    @property
    def first(self) -> Run:
        return self.runs[0]

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        return [run.summary for run in self.runs if run.summary is not None]


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a file that was cut or edited makes go wrong is said in a sentence."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise UsageError(f"a file in '{path}' is damaged or of another version ({what})") from error


def rounds(path: Path) -> Iterator[RoundLog]:
    """Rounds on disk, one at a time; a last line that a crash cut short is left out."""
    file = Folder(path).rounds
    if not file.exists():
        return
    with open(file) as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return


def read(path: Path) -> Run:
    """One run folder; what is missing in an unfinished one stays empty."""
    folder = Folder(path)
    summary = None
    if folder.summary.is_file():
        try:
            summary = json.loads(folder.summary.read_text())
        except ValueError as error:
            raise UsageError(f"'{folder.summary}' is damaged: {error}") from error
    logs = [_slim(log) for log in rounds(path)]
    config = read_config(folder.config)
    return Run(path, config, logs, summary, _table(path / "clients.csv"), _table(path / "labels.csv"))


def gather(paths: Sequence[Path]) -> list[Group]:
    """The runs under these folders (a run, a comparison, or folders of them), as groups with labels that differ."""
    found: list[Path] = []
    for path in paths:
        found += [folder for folder in run_folders(path) if folder not in found]
    if len(found) > MOST_RUNS:
        raise UsageError(f"{len(found)} runs are too many for one page (at most {MOST_RUNS}): name fewer folders")
    runs = [run for run in map(read, found) if run.logs]
    if not runs:
        raise UsageError(f"no round has ended yet in '{paths[0]}': try again later")
    if len({run.headline for run in runs}) > 1:
        raise UsageError("these runs have different kinds of scores: report them apart")
    by_config: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps({k: v for k, v in run.config.items() if k != "seed"}, sort_keys=True)
        by_config.setdefault(key, []).append(run)
    groups = list(by_config.values())
    return [Group(_label(runs, groups), sorted(runs, key=lambda run: run.config["seed"])) for runs in groups]


def run_folders(path: Path) -> list[Path]:
    """A run folder itself, or those in it; those of a comparison in the order in which its methods were named."""
    if Folder(path).config.is_file():
        return [path]
    found = sorted(file.parent for file in path.rglob("config.json"))
    if not found:
        raise UsageError(f"'{path}' holds no run: there is no config.json in it or below")
    try:
        named = list(json.loads((path / "compare.json").read_text())["summaries"])
    except (OSError, ValueError, KeyError):
        return found
    places = {cell_name(method): place for place, method in enumerate(named)}
    return sorted(found, key=lambda folder: places.get(folder.relative_to(path).parts[0], len(places)))


def cell_name(method: str) -> str:
    """The folder of a method's runs in a comparison."""
    return method.replace(":", "-").replace("/", "-")


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    """The method, with those options that tell it from other groups of the same method."""
    own = runs[0].config
    same = [group[0].config for group in groups if group[0].config["method"] == own["method"]]
    keys = [key for key in own if key != "seed" and any(other.get(key) != own[key] for other in same)]
    return " ".join([str(own["method"]), *(f"{key}={own[key]}" for key in keys)])


def _slim(log: RoundLog) -> RoundLog:
    log.pop("decisions", None)
    log.pop("ids", None)
    if "notes" in log:
        log["notes"] = {name: value for name, value in log["notes"].items() if not isinstance(value, list)}
    return log


def _table(path: Path) -> dict[str, list[float]]:
    if not path.is_file():
        return {}
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return {name: [_number(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
