"""The one place where the laboratory runs Equipoise: options in, a run folder out, read back as it
is on disk.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from equipoise.core import Method, Task
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run as run_settings
from equipoise.records.run_dir import RunFolder
from equipoise.records.scores import Scores
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.pytree import Params


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()
        ]

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        """The logs of the rounds that were evaluated."""
        return [log for log in self.logs if "trained" in log]

    @property
    def config(self) -> dict[str, Any]:
        return RunFolder(self.folder).read_config()

    def clients(self, column: str) -> list[float]:
        """A column of ``clients.csv``: one figure per client."""
        with open(self.folder / "clients.csv") as file:
            return [float(row[column]) for row in csv.DictReader(file)]

    def server_model(self, initial: Params) -> Params:
        """The server's model; blocks that never travel are as they were at first."""
        whole, shared = (
            self.folder / "models" / f"{name}.safetensors" for name in ("global", "shared")
        )
        return {**initial, **load_file(whole if whole.exists() else shared)}


def run(options: Mapping[str, Any], folder: Path) -> Run:
    """Run with the options of the command line; what a killed run left in
    the folder is made anew.
    """
    run_settings(ExperimentConfig.from_options(dict(options)), folder, overwrite=True)
    return Run(folder)


def built(options: Mapping[str, Any]) -> tuple[Method, Task]:
    """The method and the task of a run, without running it."""
    settings = ExperimentConfig.from_options(dict(options))
    return settings.method, build_task(settings)


def one_round_from(start: Params, options: Mapping[str, Any]) -> Scores:
    """The personal models' scores after one round in which everybody begins
    with the given model.
    """
    settings = ExperimentConfig.from_options({**options, "rounds": 1})
    schedule = RoundLoopConfig(1, settings.run.seed, 1.0, "stacked", 1, True)
    simulation = FederatedSimulation(
        settings.method, build_task(settings), settings.training, schedule
    )
    simulation.initial_params = start
    return simulation.run_round().personal


def percent(score: Mapping[str, Any] | None, digits: int = 2, of: str = "acc") -> float | None:
    """An accuracy of a log in percent; None where there is none, or where training diverged."""
    value = score[of] if score else None
    return None if value is None else round(100 * value, digits)
