"""Bring your own: tables of clients, as files here, or given in Python (:mod:`equipoise.tasks.in_memory`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equipoise.core import Task, TrainingConfig, option
from equipoise.data import tabular
from equipoise.data.federated_dataset import Federation
from equipoise.data.time_series import federate_recordings, read_recordings
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.training.objectives import Objective, balanced_class_weights, objective_of
from equipoise.utils import rng
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class TableLearningConfig(tabular.TableConfig):
    """Tables, and what errors in predicting their target count."""

    class_weights: str = option(
        "none",
        "balanced makes every class count alike, however rare it is",
        choices=("none", "balanced"),
    )
    error: str = option(
        "squared",
        "what a regression makes small: squared or absolute",
        choices=("squared", "absolute"),
    )

    def objective(self, data: Federation) -> Objective:
        """The loss and the scores for what these data have as their target."""
        target, weights = data.target, None
        if self.class_weights == "balanced":
            if target.kind != "classification":
                raise UsageError(
                    f"class_weights is for classes, and the target is read as {target.kind}: leave it out"
                )
            if self.preprocess_from == "server":
                raise UsageError(
                    "class_weights counts every client's classes, which preprocess_from server forbids"
                )
            whole = data.split(np.arange(data.clients), "train")
            weights = balanced_class_weights(torch.bincount(whole.y, minlength=data.classes))
        if self.error == "absolute" and target.kind != "regression":
            raise UsageError(
                f"error is for regression, and the target is read as {target.kind}: leave it out"
            )
        return objective_of(target, class_weights=weights, absolute=self.error == "absolute")


@dataclass(frozen=True)
class TablesConfig(TableLearningConfig):
    """Where the tables are and what their columns mean."""

    data: str = option(
        "", "folder with one CSV or Parquet file per client, or one file with a client column"
    )
    client_column: str = option("client", "column that names the client, where all are in one file")
    window: int = option(
        100, "steps of a window, where the file is an archive of recordings (.npz)", low=1
    )

    @property
    def path(self) -> Path:
        if not self.data:
            raise UsageError(
                "task 'own' needs --data: a folder with one CSV or Parquet file per client, or one file"
            )
        return Path(self.data).expanduser()


def build(config: TablesConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    if config.path.suffix == ".npz":
        recordings = read_recordings(config.path, config.client_column, config.target)
        found = federate_recordings(recordings, config.window, config, split_generator(seed))
        task = ExamplesTask(
            "tables", MODELS[model](found.data.shape, found.data.classes), found.data, training
        )
        task.preprocessor = found.preprocessor
        task.bytes_before = (found.upload_bytes, found.download_bytes)
        return task
    whole = tabular.read_tables(config.path, config.client_column, config)
    return task_from_tables("tables", whole, config, model, training, seed)


def task_from_tables(
    name: str,
    found: tabular.ClientTables,
    choices: TableLearningConfig,
    model: str,
    training: TrainingConfig,
    seed: int,
) -> ExamplesTask:
    """A task from everybody's tables, in files or (by :func:`~equipoise.data.tabular.tables_from_values`) in Python."""
    made = tabular.build_federation(found, choices, split_generator(seed))
    module = MODELS[model](made.data.shape, made.data.classes)
    task = ExamplesTask(name, module, made.data, training, objective=choices.objective(made.data))
    task.preprocessor = made.preprocessor
    task.bytes_before = (made.upload_bytes, made.download_bytes)
    return task


SPEC = TaskSpec(
    name="tables",
    help="your own tables: a folder of CSV or Parquet files, one per client, or one file with a client column",
    config=TablesConfig,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32),
    models=("mlp", "linear", "cnn1d"),
    build=build,
)


def split_generator(seed: int) -> np.random.Generator:
    """What deals out the rows of a task of somebody's own."""
    return rng.generator(seed, rng.USER_ROWS)
