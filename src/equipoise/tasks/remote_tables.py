"""Task on tables that stay on their owners' machines: each machine reads only its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from equipoise.core import ExperimentTask, Preparation, TrainingConfig, option
from equipoise.data.federated_dataset import ClientData, Ints, Split, Target
from equipoise.data.tabular.config import ColumnConfig
from equipoise.data.tabular.exchange import PREPROCESSOR_FILE, count_train_rows, find_table
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.models import MODELS, TREES
from equipoise.tasks import TaskSpec
from equipoise.tasks.supervised import ExamplesTask
from equipoise.trees.config import TreeOptions
from equipoise.utils.errors import UsageError

Examples = tuple[Tensor, Tensor]
"""Inputs `[n, ...]` and targets `[n, ...]`."""


@dataclass(frozen=True)
class RemoteTablesConfig(ColumnConfig, TreeOptions):
    """Options of the task `remote-tables`, equal on all machines except `data`.

    A node replaces `data` by its `--node-config`. With a target, the rows are raw tables: before
    round 1 the clients report sums and counts of their columns to agree on a preprocessing.
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
        "share of a client's training rows kept for validation; 0 for none",
        low=0,
        below=1,
    )

    def __post_init__(self) -> None:
        """Refuse standardisation by client."""
        super().__post_init__()
        if self.standardise == "client":
            raise UsageError(
                "standardise is 'client': "
                "sites that are apart are standardised by the federation, or not"
            )

    @property
    def folder(self) -> Path:
        """The data folder of this machine.

        Raises:
            UsageError: If there is no such folder.
        """
        folder = Path(self.data).expanduser()
        if not self.data or not folder.is_dir():
            raise UsageError(
                f"there is no data folder '{self.data}': a node gives its own by data=\"...\""
            )
        return folder

    def check_server_folder(self) -> None:
        """Check that the server has rows of its own, before anybody waits for clients.

        A folder with training rows is that of a client: its test rows then serve as both.

        Raises:
            UsageError: If there is no folder, or a table is missing.
        """
        folder = self.folder
        if any(folder.glob("train.*")):
            return
        missing = [name for name in ("public", "test") if not any(folder.glob(f"{name}.*"))]
        if missing:
            raise UsageError(
                f"the server's folder '{folder}' has no {' and no '.join(missing)} table: it needs "
                "public.csv, on which the server measures models, and test.csv"
            )

    @property
    def num_train_rows(self) -> int:
        """Number of training rows of the raw table, without the validation rows."""
        rows = count_train_rows(self.folder, self)
        return rows - int(rows * self.val_share)


class LocalFolderData(ClientData):
    """The rows of this machine. Every client number maps to them: there are no others here."""

    def __init__(
        self,
        config: RemoteTablesConfig,
        seed: int,
        preprocessor: Preprocessor | None = None,
        for_trees: bool = False,
    ) -> None:
        """Read the folder of this machine.

        Args:
            config: Where the rows are.
            seed: Draws the validation rows.
            preprocessor: The one of the exchange before round 1; None to load it from the
                folder, if there is one.
            for_trees: Whether the model is made of trees.

        Raises:
            UsageError: If there are too few rows, or the preprocessor is of other sites.
        """
        folder = config.folder
        file = folder / PREPROCESSOR_FILE
        if preprocessor is None and file.is_file():
            preprocessor = Preprocessor.load(file)
        if preprocessor is not None:
            preprocessor = structs.replace(preprocessor, for_trees=for_trees)
        self.preprocessor = preprocessor
        self.clients = config.clients
        self.classes = config.classes
        if self.preprocessor is not None:
            self.names = self.preprocessor.clients
            self.classes = self.preprocessor.target.outputs
            if len(self.names) != config.clients:
                raise UsageError(
                    f"the preparation is of {len(self.names)} sites, "
                    f"but clients is {config.clients}"
                )
        test = self._read(folder, "test")
        self.is_client = any(folder.glob("train.*"))
        self._server = {
            "test": test,
            "public": test if self.is_client else self._read(folder, "public"),
        }
        x, y = self._read(folder, "train") if self.is_client else self._server["public"]
        num_val = int(len(x) * config.val_share)
        if config.val_share and not 0 < num_val < len(x):
            raise UsageError(
                f"'{folder}' has {len(x)} rows to train on: "
                f"too few for a val_share of {config.val_share}"
            )
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
        self._splits = {"train": (x[order[num_val:]], y[order[num_val:]]), "test": test}
        if num_val:
            self._splits["val"] = (x[order[:num_val]], y[order[:num_val]])
        self.shape = tuple(x.shape[1:])

    @property
    def target(self) -> Target:
        """Target of the preprocessor, or classes from 0 on without one."""
        return self.preprocessor.target if self.preprocessor else super().target

    def _read(self, folder: Path, name: str) -> Examples:
        """Read raw tables if there is a preprocessor; otherwise numbers with labels from 0 on."""
        if self.preprocessor is None:
            return read_numbers(folder, name, self.classes)
        table = find_table(folder, name)
        if table is None:
            raise UsageError(f"'{folder}' has neither {name}.csv nor {name}.parquet")
        x, y = self.preprocessor.transform_labelled(table, f"the {name} rows in '{folder}'")
        return torch.from_numpy(x), torch.from_numpy(y)

    def split(self, ids: Ints, name: str) -> Split:
        """Return the rows of this machine for every client."""
        x, y = self._splits[name]
        return Split(x, y, np.zeros(len(ids), np.int64), np.full(len(ids), len(x), np.int64))

    def server(self, name: str) -> Examples:
        """Return the `public` or `test` rows of this machine."""
        return self._server[name]

    def has_split(self, name: str) -> bool:
        """Tell whether this machine has a split."""
        return name in self._splits


class ReportedSizes(ExamplesTask):
    """A supervised task of one machine.

    At the server, the numbers of training examples are those that clients report, and the server's
    own rows replace a client's rows in dry runs.
    """

    data: LocalFolderData
    reported_sizes: dict[int, int]

    def set_reported_sizes(self, sizes: Mapping[int, int]) -> None:
        """Store the numbers of training examples that clients reported."""
        self.reported_sizes.update(sizes)

    def num_examples(self, ids: Tensor) -> Tensor:
        """Count own rows at a client; return reported sizes (0 if unknown) at the server."""
        if self.data.is_client:
            return super().num_examples(ids)
        return torch.tensor([self.reported_sizes.get(client, 0) for client in ids.tolist()])


class RemoteTablesTask(ReportedSizes):
    """A network on the tables of one machine."""

    def __init__(
        self,
        data: LocalFolderData,
        model: str,
        training: TrainingConfig,
        bytes_exchanged: tuple[int, int] = (0, 0),
    ) -> None:
        """Create the task.

        Args:
            data: Rows of this machine.
            model: Name of the model.
            training: Settings of local training.
            bytes_exchanged: Bytes (up, down) that the agreement on the preprocessing took.
        """
        super().__init__(
            "remote-tables",
            MODELS[model](data.shape, data.classes),
            data,
            training,
            preparation=Preparation(data.preprocessor, *bytes_exchanged),
        )
        self.reported_sizes = {}


def read_numbers(folder: Path, name: str, classes: int) -> Examples:
    """Read `name.npz` with `x` and `y`, or `name.csv` with a header and the label last.

    Args:
        folder: Folder of the file.
        name: Name without the suffix.
        classes: Number of classes; labels are 0 to classes - 1.

    Returns:
        Inputs `[n, features]` and labels `[n]`.

    Raises:
        UsageError: If there is no such file, or a value is wrong.
    """
    for path in (folder / f"{name}.npz", folder / f"{name}.csv"):
        if not path.is_file():
            continue
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as file:
                    x = file["x"]
                    y = file["y"]
            else:
                table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=np.float64)
                x = table[:, :-1]
                y = table[:, -1]
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


def build(
    config: RemoteTablesConfig, model: str, training: TrainingConfig, seed: int
) -> ExperimentTask:
    """Build the task of this machine from numeric rows.

    Args:
        config: Options of the task.
        model: Name of the model.
        training: Settings of local training.
        seed: Seed of the validation split.

    Returns:
        The task.

    Raises:
        UsageError: If the rows are raw tables, which need connected clients.
    """
    if config.target:
        raise UsageError(
            "raw tables that stay apart are prepared once their clients are connected: "
            "'equipoise flower run' on real nodes"
        )
    return _task(LocalFolderData(config, seed, None, model == TREES), config, model, training)


def _task(
    data: LocalFolderData,
    config: RemoteTablesConfig,
    model: str,
    training: TrainingConfig,
    bytes_exchanged: tuple[int, int] = (0, 0),
) -> ExperimentTask:
    """Build the task of a network, or of trees."""
    if model != TREES:
        return RemoteTablesTask(data, model, training, bytes_exchanged)
    from equipoise.tasks.remote_trees import RemoteTreesTask

    preparation = Preparation(data.preprocessor, *bytes_exchanged)
    return RemoteTreesTask(data, training, config, preparation)


def spec_with_preprocessor(
    preprocessor: Preprocessor, bytes_exchanged: tuple[int, int]
) -> TaskSpec:
    """Return the task specification after clients agreed on a preprocessing of raw tables.

    Args:
        preprocessor: The agreed preprocessing.
        bytes_exchanged: Bytes (up, down) that the agreement took.
    """

    def build(
        config: RemoteTablesConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        data = LocalFolderData(config, seed, preprocessor, model == TREES)
        return _task(data, config, model, training, bytes_exchanged)

    return replace(SPEC, build=build)


SPEC = TaskSpec(
    name="remote-tables",
    help="rows that stay on their owners' machines, for deployment: docs/how-to/remote-tables.md",
    config=RemoteTablesConfig,
    training=TrainingConfig(epochs=1, lr=0.05, batch_size=32, weight_decay=0.01),
    models=("mlp", "linear", TREES),
    build=build,
)
