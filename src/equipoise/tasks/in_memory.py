"""Tasks made in Python: tables, arrays, tensors or torch data sets in memory, with any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from equipoise.core import ExperimentTask, TrainingConfig
from equipoise.data.splits import UserRows, UserRowShares, infer_form
from equipoise.data.tabular.io import SERVER, align_tables, tables_from_values
from equipoise.data.text import texts_from_python
from equipoise.data.transforms import InputTransform
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec, text
from equipoise.tasks import tables as own
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError, nearest

Model = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | str
"""A module, a function ``(shape of a sample, classes) -> module``, or the name of a model."""

DATASET_TRAINING = TrainingConfig(epochs=1, lr=0.05, batch_size=32)
"""Defaults for the user's own networks, which are not regularised unless asked."""


def from_datasets(
    clients: Mapping[str, Any] | Iterable[Any],
    model: Model,
    name: str,
    *,
    server: Any = None,
    classes: int | None = None,
    form: InputTransform | None = None,
    training: TrainingConfig | None = None,
    fresh: bool = False,
    adapter: str = "",
    blocks: str = "",
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_datasets`."""
    names = [str(client) for client in clients] if isinstance(clients, Mapping) else []
    held = clients.values() if isinstance(clients, Mapping) else clients
    parts = [
        _arrays(part, f"client {f'{names[k]!r}' if names else k}") for k, part in enumerate(held)
    ]
    if not parts:
        raise UsageError(f"task '{name}' has no clients: give at least one")
    if isinstance(model, str) and model not in MODELS:
        raise UsageError(
            f"unknown model '{model}'{nearest(model, MODELS)}: choose {', '.join(MODELS)}"
        )
    shapes = {part[0].shape[1:] for part in parts}
    if len(shapes) > 1:
        raise UsageError(
            f"clients of task '{name}' have samples of different shapes: {sorted(shapes)}"
        )
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    owner = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])
    served = None if server is None else _arrays(server, "the server")
    if served is not None and served[0].shape[1:] != x.shape[1:]:
        raise UsageError(
            f"the server has samples of shape {served[0].shape[1:]}, clients of {x.shape[1:]}"
        )
    found = int(max(y.max(), -1 if served is None else served[1].max())) + 1
    rows = UserRows(x, y, owner, served, classes or found, names)
    start = _start(model, fresh)

    def build(
        config: UserRowShares, chosen: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        data = rows.federate(config, form or infer_form(x), own.split_generator(seed))
        module = start.module(data.shape, data.classes, seed)
        task = ExamplesTask(name, module, data, training, fresh=start.fresh)
        return task.with_network("", adapter, blocks, seed) if adapter or blocks else task

    defaults = training or DATASET_TRAINING
    return TaskSpec(
        name, "a task made in Python", UserRowShares, defaults, (), build, in_python=True
    )


def from_tables(tables: Mapping[str, Any], name: str, choices: own.TableLearningConfig) -> TaskSpec:
    """See :meth:`equipoise.Task.from_tables`."""
    clients = {
        str(client): tables[client] for client in sorted(tables, key=str) if client != SERVER
    }
    found = align_tables(tables_from_values(clients, tables.get(SERVER)), choices)

    def build(
        config: own.TableLearningConfig, model: str, training: TrainingConfig, seed: int
    ) -> ExperimentTask:
        return own.task_from_tables(name, found, config, model, training, seed)

    spec = own.SPEC
    return TaskSpec(
        name,
        "tables given in Python",
        own.TableLearningConfig,
        spec.training,
        spec.models,
        build,
        patience=spec.patience,
        in_python=True,
    )


def from_texts(
    data: Any,
    name: str,
    training: TrainingConfig | None = None,
    *,
    adapter: str = "",
    blocks: str = "",
) -> TaskSpec:
    """See :meth:`equipoise.Task.from_texts`."""

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


def _arrays(part: Any, where: str) -> tuple[Any, Any]:
    """Convert a pair, or a torch data set that is read to its end, to arrays."""
    if not (isinstance(part, tuple | list) and len(part) == 2):
        try:
            pairs = [part[i] for i in range(len(part))]
            part = [
                np.stack([to_numpy(pair[i]) for pair in pairs]) if pairs else np.zeros(0)
                for i in (0, 1)
            ]
        except (TypeError, KeyError, IndexError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{where} is neither a pair (x, y) nor a data set of such pairs with a length: "
                f"{error}"
            ) from error
    x, y = (to_numpy(value) for value in part)
    if not x.ndim or x.dtype.kind not in "fiub":
        raise UsageError(f"{where} has samples of type {x.dtype}: they must be numbers")
    if y.ndim == 1 and (len(x) != len(y) or not len(y)):
        raise UsageError(
            f"{where} has {len(x)} samples and {len(y)} labels: it needs samples, each with a label"
        )
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UsageError(
            f"{where} has labels of type {y.dtype} and shape {y.shape}: they must be whole numbers "
            "0, 1, …"
        )
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    return x, y.astype(np.int64)


def to_numpy(value: Any) -> NDArray[Any]:
    """Convert samples or labels to an array; tensors may be on any device."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    return np.asarray(value)
