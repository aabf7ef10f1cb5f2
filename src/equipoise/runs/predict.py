"""Predictions for new rows, from a run's folder alone."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.core import files
from equipoise.core.errors import UsageError
from equipoise.data.tables.choices import listed
from equipoise.data.tables.preparation import Preparation
from equipoise.data.tables.reading import read_file
from equipoise.data.tables.table import Table, table_of
from equipoise.learners.targets import objective_of
from equipoise.records.folder import Folder
from equipoise.runs.card import Card, read_card
from equipoise.runs.export import read_model
from equipoise.settings.files import read_config


@dataclass(frozen=True)
class Predictor:
    """One model of a run on tables, with all that it takes to use it."""

    module: nn.Module
    card: Card
    preparation: Preparation
    client: str | None
    known: frozenset[str]
    """Columns that the training tables had, whether or not the model sees them."""

    @staticmethod
    def of(path: Path, client: str | None = None) -> Predictor:
        """The personal model of this client, or the global one."""
        folder = Folder(path)
        folder.demand()
        card = read_card(folder)
        module = card.network() if card else None
        if card is None or module is None or not folder.preparation.is_file():
            raise UsageError(f"'{path}' is no finished run on tables with a model that ships: predict from Python")
        module.load_state_dict(read_model(folder, card.number(client)), strict=False)
        preparation, config = Preparation.read(folder.preparation), read_config(folder.config)
        columns = (*preparation.columns, *preparation.left_out)
        said = (config.get("client_column", ""), *listed(config.get("ignore_columns", "")))
        known = frozenset({*(column.name for column in columns), *preparation.rule.columns, *said})
        return Predictor(module, card, preparation, client, known)

    def outputs(self, rows: Any) -> Tensor:
        """The network's outputs for raw rows: columns that are missing or unknown are refused."""
        table = table_of(rows)
        unknown = [name for name in table.columns if name not in self.known]
        if unknown:
            raise UsageError(
                f"the rows have columns that the model never saw: {', '.join(map(repr, unknown))}: remove them"
            )
        with torch.no_grad():
            outputs: Tensor = self.module(torch.from_numpy(self.preparation.prepare(table, self.client)))
        return outputs

    def predict(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Columns of predictions: the class and all probabilities, a value, or a risk."""
        return objective_of(self.card.target).columns(self.outputs(rows))


def predict_file(path: Path, rows: Path, client: str | None, out: Path, overwrite: bool) -> int:
    """Write the predictions for a file's rows, in their order; gives how many there are."""
    if out.exists() and not overwrite:
        raise UsageError(f"'{out}' exists already: choose another --out, or give --overwrite")
    predictor = Predictor.of(path, client)
    if not rows.is_file():
        raise UsageError(f"there is no file '{rows}'")
    table: Table = read_file(rows)
    found = predictor.predict(table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *found])
    for row, *values in zip(range(1, len(table) + 1), *found.values(), strict=True):
        writer.writerow([row, *(f"{value:.6g}" if isinstance(value, float) else value for value in values)])
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text.getvalue())
    return len(table)
