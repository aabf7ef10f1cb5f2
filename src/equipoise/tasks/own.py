"""Bring your own: tables of clients, as files here, or given in Python (:mod:`equipoise.tasks.given`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Task, Training, option
from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.data import tables
from equipoise.data.forms import Form
from equipoise.data.own import OwnRows, OwnShares
from equipoise.models import MODELS
from equipoise.tasks import TaskSpec
from equipoise.tasks.classify import Classify


@dataclass(frozen=True)
class OwnConfig(OwnShares):
    """Where the tables are and what their columns mean."""

    data: str = option("", "folder with one CSV or Parquet file a client, or one file with a client column")
    label_column: str = option("label", "column to be predicted")
    client_column: str = option("client", "column that names the client, where all are in one file")
    ignore_columns: str = option("", "columns to leave out, with commas between")


class Tabular(Classify):
    """Rows of tables, every feature standardised by all clients' training rows."""

    def __init__(
        self,
        name: str,
        rows: OwnRows,
        columns: tables.Columns,
        config: OwnShares,
        model: str,
        training: Training,
        seed: int,
    ) -> None:
        data = rows.federate(config, Form(), generator(seed), standardise=True)
        super().__init__(name, MODELS[model](data.shape, data.classes), data, training)
        self.client_names, self.class_names = tuple(rows.names), tuple(rows.class_names)
        self._columns, self._standards = columns, rows.standards(config, generator(seed))

    def stored(self, rows: Any) -> Tensor:
        mean, scale = self._standards
        return torch.from_numpy((tables.features(rows, self._columns) - mean) / scale)


def build(config: OwnConfig, model: str, training: Training, seed: int) -> Task:
    if not config.data:
        raise UsageError("task 'own' needs --data: a folder with one CSV or Parquet file a client, or one file")
    ignore = tuple(name.strip() for name in config.ignore_columns.split(",") if name.strip())
    path = Path(config.data).expanduser()
    rows, _, columns = tables.read(path, config.label_column, config.client_column, ignore)
    return Tabular("own", rows, columns, config, model, training, seed)


SPEC = TaskSpec(
    name="own",
    help="your own tables: a folder of CSV or Parquet files, one a client, or one file with a client column",
    config=OwnConfig,
    training=Training(epochs=1, lr=0.05, batch_size=32),
    models=("mlp", "linear"),
    build=build,
)


def generator(seed: int) -> np.random.Generator:
    """What deals out the rows of a task of somebody's own."""
    return streams.generator(seed, streams.OWN_ROWS)
