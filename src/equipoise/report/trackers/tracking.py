"""Rounds sent on to TensorBoard, MLflow or Weights & Biases (`--log`); one that fails is left out, the run goes on."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.report.trackers.mlflow import MLflow
from equipoise.report.trackers.tensorboard import TensorBoard
from equipoise.report.trackers.tracker import Tracker, of_round, of_summary
from equipoise.report.trackers.wandb import WandB
from equipoise.utils import io as checkpoint
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError, nearest

TRACKERS: dict[str, tuple[str, Callable[[Path, dict[str, Any], str | None], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WandB),
}
"""By name: the module that must be there, and how to begin."""


def named(text: str) -> list[str]:
    """Trackers from the text of ``--log``, each known and installed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise UsageError(
                f"unknown tracker '{name}'{nearest(name, TRACKERS)}; choose {', '.join(TRACKERS)}"
            )
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

    def __call__(self, record: RoundRecord) -> None:
        if not self._begun:
            self._begin(
                [earlier for earlier in self._folder.stream() if earlier.round < record.round]
            )
        self._write(record)

    def __exit__(self, *error: object) -> None:
        finished = self._folder.summary.is_file()
        if not self._begun and finished:
            self._begin(self._folder.records())
        if finished and self._open:
            summary = self._folder.read_summary()
            found = of_summary(summary)
            self._each(lambda name, tracker: tracker.write(summary.rounds, found))
        self._each(lambda name, tracker: tracker.close(finished))

    def _begin(self, earlier: list[RoundRecord]) -> None:
        self._begun = True
        file = self._folder.trackers
        known: dict[str, str] = (
            json.loads(file.read_text()) if self._names and file.is_file() else {}
        )
        config = read_config(self._folder.config) if self._names else {}
        for name in self._names:
            self._seen[name] = self._done if name in known else 0
            self._guarded(name, lambda name=name: self._start(name, config, known.get(name)))  # type: ignore[misc]
        if self._open:
            now = {name: tracker.id for name, tracker in self._open.items()}
            checkpoint.write_text(file, json.dumps({**known, **now}))
        for record in earlier:
            self._write(record)

    def _start(self, name: str, config: dict[str, Any], known: str | None) -> None:
        self._open[name] = TRACKERS[name][1](self._folder.path, config, known)

    def _write(self, record: RoundRecord) -> None:
        if self._open:
            step, found = record.round, of_round(record)
            self._each(
                lambda name, tracker: (
                    tracker.write(step, found) if step > self._seen[name] else None
                )
            )

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
            print(
                f"equipoise: {name} is left out from here on: {type(error).__name__}: {reason}",
                file=sys.stderr,
            )
