"""Rounds sent on to TensorBoard, MLflow or Weights & Biases (`--log`); one that fails is left out, the run goes on."""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, Self

from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError, nearest
from equipoise.runs.running import Folder
from equipoise.runtime.round import RoundLog
from equipoise.settings.config import read_config

PROJECT = "equipoise"  # experiment of MLflow, project of W&B
NO_FIGURES = ("round", "ids", "decisions", "stop")  # of a round: its place, or lists that notes and means stand for
Figures = dict[str, float]


class Tracker(Protocol):
    """One tracker's view of one run; built from the run folder, its config and the id of an earlier sitting, if any."""

    id: str

    def write(self, step: int, figures: Figures) -> None: ...

    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in the run folder: ``tensorboard --logdir runs`` shows all runs below it."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        self.id = "tensorboard"
        self._writer = _module("torch.utils.tensorboard.writer").SummaryWriter(str(out / "tensorboard"))
        if known is None:
            rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
            self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def write(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class MLflow:
    """A run in the store that MLFLOW_TRACKING_URI names, or else in ``mlflow.db`` of the current folder."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # a server that is away must not hold up rounds
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        entities = _module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric = entities.Metric
        self._client = _module("mlflow.tracking").MlflowClient(
            os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
        )
        if known is not None:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self.id = self._client.create_run(
            experiment, run_name=str(out), tags={"folder": str(out.resolve())}
        ).info.run_id
        self._client.log_batch(self.id, params=[entities.Param(name, str(value)) for name, value in config.items()])

    def write(self, step: int, figures: Figures) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.id, [self._metric(name, value, now, step) for name, value in figures.items()])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class WandB:
    """An offline run in the run folder, for ``wandb sync``; WANDB_MODE=online sends it at once."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine
        wandb = _module("wandb")
        self.id = known or uuid.uuid4().hex[:12]
        settings = wandb.Settings(
            **{"mode": mode, "silent": True, "console": "off", "disable_git": True, "disable_code": True},
            **{"x_disable_stats": True, "x_disable_meta": True},
        )
        self._run = wandb.init(
            **{"project": os.environ.get("WANDB_PROJECT", PROJECT), "name": str(out), "id": self.id},
            **{
                "dir": str(out),
                "config": config,
                "settings": settings,
                "resume": "allow" if mode == "online" else None,
            },
        )

    def write(self, step: int, figures: Figures) -> None:
        self._run.log(figures, step=step)  # kept open until the next step: the summary joins the last round

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, tuple[str, Callable[[Path, dict[str, Any], str | None], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WandB),
}
"""By name: the module that must be there, and how to begin."""


def _module(name: str) -> Any:
    """An extra's module, untyped: type checks do not depend on what is installed."""
    return importlib.import_module(name)


def named(text: str) -> list[str]:
    """Trackers from the text of ``--log``, each known and installed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"unknown tracker '{name}'{nearest(name, TRACKERS)}; choose {', '.join(TRACKERS)}")
        if importlib.util.find_spec(TRACKERS[name][0]) is None:
            raise UsageError(f"--log {name} needs an extra: pip install 'equipoise[{name}]'")
    return list(dict.fromkeys(names))


class Tracking:
    """The trackers of one run: called after each round, closed at the end.

    They begin with the first round, when the run's folder is there. One that is new to the folder is first told of the
    rounds before; one that knows the run (a resume) is not told again of the ``done`` rounds that it has seen.
    """

    def __init__(self, names: str, out: Path, done: int = 0) -> None:
        self._names, self._folder, self._done = named(names), Folder(out), done
        self._open: dict[str, Tracker] = {}
        self._seen: dict[str, int] = {}
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, log: RoundLog) -> None:
        if not self._begun:
            self._begin([earlier for earlier in self._folder.logs() if earlier["round"] < log["round"]])
        self._write(log)

    def __exit__(self, *error: object) -> None:
        finished = self._folder.summary.is_file()
        if not self._begun and finished:
            self._begin(self._folder.logs())
        if finished and self._open:
            summary = json.loads(self._folder.summary.read_text())
            last = {name: value for name, value in summary.items() if name not in ("global", "seed", "rounds")}
            found = {f"summary/{name}": value for name, value in figures(last).items()}
            self._each(lambda name, tracker: tracker.write(summary["rounds"], found))
        self._each(lambda name, tracker: tracker.close(finished))

    def _begin(self, earlier: list[RoundLog]) -> None:
        self._begun = True
        file = self._folder.path / "trackers.json"
        known: dict[str, str] = json.loads(file.read_text()) if self._names and file.is_file() else {}
        config = read_config(self._folder.config) if self._names else {}
        for name in self._names:
            self._seen[name] = self._done if name in known else 0
            self._guarded(name, lambda name=name: self._start(name, config, known.get(name)))  # type: ignore[misc]
        if self._open:
            now = {name: tracker.id for name, tracker in self._open.items()}
            checkpoint.write_text(file, json.dumps({**known, **now}))
        for log in earlier:
            self._write(log)

    def _start(self, name: str, config: dict[str, Any], known: str | None) -> None:
        self._open[name] = TRACKERS[name][1](self._folder.path, config, known)

    def _write(self, log: RoundLog) -> None:
        if self._open:
            step, found = log["round"], figures(log)
            self._each(lambda name, tracker: tracker.write(step, found) if step > self._seen[name] else None)

    def _each(self, act: Callable[[str, Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            self._guarded(name, lambda name=name, tracker=tracker: act(name, tracker))  # type: ignore[misc]

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        """Whatever a tracker throws costs the tracker, never the run; said once, since it is not asked again."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # theirs, about each other
                act()
        except Exception as error:
            self._open.pop(name, None)
            reason = next(iter(str(error).splitlines()), "")
            print(f"equipoise: {name} is left out from here on: {type(error).__name__}: {reason}", file=sys.stderr)


def figures(log: dict[str, Any]) -> Figures:
    """Every finite number by a name with slashes; of a list its mean, of dropped clients their number."""
    found: Figures = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
            add(name, fmean(value))
        elif isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)

    for name, value in log.items():
        if name not in NO_FIGURES:
            add(name, len(value) if name == "dropped" else value)
    return found
