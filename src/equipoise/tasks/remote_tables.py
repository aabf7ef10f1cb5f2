"""Rows that never leave their owners: each machine reads its own folder, and knows nothing of the others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.core import Task, TrainingConfig, option
from equipoise.data.federated_dataset import ClientData, Ints, Split, Target
from equipoise.data.tabular.config import ColumnConfig
from equipoise.data.tabular.exchange import PREPROCESSOR_FILE, count_train_rows, find_table
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RemoteTablesConfig(ColumnConfig):
    """What all machines agree on; ``data`` is each machine's own (a node's --node-config replaces it).

    With a target, everybody's rows are raw tables: before round 1 clients tell sums and counts of their columns.
    """

    target: str = option(
        "",
        "raw tables: the column to be predicted, or 'num > 0'; empty for numbers, the label last",
    )
    data: str = option(
        "", "this machine's folder: train and test at a client, public and test at the server"
    )
    clients: int = option(3, "number of clients", low=1)
    classes: int = option(2, "number of classes; labels are 0 to classes - 1", low=2)
    val_share: float = option(
        0.1,
        "share of a client's training rows that is kept for validation; 0 for none",
        low=0,
        below=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standardise == "client":
            raise UsageError(
                "standardise is 'client': sites that are apart are standardised by the federation, or not"
            )

    @property
    def folder(self) -> Path:
        folder = Path(self.data).expanduser()
        if not self.data or not folder.is_dir():
            raise UsageError(
                f"there is no data folder '{self.data}': a node gives its own by data=\"...\""
            )
        return folder

    @property
    def num_train_rows(self) -> int:
        """Training rows of raw tables, before anybody knows how they are prepared."""
        rows = count_train_rows(self.folder, self)
        return rows - int(rows * self.val_share)


class LocalFolderData(ClientData):
    """One machine's rows. Whichever client is asked for, these are its rows: there are no others here."""

    def __init__(
        self, config: RemoteTablesConfig, seed: int, preprocessor: Preprocessor | None = None
    ) -> None:
        """Read the folder of this machine.

        Args:
            config: Where the rows are.
            seed: Draws the validation rows.
            preprocessor: The one of the exchange before round 1; None for that of the folder, if there is one.
        """
        folder = config.folder
        file = folder / PREPROCESSOR_FILE
        if preprocessor is None and file.is_file():
            preprocessor = Preprocessor.load(file)
        self.preprocessor = preprocessor
        self.clients, self.classes = config.clients, config.classes
        if self.preprocessor is not None:
            self.names, self.classes = self.preprocessor.clients, self.preprocessor.target.outputs
            if len(self.names) != config.clients:
                raise UsageError(
                    f"the preparation is of {len(self.names)} sites, but clients is {config.clients}"
                )
        test = self._read(folder, "test")
        self.is_client = any(folder.glob("train.*"))
        self._server = {
            "test": test,
            "public": test if self.is_client else self._read(folder, "public"),
        }
        x, y = self._read(folder, "train") if self.is_client else self._server["public"]
        kept = int(len(x) * config.val_share)
        if config.val_share and not 0 < kept < len(x):
            raise UsageError(
                f"'{folder}' has {len(x)} rows to train on: too few for a val_share of {config.val_share}"
            )
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
        self._splits = {"train": (x[order[kept:]], y[order[kept:]]), "test": test}
        if kept:
            self._splits["val"] = (x[order[:kept]], y[order[:kept]])
        self.shape = tuple(x.shape[1:])

    @property
    def target(self) -> Target:
        return self.preprocessor.target if self.preprocessor else super().target

    def _read(self, folder: Path, name: str) -> Examples:
        """Raw tables where there is a preparation for them; otherwise numbers, and labels from 0 on."""
        if self.preprocessor is None:
            return _read(folder, name, self.classes)
        table = find_table(folder, name)
        if table is None:
            raise UsageError(f"'{folder}' has neither {name}.csv nor {name}.parquet")
        x, y = self.preprocessor.transform_labelled(table, f"the {name} rows in '{folder}'")
        return torch.from_numpy(x), torch.from_numpy(y)

    def split(self, ids: Ints, name: str) -> Split:
        x, y = self._splits[name]
        return Split(x, y, np.zeros(len(ids), np.int64), np.full(len(ids), len(x), np.int64))

    def server(self, name: str) -> Examples:
        return self._server[name]

    def has_split(self, name: str) -> bool:
        return name in self._splits


class RemoteTablesTask(ExamplesTask):
    """At the server, sizes are what clients say, and its own rows stand in for a client's in rehearsal."""

    data: LocalFolderData

    def __init__(self, data: LocalFolderData, model: str, training: TrainingConfig) -> None:
        super().__init__("remote-tables", MODELS[model](data.shape, data.classes), data, training)
        self.preprocessor = data.preprocessor
        self.reported_sizes: dict[int, int] = {}

    def set_reported_sizes(self, sizes: Mapping[int, int]) -> None:
        self.reported_sizes.update(sizes)

    def num_examples(self, ids: Tensor) -> Tensor:
        if self.data.is_client:
            return super().num_examples(ids)
        return torch.tensor([self.reported_sizes.get(client, 0) for client in ids.tolist()])


def _read(folder: Path, name: str, classes: int) -> Examples:
    """``name.npz`` with ``x`` and ``y``, or ``name.csv`` with a line of column names and the label last."""
    for path in (folder / f"{name}.npz", folder / f"{name}.csv"):
        if not path.is_file():
            continue
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as file:
                    x, y = file["x"], file["y"]
            else:
                table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=np.float64)
                x, y = table[:, :-1], table[:, -1]
        except (ValueError, KeyError, OSError) as error:
            raise UsageError(f"'{path}' cannot be read: {error}") from error
        if len(x) != len(y) or not len(x) or not np.isfinite(x).all():
            raise UsageError(f"'{path}' must have rows, one label for each, and no NaN")
        if (y != np.round(y)).any() or y.min() < 0 or y.max() >= classes:
            raise UsageError(
                f"'{path}' has labels outside 0..{classes - 1}: check the last column and --classes"
            )
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    raise UsageError(f"'{folder}' has neither {name}.npz nor {name}.csv")


def build(config: RemoteTablesConfig, model: str, training: TrainingConfig, seed: int) -> Task:
    if config.target:
        raise UsageError(
            "raw tables that stay apart are prepared once their clients are connected: 'equipoise flower run' on real "
            "nodes"
        )
    return RemoteTablesTask(LocalFolderData(config, seed), model, training)


def spec_with_preprocessor(preprocessor: Preprocessor, told: tuple[int, int]) -> TaskSpec:
    """The task once all have agreed how raw tables are prepared; ``told``: bytes up and down that it took."""

    def build(config: RemoteTablesConfig, model: str, training: TrainingConfig, seed: int) -> Task:
        task = RemoteTablesTask(LocalFolderData(config, seed, preprocessor), model, training)
        task.bytes_before = told
        return task

    return replace(SPEC, build=build)


SPEC = TaskSpec(
    name="remote-tables",
    help="rows that stay on their owners' machines: for deployment, see docs/deploy.md",
    config=RemoteTablesConfig,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32),
    models=("mlp", "linear"),
    build=build,
)
