"""Experiment trackers (`--log`): TensorBoard, MLflow, Weights & Biases, Trackio.

A tracker that fails is left out and named; the run goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import math
import os
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol, Self

from equipoise.records import codec
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.summary import Summary
from equipoise.report.run_data import Config
from equipoise.utils.errors import UsageError, did_you_mean, install_hint

PROJECT = "equipoise"  # experiment of MLflow, project of W&B
# Entries of a round that are no metrics: its number, and lists whose means are logged elsewhere.
NON_METRICS = ("round", "ids", "decisions", "stop")
# Entries of a summary that the rounds have told already, or that describe the run.
NON_SUMMARY_METRICS = ("global", "seed", "rounds")

Metrics = dict[str, float]


class Tracker(Protocol):
    """One tracker's view of one run."""

    id: str
    """Name of the run in the tracker, by which a resumed run continues it."""

    def write(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of one round."""

    def close(self, finished: bool) -> None:
        """End the run, which is finished or was interrupted."""


# ------------------------------------------------------------------ metrics


def round_metrics(record: RoundRecord) -> Metrics:
    """Flatten a round to finite numbers with names such as ``personal/acc``.

    Args:
        record: The round.

    Returns:
        Every number by name; of a list its mean, of dropped clients their number.
    """
    entries = codec.encode(record)
    entries["dropped"] = len(record.dropped)
    return _flatten({name: value for name, value in entries.items() if name not in NON_METRICS})


def summary_metrics(summary: Summary) -> Metrics:
    """Flatten a summary likewise, with names under ``summary/``."""
    entries = codec.encode(summary)
    shown_entries = {
        name: value for name, value in entries.items() if name not in NON_SUMMARY_METRICS
    }
    return {f"summary/{name}": value for name, value in _flatten(shown_entries).items()}


def _flatten(entries: Mapping[str, Any]) -> Metrics:
    """Join the names of nested mappings by slashes, and leave out what is not a finite number."""
    metrics: Metrics = {}
    for name, value in entries.items():
        if isinstance(value, dict):
            metrics |= {f"{name}/{key}": inner for key, inner in _flatten(value).items()}
            continue
        is_number_list = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
        if is_number_list and value:
            value = fmean(value)
        if isinstance(value, int | float) and math.isfinite(value):
            metrics[name] = float(value)
    return metrics


# ------------------------------------------------------------------ trackers


def _import(name: str) -> Any:
    """Import a module of an extra, untyped: type checks do not depend on what is installed."""
    return importlib.import_module(name)


class TensorBoardTracker:
    """Event files in the run folder: ``tensorboard --logdir runs`` shows all runs below it."""

    def __init__(self, out: Path, config: Config, known_id: str | None) -> None:
        """Start a run of the tracker, or go on with a known one.

        Args:
            out: Folder of the run.
            config: Options of the run.
            known_id: Id of the tracker's run to go on with; None for a new one.
        """
        self.id = "tensorboard"
        writer = _import("torch.utils.tensorboard.writer")
        self._writer = writer.SummaryWriter(str(out / "tensorboard"))
        if known_id is None:
            rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
            self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def write(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of one round."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        """Close the files."""
        self._writer.close()


class MLflowTracker:
    """A run in the store of MLFLOW_TRACKING_URI, or else in ``mlflow.db`` of the current folder."""

    def __init__(self, out: Path, config: Config, known_id: str | None) -> None:
        """Start a run of the tracker, or go on with a known one.

        Args:
            out: Folder of the run.
            config: Options of the run.
            known_id: Id of the tracker's run to go on with; None for a new one.
        """
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A server that is away must not hold up rounds.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        entities = _import("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric_class = entities.Metric
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if store is None:
            database = Path.cwd() / "mlflow.db"
            database.touch(0o600)  # readable by its owner alone, if it is new
            store = f"sqlite:///{database}"
        self._client = _import("mlflow.tracking").MlflowClient(store)
        if known_id is not None:
            self.id = known_id
            self._client.update_run(known_id, status="RUNNING")
            return
        tags = {"folder": str(out.resolve())}
        run = self._client.create_run(self._experiment_id(), run_name=str(out), tags=tags)
        self.id = run.info.run_id
        params = [entities.Param(name, str(value)) for name, value in config.items()]
        self._client.log_batch(self.id, params=params)

    def _experiment_id(self) -> str:
        """Find the experiment, or create it."""
        experiment = self._client.get_experiment_by_name(PROJECT)
        if experiment:
            return str(experiment.experiment_id)
        return str(self._client.create_experiment(PROJECT))

    def write(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of one round."""
        now = int(1000 * time.time())
        entries = [self._metric_class(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self.id, entries)

    def close(self, finished: bool) -> None:
        """Set the run's status."""
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class WandbTracker:
    """An offline run in the run folder, for ``wandb sync``; WANDB_MODE=online sends it at once."""

    def __init__(self, out: Path, config: Config, known_id: str | None) -> None:
        """Start a run of the tracker, or go on with a known one.

        Args:
            out: Folder of the run.
            config: Options of the run.
            known_id: Id of the tracker's run to go on with; None for a new one.
        """
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine
        wandb = _import("wandb")
        self.id = known_id or uuid.uuid4().hex[:12]
        settings = wandb.Settings(
            mode=mode,
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=str(out),
            id=self.id,
            dir=str(out),
            config=config,
            settings=settings,
            resume="allow" if mode == "online" else None,
        )

    def write(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of one round. A step stays open, so the summary joins the last round."""
        self._run.log(metrics, step=step)

    def close(self, finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if finished else 1)


class TrackioTracker:
    """A run of the project ``equipoise`` in TRACKIO_DIR, on this machine alone."""

    def __init__(self, out: Path, config: Config, known_id: str | None) -> None:
        """Start a run of the tracker, or go on with a known one.

        Args:
            out: Folder of the run.
            config: Options of the run.
            known_id: Id of the tracker's run to go on with; None for a new one.
        """
        self._trackio = _import("trackio")
        self.id = known_id or f"{out}-{uuid.uuid4().hex[:6]}"
        with contextlib.redirect_stdout(None):
            self._run = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=self.id,
                config=config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of one round."""
        self._run.log(metrics, step=step)

    def close(self, finished: bool) -> None:
        """Send what is left and end the run."""
        with contextlib.redirect_stdout(None):
            self._trackio.finish()


class TrackerType(NamedTuple):
    """A kind of tracker."""

    module: str
    """Module that must be installed."""
    open: Callable[[Path, Config, str | None], Tracker]
    """Make a tracker from the run folder, its config, and the id of an earlier start if any."""


TRACKERS = {
    "tensorboard": TrackerType("tensorboard", TensorBoardTracker),
    "mlflow": TrackerType("mlflow", MLflowTracker),
    "wandb": TrackerType("wandb", WandbTracker),
    "trackio": TrackerType("trackio", TrackioTracker),
}


def parse_tracker_names(text: str) -> list[str]:
    """Read the value of ``--log``.

    Args:
        text: Names of trackers, separated by commas.

    Returns:
        The names without repetition.

    Raises:
        UsageError: A tracker is unknown or not installed.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise UsageError(
                f"unknown tracker '{name}'{did_you_mean(name, TRACKERS)}; choose {known}"
            )
        if importlib.util.find_spec(TRACKERS[name].module) is None:
            raise UsageError(f"--log {name} needs an extra: {install_hint(name)}")
    return list(dict.fromkeys(names))


class RunTrackers:
    """The trackers of one run: called after each round, closed at the end.

    They are opened with the first round, when the run's folder exists. A tracker that is new to the
    folder first gets the earlier rounds; one that knows the run, after a resume, does not get the
    rounds again that it has.
    """

    def __init__(self, names: str, out: Path, done: int = 0) -> None:
        """Prepare the trackers.

        Args:
            names: Value of ``--log``.
            out: Run folder.
            done: Rounds that had ended before, if the run is resumed.

        Raises:
            UsageError: A tracker is unknown or not installed.
        """
        self._names = parse_tracker_names(names)
        self._folder = RunFolder(out)
        self._done = done
        self._open: dict[str, Tracker] = {}
        self._last_written: dict[str, int] = {}
        self._has_started = False

    def __enter__(self) -> Self:
        """Return the tracker."""
        return self

    def __call__(self, record: RoundRecord) -> None:
        """Send one round."""
        if not self._has_started:
            self._start([past for past in self._folder.stream() if past.round < record.round])
        self._write(record)

    def __exit__(self, *error: object) -> None:
        """Send the summary if the run is finished, and close the tracker."""
        finished = self._folder.summary.exists()
        if not self._has_started and finished:
            self._start(self._folder.records())
        if finished and self._open:
            summary = self._folder.read_summary()
            metrics = summary_metrics(summary)
            self._for_each(lambda name, tracker: tracker.write(summary.rounds, metrics))
        self._for_each(lambda name, tracker: tracker.close(finished))

    def _start(self, earlier: list[RoundRecord]) -> None:
        """Open all trackers and send them the rounds that they lack."""
        self._has_started = True
        if not self._names:
            return
        file = self._folder.trackers
        known_ids: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        config = self._folder.read_config()
        for name in self._names:
            self._last_written[name] = self._done if name in known_ids else 0
            self._try_action(
                name, lambda name: self._open_tracker(name, config, known_ids.get(name))
            )
        if self._open:
            ids = {name: tracker.id for name, tracker in self._open.items()}
            file.write(json.dumps({**known_ids, **ids}))
        for record in earlier:
            self._write(record)

    def _open_tracker(self, name: str, config: Config, known_id: str | None) -> None:
        self._open[name] = TRACKERS[name].open(self._folder.path, config, known_id)

    def _write(self, record: RoundRecord) -> None:
        if not self._open:
            return
        step = record.round
        metrics = round_metrics(record)

        def write(name: str, tracker: Tracker) -> None:
            if step > self._last_written[name]:
                tracker.write(step, metrics)

        self._for_each(write)

    def _for_each(self, action: Callable[[str, Tracker], None]) -> None:
        for name in list(self._open):
            self._try_action(name, lambda name: action(name, self._open[name]))

    def _try_action(self, name: str, action: Callable[[str], None]) -> None:
        """Run an action of a tracker. If it fails, say so once and leave the tracker out."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the trackers' libraries, about each other
                action(name)
        except Exception as error:
            self._open.pop(name, None)
            first_line = next(iter(str(error).splitlines()), "")
            reason = f"{type(error).__name__}: {first_line}"
            print(f"equipoise: {name} is left out from here on: {reason}", file=sys.stderr)
