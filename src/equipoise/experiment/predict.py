"""Predict new rows from the folder of a run: models, card and preprocessing; no training data."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.core import SupervisedTask
from equipoise.data.tabular.config import parse_names
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.data.text import TextReader
from equipoise.data.time_series import WindowTransform, read_steps, steps_from_arrays
from equipoise.experiment.build import build_task
from equipoise.experiment.model_card import Card, read_card
from equipoise.experiment.model_files import read_model
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError

ROWS_PER_BATCH = 2**12  # bounds the memory


@dataclass(frozen=True)
class Predictor:
    """One model of a run with its preprocessing."""

    module: nn.Module
    card: Card
    preprocessor: Preprocessor | WindowTransform | None
    """Preprocessing of tables or recordings; None for other data."""
    client: int | None
    known: frozenset[str]
    """Columns of the training tables, whether or not the model uses them."""
    texts: TextReader | None = None
    """Tokenizer, if rows are texts."""

    @staticmethod
    def without_weights(folder: RunFolder, settings: ExperimentConfig | None = None) -> Predictor:
        """Build the network of a run and read its preprocessing, but load no model.

        Args:
            folder: Folder of the run.
            settings: Options of a run whose task or method was made in Python.

        Returns:
            The predictor, whose network has no trained weights.
        """
        module, card = network_of(folder, settings)
        preprocessor = None
        if folder.preparation.exists():
            text = folder.preparation.read_text()
            preprocessor = parse_preprocessor(text, f"'{folder.preparation}'")
        known: frozenset[str] = frozenset()
        config = folder.read_config()
        texts = (
            TextReader(config["text"], config["pretrained"], *card.shape)
            if config.get("pretrained")
            else None
        )
        if isinstance(preprocessor, Preprocessor):
            ignored = config.get("ignore_columns", "")
            names = {column.name for column in (*preprocessor.encoders, *preprocessor.dropped)}
            named_columns = (
                *(config.get(name, "") for name in ("client_column", "split_column")),
                *parse_names(ignored),
            )
            known = frozenset({*names, *preprocessor.target_spec.columns, *named_columns})
        return Predictor(module, card, preprocessor, None, known, texts)

    @staticmethod
    def of(
        folder: RunFolder, client: int | None = None, settings: ExperimentConfig | None = None
    ) -> Predictor:
        """Load a model of a run.

        Args:
            folder: Folder of the run.
            client: Client of a personal model; None for the global model.
            settings: Options of a run whose task or method was made in Python.

        Returns:
            The predictor.
        """
        folder.demand()
        params = read_model(folder, client)
        predictor = Predictor.without_weights(folder, settings)
        predictor.module.load_state_dict(params, strict=False)
        return replace(predictor, client=client)

    def inputs(self, rows: object) -> Tensor:
        """Convert raw rows to inputs of the network.

        Args:
            rows: Rows as the task has them: a table, samples, recordings or texts.

        Returns:
            Inputs ``[rows, *shape]``.

        Raises:
            UsageError: If shape or columns do not fit the model.
        """
        if self.texts is not None:
            return torch.from_numpy(self.texts.rows(rows)).long()
        preprocessor = self.preprocessor
        if preprocessor is None:
            form = self.card.form
            x = torch.as_tensor(np.asarray(rows))
            if x.dim() < 1 or form.output_shape(tuple(x.shape[1:])) != self.card.shape:
                raise UsageError(
                    f"the rows have shape {tuple(x.shape[1:])}, the model takes {self.card.shape}"
                )
            return form.prepare(x, torch.float32).contiguous()
        if isinstance(preprocessor, WindowTransform):
            return torch.from_numpy(preprocessor.prepare(_windows(preprocessor, rows)))
        table = table_from_values(rows, "the table of rows")
        lacking = preprocessor.missing_columns(table)
        unknown = [name for name in table.columns if name not in self.known]
        if lacking or unknown:
            lacks = (
                f"lack columns that the model needs: {', '.join(map(repr, lacking))}"
                if lacking
                else ""
            )
            more = (
                f"have columns that training did not have: {', '.join(map(repr, unknown))}"
                if unknown
                else ""
            )
            raise UsageError(
                f"the rows {' and '.join(filter(None, (lacks, more)))}: "
                f"{column_advice(bool(lacking), bool(unknown))}"
            )
        return torch.from_numpy(preprocessor.transform(table, self._site))

    @property
    def _site(self) -> str | None:
        """Name of the site whose scales are used; None for those of the federation."""
        if self.client is not None and self.card.clients:
            return self.card.clients[self.client]
        return self.card.owner or None

    def outputs(self, rows: object) -> Tensor:
        """Return the outputs ``[rows, outputs]`` of the network."""
        with torch.no_grad():
            return torch.cat(
                [self.module(part) for part in self.inputs(rows).split(ROWS_PER_BATCH)]
            )

    def columns(self, rows: object) -> dict[str, NDArray[Any]]:
        """Return predictions as columns: class and probabilities, a value, or a risk."""
        return objective_of(self.card.target).prediction_columns(self.outputs(rows))


def network_of(
    folder: RunFolder, settings: ExperimentConfig | None = None
) -> tuple[nn.Module, Card]:
    """Build the network of a run without its weights.

    Args:
        folder: Folder of the run.
        settings: Options of a run whose task or method was made in Python.

    Returns:
        The network and the card. The task is built only if the model is one of the user.

    Raises:
        UsageError: If the task learns no network.
    """
    card = read_card(folder)
    module = card.network() if card else None
    if card is not None and module is not None:
        return module, card
    settings = settings or settings_in(folder.read_config())
    task = build_task(replace(settings, run=replace(settings.run, device="cpu")))
    card = Card.of(task, settings.run)
    if card is None or not isinstance(task, SupervisedTask):
        raise UsageError(
            f"task '{task.info.name}' learns no network: read its table from '{folder.models}'"
        )
    return copy.deepcopy(task.module).eval(), card


def predict_recordings(predictor: Predictor, rows: Path) -> dict[str, NDArray[Any]]:
    """Predict the windows of an archive of recordings.

    Args:
        predictor: A model on recordings.
        rows: The archive.

    Returns:
        One row per window, with its recording and first step, both from 0 on.
    """
    transform = predictor.preprocessor
    assert isinstance(transform, WindowTransform)
    windows, recording, start = transform.cut_windows(read_steps(rows))
    return {"recording": recording, "start": start, **predictor.columns(windows)}


def _windows(transform: WindowTransform, rows: object) -> NDArray[np.float32]:
    """Return raw windows as given, or cut ``{"x": steps, "length": steps per recording}``."""
    if not isinstance(rows, Mapping):
        return np.asarray(rows, np.float32)
    if not {"x", "length"} <= rows.keys():
        raise UsageError(
            "recordings are given as x, the steps one after the other, "
            "and length, the steps of each"
        )
    return transform.cut_windows(steps_from_arrays(rows, "the recordings"))[0]


def parse_preprocessor(text: str, source: str) -> Preprocessor | WindowTransform:
    """Read how raw rows of tables, or recordings, become inputs.

    Args:
        text: Content of ``preparation.json``.
        source: Name of the file in errors.

    Returns:
        The preprocessor.

    Raises:
        UsageError: If the text is damaged.
    """
    try:
        kind = json.loads(text)["type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{source} cannot be read: {error}") from error
    record_type: type[Preprocessor | WindowTransform] = (
        WindowTransform if kind == WindowTransform.__name__ else Preprocessor
    )
    return record_type.from_json(text, source)


def column_advice(lacks_columns: bool, has_unknown: bool) -> str:
    """Say what to do about columns that rows lack, or that training did not have."""
    if not has_unknown:
        return "add them, or give these columns the names of training"
    return "add, rename or remove them" if lacks_columns else "rename or remove them"
