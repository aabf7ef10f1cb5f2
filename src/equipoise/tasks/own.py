"""Bring your own: tables of clients on the command line, arrays, data sets and any model from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from equipoise.contract import Task, Training, option
from equipoise.core import streams
from equipoise.core.errors import UsageError, nearest
from equipoise.data import tables
from equipoise.data.forms import Form
from equipoise.data.own import OwnRows, OwnShares, form_of
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec, add
from equipoise.tasks.classify import Classify

Model = nn.Module | Callable[[tuple[int, ...], int], nn.Module] | str


@dataclass(frozen=True)
class OwnConfig(OwnShares):
    """Where the tables are and what their columns mean."""

    data: str = option("", "folder with one CSV or Parquet file a client, or one file with a client column")
    label_column: str = option("label", "column to be predicted")
    client_column: str = option("client", "column that names the client, where all are in one file")
    ignore_columns: str = option("", "columns to leave out, with commas between")


def build(config: OwnConfig, model: str, training: Training, seed: int) -> Task:
    if not config.data:
        raise UsageError("task 'own' needs --data: a folder with one CSV or Parquet file a client, or one file")
    ignore = tuple(name.strip() for name in config.ignore_columns.split(",") if name.strip())
    rows, _, _ = tables.read(Path(config.data).expanduser(), config.label_column, config.client_column, ignore)
    data = rows.federate(config, Form(), _generator(seed), standardise=True)
    return Classify("own", MODELS[model](data.shape, data.classes), data, training)


SPEC = TaskSpec(
    name="own",
    help="your own tables: a folder of CSV or Parquet files, one a client, or one file with a client column",
    config=OwnConfig,
    training=Training(epochs=1, lr=0.05, batch_size=32),
    models=("mlp", "linear"),
    build=build,
)


def add_task(
    name: str,
    clients: Iterable[Any],
    model: Model,
    *,
    server: Any = None,
    classes: int | None = None,
    form: Form | None = None,
    training: Training | None = None,
) -> None:
    """Make your own data and model a task, so that ``equipoise.run(out, task=name, ...)`` takes it.

    ``clients``: one entry a client, either ``(x, y)`` arrays or tensors, or a torch data set of such pairs; ``server``
    likewise (without it, a share of every client's rows is used). ``model``: a module, a function ``(shape, classes) ->
    module``, or the name of one that ships. Images may be bytes ``[H, W, C]``; whole numbers are taken for tokens.
    """
    parts = [_arrays(client, f"client {k}") for k, client in enumerate(clients)]
    if not parts:
        raise UsageError(f"task '{name}' has no clients: give at least one")
    if isinstance(model, str) and model not in MODELS:
        raise UsageError(f"unknown model '{model}'{nearest(model, MODELS)}: choose {', '.join(MODELS)}")
    shapes = {part[0].shape[1:] for part in parts}
    if len(shapes) > 1:
        raise UsageError(f"clients of task '{name}' have samples of different shapes: {sorted(shapes)}")
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    owner = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])
    served = None if server is None else _arrays(server, "the server")
    if served is not None and served[0].shape[1:] != x.shape[1:]:
        raise UsageError(f"the server has samples of shape {served[0].shape[1:]}, clients of {x.shape[1:]}")
    found = int(max(y.max(), -1 if served is None else served[1].max())) + 1
    rows = OwnRows(x, y, owner, served, classes or found)

    def build(config: OwnShares, chosen: str, training: Training, seed: int) -> Task:
        data = rows.federate(config, form or form_of(x), _generator(seed))
        return Classify(name, _module(model, data.shape, data.classes), data, training)

    add(TaskSpec(name, "a task of your own", OwnShares, training or SPEC.training, (), build))


def _module(model: Model, shape: tuple[int, ...], classes: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    return (MODELS[model] if isinstance(model, str) else model)(shape, classes)


def _arrays(part: Any, where: str) -> tuple[Any, Any]:
    """Arrays of a pair, or of a torch data set that is read to its end."""
    if not (isinstance(part, tuple | list) and len(part) == 2):
        try:
            pairs = [part[i] for i in range(len(part))]
            part = [np.stack([_array(pair[i]) for pair in pairs]) if pairs else np.zeros(0) for i in (0, 1)]
        except (TypeError, KeyError, IndexError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{where} is neither a pair (x, y) nor a data set of such pairs with a length: {error}"
            ) from error
    x, y = (_array(value) for value in part)
    if not x.ndim or x.dtype.kind not in "fiub":
        raise UsageError(f"{where} has samples of type {x.dtype}: they must be numbers")
    if y.ndim == 1 and (len(x) != len(y) or not len(y)):
        raise UsageError(f"{where} has {len(x)} samples and {len(y)} labels: it needs one label a sample, and some")
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UsageError(
            f"{where} has labels of type {y.dtype} and shape {y.shape}: they must be whole numbers 0, 1, …"
        )
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    return x, y.astype(np.int64)


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    return np.asarray(value)


def _generator(seed: int) -> np.random.Generator:
    return streams.generator(seed, streams.OWN_ROWS)
