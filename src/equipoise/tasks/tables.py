"""Task on the user's own tables: CSV or Parquet files, or an archive of recordings.

Tables given in Python are handled by `equipoise.tasks.in_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from equipoise.core import ExperimentTask, Preparation, TrainingConfig, option
from equipoise.data import tabular
from equipoise.data.federated_dataset import Federation
from equipoise.data.time_series import federate_recordings, read_recordings
from equipoise.models import MODELS, TREES
from equipoise.tasks import AUTO_MODEL, TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.training.objectives import Objective, balanced_class_weights, objective_of
from equipoise.trees.config import TreeOptions
from equipoise.utils import rng
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class TableLearningConfig(tabular.TableConfig, TreeOptions):
    """Options of learning from tables: the columns, and the loss of their target."""

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
        """Create the objective of the data's target.

        Args:
            data: The federation built from the tables.

        Returns:
            Loss and metrics.

        Raises:
            UsageError: If `class_weights` or `error` do not fit the kind of target.
        """
        target = data.target
        weights = None
        if self.class_weights == "balanced":
            if target.kind != "classification":
                raise UsageError(
                    f"class_weights is for classes, and the target is read as {target.kind}: "
                    "leave it out"
                )
            if self.preprocess_from == "server":
                raise UsageError(
                    "class_weights counts every client's classes, "
                    "which preprocess_from server forbids"
                )
            train = data.split(np.arange(data.clients), "train")
            weights = balanced_class_weights(torch.bincount(train.y, minlength=data.classes))
        if self.error == "absolute" and target.kind != "regression":
            raise UsageError(
                f"error is for regression, and the target is read as {target.kind}: leave it out"
            )
        return objective_of(target, class_weights=weights, absolute=self.error == "absolute")


@dataclass(frozen=True)
class TablesConfig(TableLearningConfig):
    """Options of the task `tables`: where the files are and what their columns mean."""

    data: str = option(
        "",
        "folder with one CSV, Parquet or Excel file per client, or one file with a client column",
    )
    client_column: str = option("client", "column that names the client, where all are in one file")
    window: int = option(
        100, "steps of a window, where the file is an archive of recordings (.npz)", low=1
    )

    @property
    def has_recordings(self) -> bool:
        """Whether `data` is an archive of recordings."""
        return Path(self.data).suffix == ".npz"

    @property
    def path(self) -> Path:
        """The file or folder given by `data`.

        Raises:
            UsageError: If `data` is empty.
        """
        if not self.data:
            raise UsageError(
                "task 'tables' needs --data: "
                "a folder with one CSV, Parquet or Excel file per client, or one file"
            )
        return Path(self.data).expanduser()


def build(config: TablesConfig, model: str, training: TrainingConfig, seed: int) -> ExperimentTask:
    """Build the task from files.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the split of rows.

    Returns:
        The task.

    Raises:
        UsageError: If options do not suit the data.
    """
    path = config.path
    if config.has_recordings:
        if config.folds:
            raise UsageError("folds are for tables, and '.npz' holds recordings: leave it out")
        if model == TREES:
            raise UsageError("model trees is for tables, not for recordings: leave model out")
        recordings = read_recordings(path, config.client_column, config.target)
        windows = federate_recordings(recordings, config.window, config, split_generator(seed))
        return ExamplesTask(
            "tables",
            MODELS[model](windows.data.shape, windows.data.classes),
            windows.data,
            training,
            preparation=Preparation(
                windows.preprocessor, windows.upload_bytes, windows.download_bytes
            ),
        )
    tables = tabular.read_tables(path, config.client_column, config)
    return task_from_tables("tables", tables, config, model, training, seed)


def task_from_tables(
    name: str,
    tables: tabular.ClientTables,
    config: TableLearningConfig,
    model: str,
    training: TrainingConfig,
    seed: int,
    label_type: str = "",
) -> ExamplesTask:
    """Build a task from the tables of all clients.

    Args:
        name: Name of the task.
        tables: Tables of the clients, from files or from `tabular.tables_from_values`.
        config: Columns and loss.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the split of rows.
        label_type: Type of the labels, see `Preparation`.

    Returns:
        The task, with its preprocessor and the bytes that the preprocessing exchanged.

    Raises:
        UsageError: If the model must be chosen by a comparison, or the tables cannot be used.
    """
    if model == AUTO_MODEL:
        raise UsageError("model auto is for 'equipoise run': give linear, mlp or trees here")
    federation = tabular.build_federation(tables, config, split_generator(seed), model == TREES)
    data = federation.data
    objective = config.objective(data)
    preparation = Preparation(
        federation.preprocessor,
        federation.upload_bytes,
        federation.download_bytes,
        federation.notes,
        label_type,
    )
    if model == TREES:
        from equipoise.tasks.trees import TreesTask

        categories = federation.preprocessor.num_categories
        return TreesTask(name, data, training, config, categories, objective, preparation)
    module = MODELS[model](data.shape, data.classes)
    return ExamplesTask(name, module, data, training, objective=objective, preparation=preparation)


TRAINING = TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=0.01)
"""Weight decay was chosen on tables, see benchmarks/results/first_door."""
RECORDINGS_TRAINING = replace(TRAINING, weight_decay=0.0)


def default_training(config: TablesConfig) -> TrainingConfig:
    """Return the defaults of local training: of tables or of recordings."""
    return RECORDINGS_TRAINING if config.has_recordings else TRAINING


SPEC = TaskSpec(
    name="tables",
    help="your own tables: a folder of CSV or Parquet files, one per client, "
    "or one file with a client column",
    config=TablesConfig,
    training=TRAINING,
    training_of=default_training,
    models=("mlp", "linear", "cnn1d", TREES, AUTO_MODEL),
    build=build,
    patience=10,
    first_methods=("autopilot@linear", "autopilot", "fedavg", "local"),
)


def split_generator(seed: int) -> np.random.Generator:
    """Return the generator that splits the user's rows."""
    return rng.generator(seed, rng.USER_ROWS)
