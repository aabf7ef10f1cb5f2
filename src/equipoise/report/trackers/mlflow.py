"""MLflow: a run in a store."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from equipoise.report.trackers.tracker import PROJECT, Figures, module


class MLflow:
    """A run in the store that MLFLOW_TRACKING_URI names, or else in ``mlflow.db`` of the current folder."""

    def __init__(self, out: Path, config: dict[str, Any], known: str | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault(
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1"
        )  # a server that is away must not hold up rounds
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        entities = module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric = entities.Metric
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            database = Path.cwd() / "mlflow.db"
            database.touch(0o600)  # for its owner alone, if it is new
            place = f"sqlite:///{database}"
        self._client = module("mlflow.tracking").MlflowClient(place)
        if known is not None:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self.id = self._client.create_run(
            experiment, run_name=str(out), tags={"folder": str(out.resolve())}
        ).info.run_id
        self._client.log_batch(
            self.id, params=[entities.Param(name, str(value)) for name, value in config.items()]
        )

    def write(self, step: int, figures: Figures) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            self.id, [self._metric(name, value, now, step) for name, value in figures.items()]
        )

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")
