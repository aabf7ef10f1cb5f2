"""Tasks made in Python: tables, arrays, tensors or torch data sets in memory, with any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import nn

from equipoise.core import ExperimentTask, TrainingConfig
from equipoise.data.federated_dataset import SPLITS, Federation, InputTransform, Ints, Target
from equipoise.data.splits import RowAssignment, UserRows, UserRowShares, assign_rows, infer_form
from equipoise.data.tabular.diagnostics import raise_problems
from equipoise.data.tabular.io import (
    SERVER,
    align_tables,
    split_by_client,
    table_from_values,
    tables_from_values,
)
from equipoise.data.tabular.table import ClientTables
from equipoise.data.text import texts_from_python
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec, text
from equipoise.tasks import tables as own
from equipoise.tasks.supervised import ExamplesTask
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError, did_you_mean

Model = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | str
"""A module, a function ``(shape of a sample, classes) -> module``, or the name of a model."""

DATASET_TRAINING = TrainingConfig(epochs=1, lr=0.05, batch_size=32)
"""Defaults for the user's own networks, which are not regularised unless asked."""

LABEL_COLUMNS = ("label", "labels", "target", "y")
"""Names that the column of labels of a Hugging Face data set may have."""
LABEL_TYPES: Mapping[str, tuple[type, ...]] = {"text": (str,), "float": (float, np.floating)}
"""Python types of labels whose type the names of classes do not show."""


class ClientArrays(NamedTuple):
    """The samples of one client or of the server.

    Attributes:
        x: Samples ``[n, ...]``.
        y: Classes or numbers ``[n]``.
        split: Split of each sample as an index of ``SPLITS`` ``[n]``; None to draw them.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    split: Ints | None


@dataclass(frozen=True)
class DatasetRows:
    """Samples of all clients in memory, with their splits.

    Attributes:
        rows: The samples and their owners.
        fixed_splits: Split of each sample ``[n]``; None to draw them.
        form: How stored samples become inputs.
    """

    rows: UserRows
    fixed_splits: Ints | None
    form: InputTransform

    def assign(self, config: UserRowShares, seed: int) -> tuple[RowAssignment, Generator]:
        """Assign samples to splits; return the generator for what is drawn next."""
        generator = own.split_generator(seed)
        rows = self.rows
        needs_holdout = rows.server is None
        assignment = assign_rows(
            rows.owner, config, generator, needs_holdout, rows.names, self.fixed_splits
        )
        return assignment, generator

    def federate(self, config: UserRowShares, seed: int) -> Federation:
        """Split the samples of each client and build the federation."""
        assignment, generator = self.assign(config, seed)
        rows = self.rows
        if rows.target is not None:
            train = rows.y[assignment.splits["train"].rows].astype(np.float64)
            scale = float(train.std()) or 1.0
            target = msgspec.structs.replace(rows.target, mean=float(train.mean()), scale=scale)
            rows = replace(rows, target=target)
        return rows.build(assignment, config, self.form, generator)

    def row_splits(self, config: UserRowShares, seed: int) -> dict[str, dict[str, Ints]]:
        """Return which samples each client uses for what.

        Args:
            config: Shares of the splits.
            seed: Seed of the run.

        Returns:
            By client, the numbers of its samples, in the order given, by split; those that the
            server took are under ``server``.
        """
        assignment, _ = self.assign(config, seed)
        owner = self.rows.owner
        first = np.searchsorted(owner, np.arange(int(owner.max()) + 1))
        parts = {name: part.rows for name, part in assignment.splits.items()}
        if len(assignment.server_holdout):
            parts["server"] = assignment.server_holdout
        splits: dict[str, dict[str, Ints]] = {}
        for client in range(len(first)):
            name = self.rows.names[client] if self.rows.names else str(client)
            splits[name] = {
                split: np.sort(rows[owner[rows] == client]) - first[client]
                for split, rows in parts.items()
            }
        return splits


def read_datasets(
    clients: Mapping[str, Any] | Iterable[Any],
    name: str,
    *,
    server: Any = None,
    classes: int | None = None,
    form: InputTransform | None = None,
) -> DatasetRows:
    """Read the samples of all clients; see :meth:`equipoise.Task.from_datasets`.

    Args:
        clients: Samples of each client, by name or in order.
        name: Name of the task, for error messages.
        server: The server's samples; None to split them from the clients'.
        classes: Number of classes; None to count them.
        form: How stored rows become model inputs.

    Returns:
        The samples of all clients and of the server.

    Raises:
        UsageError: If samples or labels cannot be used.
    """
    names = [str(client) for client in clients] if isinstance(clients, Mapping) else []
    client_list = clients.values() if isinstance(clients, Mapping) else clients
    parts = [
        _client_arrays(part, f"client {f'{names[k]!r}' if names else k}")
        for k, part in enumerate(client_list)
    ]
    if not parts:
        raise UsageError(f"task '{name}' has no clients: give at least one")
    served = None if server is None else _client_arrays(server, "the server")
    everybody = parts if served is None else [*parts, served]
    shapes = {part.x.shape[1:] for part in everybody}
    if len(shapes) > 1:
        raise UsageError(f"task '{name}' has samples of different shapes: {sorted(shapes)}")
    if len({part.split is None for part in parts}) > 1:
        raise UsageError(
            f"some clients of task '{name}' have splits of their own: give all, or none"
        )
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    splits = [part.split for part in parts if part.split is not None]
    owner = np.repeat(np.arange(len(parts)), [len(part.y) for part in parts])
    target = None
    outputs = classes or int(max(part.y.max() for part in everybody)) + 1
    if any(np.issubdtype(part.y.dtype, np.floating) for part in everybody):
        y = y.astype(np.float32)
        target = Target(kind="regression")
        outputs = 1
    server_rows = None if served is None else (served.x, served.y.astype(y.dtype))
    rows = UserRows(x, y, owner, server_rows, outputs, names, target)
    fixed_splits = np.concatenate(splits) if splits else None
    return DatasetRows(rows, fixed_splits, form or infer_form(x))


def from_datasets(
    data: DatasetRows,
    model: Model,
    name: str,
    *,
    training: TrainingConfig | None = None,
    fresh: bool = False,
    adapter: str = "",
    blocks: str = "",
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_datasets`.

    Args:
        data: The samples, from `read_datasets`.
        model: A network, a function that makes one, or the name of a model.
        name: Name of the task.
        training: Default settings of local training.
        fresh: Whether weights are drawn from the seed of a run.
        adapter: Low-rank adapters in place of all weights.
        blocks: Blocks of the model.

    Returns:
        The task as a value, which runs build.

    Raises:
        UsageError: If there is no model of this name.
    """
    if isinstance(model, str) and model not in MODELS:
        raise UsageError(
            f"unknown model '{model}'{did_you_mean(model, MODELS)}: choose {', '.join(MODELS)}"
        )
    start = _start(model, fresh)

    def build(
        config: UserRowShares, chosen: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        federation = data.federate(config, seed)
        module = start.module(federation.shape, federation.classes, seed)
        objective = objective_of(federation.target)
        task = ExamplesTask(
            name, module, federation, training, fresh=start.fresh, objective=objective
        )
        return task.with_network("", adapter, blocks, seed) if adapter or blocks else task

    defaults = training or DATASET_TRAINING
    return TaskSpec(
        name, "a task made in Python", UserRowShares, defaults, (), build, in_python=True
    )


def from_tables(
    tables: Any, name: str, choices: own.TableLearningConfig, client_column: str = ""
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_tables`.

    Args:
        tables: A table for each client's name, or one table.
        name: Name of the task.
        choices: Options of columns and training.
        client_column: The column that names the client, in one table.

    Returns:
        The task as a value, which runs build.
    """
    aligned = align_tables(_client_tables(tables, client_column), choices)
    label_type = _label_type([tables] if client_column else tables.values(), choices.target)

    def build(
        config: own.TableLearningConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        return own.task_from_tables(name, aligned, config, model, training, seed, label_type)

    spec = own.SPEC
    return TaskSpec(
        name,
        "tables given in Python",
        own.TableLearningConfig,
        spec.training,
        spec.models,
        build,
        patience=spec.patience,
        first_methods=spec.first_methods,
        in_python=True,
    )


def _label_type(tables: Iterable[Any], target: str) -> str:
    """Return the type of the labels if their names cannot show it: `text` or `float`.

    The number 1 and the text '1' are the same class in a table; predictions come back as given.
    """
    dtypes = set()
    for table in tables:
        names = getattr(table, "column_names", None) or getattr(table, "columns", table)
        if target not in list(names):
            return ""
        column = table[target]
        cells = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
        types = {type(cell) for cell in cells if not _is_missing(cell)}
        fitting = [
            label_type
            for label_type, kinds in LABEL_TYPES.items()
            if all(issubclass(kind, kinds) for kind in types)
        ]
        dtypes.add(fitting[0] if fitting else "")
    return dtypes.pop() if len(dtypes) == 1 else ""


def _is_missing(cell: object) -> bool:
    """Whether a cell is None, NaN or the missing value of pandas, which has no truth value."""
    return cell is None or type(cell).__name__ == "NAType" or cell != cell


def _client_tables(tables: Any, client_column: str) -> ClientTables:
    """Return the tables of all clients, given by name or as one table with a client column."""
    if client_column:
        table = table_from_values(tables, "the table", client_column)
        split, diagnostics = split_by_client(table, client_column, "the table")
        raise_problems(diagnostics, split.source)
        return split
    if hasattr(tables, "columns") or hasattr(tables, "column_names"):
        raise UsageError(
            "tables is one table: name the column of its clients (client_column='site'), or give "
            "a table for each client's name"
        )
    clients = {
        str(client): tables[client] for client in sorted(tables, key=str) if client != SERVER
    }
    return tables_from_values(clients, tables.get(SERVER))


def from_texts(
    data: Any,
    name: str,
    training: TrainingConfig | None = None,
    *,
    adapter: str = "",
    blocks: str = "",
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_texts`.

    Args:
        data: Texts and labels of each client.
        name: Name of the task.
        training: Default settings of local training.
        adapter: Low-rank adapters in place of all weights.
        blocks: Blocks of the model.

    Returns:
        The task as a value, which runs build.
    """

    def build(
        config: text.TextConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        task = text.task_from_texts(name, texts_from_python(data, config), config, training, seed)
        return task.with_network("", adapter, blocks, seed) if adapter or blocks else task

    defaults = training or text.SPEC.training
    return TaskSpec(
        name, "texts given in Python", text.TextConfig, defaults, (), build, in_python=True
    )


@dataclass(frozen=True)
class _Start:
    """Where a run's first model comes from.

    Attributes:
        make: Builds the module from the shape of a sample and the number of classes.
        fresh: Whether the run's seed draws the parameters of its layers.
    """

    make: Callable[[tuple[int, ...], int], nn.Module]
    fresh: bool

    def module(self, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # for the random numbers of the function that builds it
            return self.make(shape, classes)


def _start(model: Model, fresh: bool) -> _Start:
    if isinstance(model, nn.Module):
        return _Start(lambda shape, classes: model, fresh)
    if isinstance(model, str):
        return _Start(MODELS[model], True)
    return _Start(model, fresh)


def _client_arrays(part: Any, location: str) -> ClientArrays:
    """Read the samples of a client: one set, or ``(train, test)`` or ``(train, val, test)``."""
    if not _has_splits(part):
        x, y = _pair(part, location)
        return ClientArrays(x, y, None)
    names = ("train", "test") if len(part) == 2 else ("train", "val", "test")
    read = [_pair(some, f"{location}, {name}") for some, name in zip(part, names, strict=True)]
    split = np.repeat([SPLITS.index(name) for name in names], [len(y) for _, y in read])
    x = np.concatenate([x for x, _ in read])
    return ClientArrays(x, np.concatenate([y for _, y in read]), split)


def _has_splits(part: Any) -> bool:
    """Return whether a client's data are several sets, not one pair of samples and labels."""
    if not isinstance(part, tuple | list) or len(part) not in (2, 3):
        return False
    return len(part) == 3 or all(_is_dataset(some) for some in part)


def _is_dataset(value: Any) -> bool:
    """Return whether a value is a set of samples with labels: a pair of arrays, or a data set."""
    if isinstance(value, tuple | list):
        return len(value) == 2 and all(hasattr(item, "shape") for item in value)
    return not hasattr(value, "shape") and hasattr(value, "__getitem__")


def _pair(part: Any, location: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return samples and labels of a pair, of a torch data set, or of one of Hugging Face."""
    if hasattr(part, "column_names") and hasattr(part, "with_format"):
        part = _huggingface_pair(part, location)
    elif not (isinstance(part, tuple | list) and len(part) == 2):
        try:
            pairs = [part[i] for i in range(len(part))]
            part = [
                np.stack([to_numpy(pair[i]) for pair in pairs]) if pairs else np.zeros(0)
                for i in (0, 1)
            ]
        except (TypeError, KeyError, IndexError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{location} is neither a pair (x, y) nor a data set of such pairs with a length: "
                f"{error}"
            ) from error
    x = to_numpy(part[0])
    y = to_numpy(part[1])
    if not x.ndim or x.dtype.kind not in "fiub":
        raise UsageError(f"{location} has samples of type {x.dtype}: they must be numbers")
    if y.ndim == 1 and (len(x) != len(y) or not len(y)):
        raise UsageError(
            f"{location} has {len(x)} samples and {len(y)} labels: it needs one label a sample, "
            "and some"
        )
    if y.ndim != 1 or y.dtype.kind not in "fiub":
        raise UsageError(
            f"{location} has labels of type {y.dtype} and shape {y.shape}: they must be classes "
            "0, 1, ..., or numbers (floats)"
        )
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise UsageError(f"{location} has labels that are not finite: leave these samples out")
        return x, y.astype(np.float32)
    if (y.astype(np.int64) < 0).any():
        raise UsageError(f"{location} has negative classes: number classes 0, 1, ...")
    return x, y.astype(np.int64)


def _huggingface_pair(data: Any, location: str) -> tuple[Any, Any]:
    """Return samples and labels of a data set of the library ``datasets``."""
    columns = list(data.column_names)
    labels = [name for name in columns if name in LABEL_COLUMNS]
    if len(columns) != 2 or len(labels) != 1:
        raise UsageError(
            f"{location} has the columns {columns}: keep one of samples and one of labels, which "
            f"is called {', '.join(LABEL_COLUMNS)} (select_columns, rename_column)"
        )
    samples = next(name for name in columns if name != labels[0])
    arrays = data.with_format("numpy")
    return arrays[:][samples], arrays[:][labels[0]]


def to_numpy(value: Any) -> NDArray[Any]:
    """Convert samples or labels to an array; tensors may be on any device."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    return np.asarray(value)
