"""Runs as the report reads them from disk, grouped by everything but the seed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.clock.config import ClockConfig
from equipoise.records.manifest import MANIFEST_FILE
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import CONFIG, ComparisonFolder, RunFolder
from equipoise.records.summary import Summary
from equipoise.utils.errors import UsageError

Config = dict[str, Any]
"""Options of a run by name, as `config.json` has them."""
REPEATS = ("seed", "fold")  # options in which the runs of a group may differ
CHOICE = "chosen"  # folder of a comparison that 'equipoise choose' writes
MAX_RUNS = 300  # runs of one page; more make it too large to open


@dataclass(frozen=True)
class RunData:
    """One run, finished or not.

    Per-client lists of the rounds stay on disk; `RunFolder.stream` reads them when they are needed.
    """

    folder: RunFolder
    config: Config
    records: list[RoundRecord]
    summary: Summary | None
    """None while the run is not finished."""
    clients: dict[str, list[float]]
    """Columns of `clients.csv`."""
    labels: dict[str, list[float]]
    """Columns of `labels.csv`: training samples per class. Empty if the task has no classes."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of the clients by id. Empty if clients have ids only."""

    @cached_property
    def metric(self) -> str:
        """Name of the task's main metric."""
        return main_metric(self.records)

    @property
    def uses_clock(self) -> bool:
        """Whether time and energy say anything about this run.

        Every simulated run has a clock. It is shown if the run asked for one, or if it is real
        because the clients were deployed.
        """
        is_deployed = self.summary is not None and self.summary.about.executor is None
        return is_deployed or ClockConfig.requested_in(self.config)

    @property
    def last_round(self) -> int:
        """Number of the last round so far."""
        return self.records[-1].round

    @cached_property
    def num_clients(self) -> int:
        """One more than the highest known client id."""
        ids = self.clients.get("client", [])
        if ids:
            return int(max(ids)) + 1
        return max(record.clients for record in self.records)

    @property
    def personal_scores(self) -> list[float]:
        """Score of each client's personal model, or of the trained one if there is no other."""
        personal = self.clients.get(f"personal_{self.metric}")
        return personal or self.clients.get(f"trained_{self.metric}", [])

    def client_name(self, client: float) -> str:
        """Return the name of a client, or "client 3" if it has none."""
        return self.names.get(int(client), f"client {client:.0f}")

    def scores_by_round(self, name: str, metric: str | None = None) -> dict[int, float]:
        """Return a test score by round.

        Args:
            name: Which models: ``global``, ``received``, ``trained`` or ``personal``.
            metric: Name of the metric; the main one by default.

        Returns:
            The values of those rounds that evaluated it.
        """
        metric = metric or self.metric
        values = {record.round: record.evaluation(name).get(metric) for record in self.records}
        return {round: value for round, value in values.items() if value is not None}

    def logged_by_round(self, name: str) -> dict[int, float]:
        """Return a number that the method logged, by round."""
        values = {record.round: record.logged.get(name) for record in self.records}
        return {t: float(value) for t, value in values.items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in the seed: one line of a plot, one row of a table."""

    label: str
    runs: list[RunData] = field(default_factory=list)

    @property
    def first_run(self) -> RunData:
        """The run with the lowest seed."""
        return self.runs[0]

    @cached_property
    def summaries(self) -> list[Summary]:
        """Summaries of the finished runs."""
        return [run.summary for run in self.runs if run.summary is not None]


def main_metric(records: Sequence[RoundRecord]) -> str:
    """Return the name of a run's main metric, ``acc`` if nothing was evaluated yet."""
    names = (record.trained.metric for record in records)
    return next((name for name in names if name), "acc")


def load_run(path: Path) -> RunData:
    """Read one run folder. Files that an unfinished run does not have yet are read as empty."""
    folder = RunFolder(path)
    return RunData(
        folder=folder,
        config=folder.read_config(),
        records=[_without_lists(record) for record in folder.stream()],
        summary=folder.read_summary() if folder.summary.exists() else None,
        clients=folder.read_table(folder.clients),
        labels=folder.read_table(folder.labels),
        names=folder.read_names(),
    )


def _without_lists(record: RoundRecord) -> RoundRecord:
    """Drop what grows with the number of clients."""
    scalars = {name: note for name, note in record.logged.items() if not isinstance(note, list)}
    return replace(record, decisions=None, ids=None, logged=scalars)


def load_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Read the runs under some folders and group them by everything but the seed.

    Args:
        paths: Folders of runs or of comparisons, or folders that contain such.

    Returns:
        Groups with labels that differ, their runs ordered by seed.

    Raises:
        UsageError: There are no runs, too many, none with a finished round, or runs with different
            main metrics.
    """
    folders: list[Path] = []
    for path in paths:
        folders += [folder for folder in find_run_folders(path) if folder not in folders]
    if len(folders) > MAX_RUNS:
        raise UsageError(
            f"{len(folders)} runs are too many for one page (at most {MAX_RUNS}): "
            "name fewer folders"
        )
    runs = [run for run in map(load_run, folders) if run.records]
    if not runs:
        raise UsageError(f"no round has ended yet in '{paths[0]}': try again later")
    if len({run.metric for run in runs}) > 1:
        raise UsageError("these runs have different kinds of scores: report them apart")
    by_config: dict[str, list[RunData]] = {}
    for run in runs:
        options = {name: value for name, value in run.config.items() if name not in REPEATS}
        by_config.setdefault(json.dumps(options, sort_keys=True), []).append(run)
    configs = [group[0].config for group in by_config.values()]
    return [
        RunGroup(
            _label(group[0].config, configs),
            sorted(group, key=lambda run: (run.config["seed"], run.config.get("fold", 0))),
        )
        for group in by_config.values()
    ]


def _label(config: Config, configs: Sequence[Config]) -> str:
    """Name the method, with the options that differ between groups of the same method."""
    others = [other for other in configs if other["method"] == config["method"]]
    names = [name for name in config if name not in REPEATS]
    differing = [name for name in names if any(other.get(name) != config[name] for other in others)]
    return " ".join([str(config["method"]), *(f"{name}={config[name]}" for name in differing)])


def find_run_folders(path: Path) -> list[Path]:
    """List the run folders at or below a path.

    Args:
        path: A run folder, the folder of a comparison, or a folder that contains such.

    Returns:
        The folders; those of a comparison in the order in which its methods were named.

    Raises:
        UsageError: There is no run.
    """
    if RunFolder(path).has_config():
        return [path]
    # A run whose config was deleted still has its manifest, and is refused when it is read.
    named = {file.parent for name in (CONFIG, MANIFEST_FILE) for file in path.rglob(name)}
    final = {path, path / CHOICE, *(path / CHOICE).rglob("*")}  # models of 'equipoise choose'
    folders = sorted(one for one in named - final if RunFolder(one).is_run())
    if not folders:
        raise UsageError(f"'{path}' holds no run: there is no config.json in it or below")
    comparison = ComparisonFolder(path)
    if not comparison.has_begun():
        return folders
    methods = list(comparison.read().summaries)
    order = {method_folder_name(method): index for index, method in enumerate(methods)}
    return sorted(
        folders, key=lambda folder: order.get(folder.relative_to(path).parts[0], len(order))
    )


def method_folder_name(method: str) -> str:
    """Return the name of the folder that holds a method's runs in a comparison."""
    return method.replace(":", "-").replace("/", "-").replace(" ", "-")


@contextlib.contextmanager
def explain_damaged_files(path: Path) -> Iterator[None]:
    """Turn errors that a truncated or edited file causes into a `UsageError`.

    Args:
        path: The folder of the run.

    Raises:
        UsageError: If a file is damaged.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        first_line = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {first_line}"
        raise UsageError(
            f"a file in '{path}' is damaged or of another version ({reason})"
        ) from error
