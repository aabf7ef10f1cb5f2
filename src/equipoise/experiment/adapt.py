"""Give a newcomer a personal model: from the models of a run and rows of its own to a folder.

The folder is one of a single site, as that of a Flower node: the personal model is in the place of
the global model, and the card names its owner. Beside it are the federation's global model and the
baselines, so that ``evaluate`` can compare them on further rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from equipoise.core import Params, Preparation
from equipoise.data.federated_dataset import Federation
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.preprocessing import Preprocessor, fit_client_scale
from equipoise.data.tabular.table import Table
from equipoise.experiment.adaptation import (
    Folds,
    Rule,
    alone_path,
    cross_fit,
    cross_fit_constant,
)
from equipoise.experiment.build import build_task
from equipoise.experiment.hazard import BaselineHazard, fit_hazard, read_hazard
from equipoise.experiment.model_card import Card
from equipoise.experiment.predict import Predictor, column_advice
from equipoise.experiment.row_outputs import CONSTANT, GLOBAL, LOCAL, PERSONAL, RowOutputs
from equipoise.experiment.site_folder import baseline_tensors, judge_site, verdict_files
from equipoise.experiment.site_models import CHOICE_FILE, find_models, read_choice
from equipoise.methods.local import Local
from equipoise.models import TREES
from equipoise.records.decision import Decision
from equipoise.records.manifest import Content
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in
from equipoise.tasks.supervised import ExamplesTask
from equipoise.tasks.tables import TableLearningConfig
from equipoise.training.objectives import Objective
from equipoise.trees.config import TreeOptions
from equipoise.utils import io, serialization
from equipoise.utils.config_file import config_text
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.record import to_json

DEFAULT_NAME = "newcomer"
MIN_ROWS = 10
"""Rows with a target below which nothing is adapted: five folds would have one row or two."""
FEW_ROWS = 50
"""Rows below which the user is told that they are few."""


@dataclass(frozen=True)
class Federated:
    """What a newcomer gets from a federation.

    Attributes:
        settings: Options of the run.
        card: Card of its models.
        preprocessor: How raw rows of tables become inputs; None for other data.
        params: Model of the server: shared blocks as trained, other blocks as initialised.
        has_global: Whether that is a whole model, which can be used as it is.
        frozen: Parameters that are never trained.
        known: Columns of the training tables.
        hazard: Baseline hazard of survival; None without one.
        source: Where it comes from, in words.
    """

    settings: ExperimentConfig
    card: Card
    preprocessor: Preprocessor | None
    params: Params
    has_global: bool
    frozen: Params
    known: frozenset[str]
    hazard: BaselineHazard | None
    source: str

    @property
    def client_column(self) -> str:
        """Column that named the clients of training; empty without one."""
        return str(getattr(self.settings.task_config, "client_column", ""))

    @staticmethod
    def read(path: Path, settings: ExperimentConfig | None = None) -> Federated:
        """Read a run, a choice (its first member), or the folder of a node.

        Args:
            path: The folder.
            settings: Options of a run whose method or task was made in Python.

        Returns:
            The models, and how raw rows become inputs.

        Raises:
            UsageError: If the folder has no model that a newcomer could start from.
        """
        path = find_models(path)
        if (path / CHOICE_FILE).is_file():
            path = path / read_choice(path).members[0]
        folder = RunFolder(path)
        settings = settings or settings_in(folder.read_config())
        if isinstance(settings.method, Local):
            raise UsageError(
                f"'{path}' is a run of local: its clients share nothing that a newcomer could "
                "start from; choose a run of another method"
            )
        predictor = Predictor.without_weights(folder, settings)
        preprocessor = predictor.preprocessor
        if preprocessor is not None and not isinstance(preprocessor, Preprocessor):
            raise UsageError(f"'{path}' is a run on recordings: only rows of tables are adapted to")
        models = {
            name: folder.model(name)
            for name in ("federation", "global", "shared")
            if folder.model(name).exists()
        }
        if not models:
            raise UsageError(f"'{path}' has no models: the run is not finished")
        name, file = next(iter(models.items()))
        frozen = folder.model("frozen")
        return Federated(
            settings,
            predictor.card,
            preprocessor,
            file.read_tensors(),
            name != "shared",
            frozen.read_tensors() if frozen.exists() else {},
            predictor.known,
            read_hazard(folder),
            str(path),
        )


@dataclass(frozen=True)
class Adapted:
    """The personal model of a newcomer, and what it is worth.

    Attributes:
        name: Name of the newcomer.
        decision: Verdict on held-out rows, against the global model and training alone.
        card: Card of the models; its owner is the newcomer.
        preprocessor: Preprocessing of the newcomer's rows; None for other data than tables.
        models: Parameters by name of their file.
        options: Options of the run.
        held_out: What all models say about held-out rows.
        hazard: Baseline hazard of survival, with the level of this site; None for other targets.
    """

    name: str
    decision: Decision
    card: Card
    preprocessor: Preprocessor | None
    models: Mapping[str, Params]
    options: Mapping[str, object]
    held_out: RowOutputs
    hazard: BaselineHazard | None = None

    def __str__(self) -> str:
        """Return the verdict and its notes."""
        return "\n".join([self.decision.headline, *self.decision.notes])

    def write(self, out: Path) -> None:
        """Write the folder; it must be new or empty."""
        folder = RunFolder(out)
        io.make_folder(folder.models)
        files: dict[str, Content] = {
            folder.model(name).name: partial(serialization.fill_tensors, tensors=params, texts={})
            for name, params in self.models.items()
            if params
        }
        files[folder.outputs("test").name] = self.held_out.fill
        files[folder.card.name] = self.card.write()
        if self.preprocessor is not None:
            files[folder.preparation.name] = self.preprocessor.to_json()
        if self.hazard is not None:
            files[folder.hazard.name] = to_json(self.hazard)
        files |= verdict_files(folder, self.decision, self.held_out, self.card.target)
        files[folder.config.name] = config_text(self.options)
        folder.write(files)


def adapt_folder(
    path: Path,
    rows: object,
    out: Path,
    name: str = DEFAULT_NAME,
    *,
    overwrite: bool = False,
    settings: ExperimentConfig | None = None,
) -> Adapted:
    """Give a newcomer a personal model and write its folder.

    Args:
        path: RunFolder of a run, a choice, a comparison with a choice, or a node.
        rows: The newcomer's rows with their target: a table, or a pair ``(x, y)`` of arrays for
            tasks on arrays.
        out: RunFolder to write.
        name: Name of the newcomer.
        overwrite: Whether an earlier result in ``out`` is replaced.
        settings: Options of a run whose method or task was made in Python.

    Returns:
        The model and its verdict.

    Raises:
        UsageError: If the rows do not fit, or ``out`` is in use.
    """
    refuse_used_folder(out, overwrite)
    adapted = adapt_rows(Federated.read(path, settings), rows, name)
    if out.exists():
        shutil.rmtree(out)
    adapted.write(out)
    return adapted


def default_folder(path: Path, name: str) -> Path:
    """Return the folder of a newcomer beside that of its models: ``runs/first-va``."""
    return path.parent / f"{path.resolve().name}-{name}"


def refuse_used_folder(out: Path, overwrite: bool) -> None:
    """Raise ``UsageError`` if a folder holds something that must not be replaced.

    Args:
        out: The folder of results.
        overwrite: Whether results of an earlier call may be replaced.

    Raises:
        UsageError: If the folder holds something that must not be replaced.
    """
    folder = RunFolder(out)
    if not folder.has_begun():
        return
    if not overwrite:
        raise UsageError(f"'{out}' exists already: choose another --out, or give --overwrite")
    if not folder.card.exists() or folder.rounds.exists():
        raise UsageError(f"'{out}' is no result of 'equipoise adapt': choose another --out")


def adapt_rows(source: Federated, rows: object, name: str = DEFAULT_NAME) -> Adapted:
    """Give a newcomer a personal model by the rule of the method.

    Args:
        source: What the federation has learned.
        rows: The newcomer's rows with their target.
        name: Name of the newcomer.

    Returns:
        The model, and its verdict on rows that each model never had: nested cross-validation.

    Raises:
        UsageError: If the rows do not fit, have no target or are too few.
    """
    if name in source.card.clients:
        raise UsageError(
            f"'{name}' took part in training and has a model: see 'equipoise predict --client "
            f"{name}', or give another --name"
        )
    preprocessor, x, y, notes = _prepare_rows(source, rows, name)
    seed = source.settings.run.seed
    target = source.card.target
    folds = Folds.draw(y, target, seed)
    task, initial = _newcomer_task(source, folds, x, y)
    params = {**initial, **source.params}
    training = source.settings.training.at(1, source.settings.run.rounds)
    rule = Rule.of(source.settings.method, task)
    received = params if source.has_global else None
    personal = cross_fit(task, folds, rule.path(task, params, training, seed), received)
    alone = cross_fit(task, folds, alone_path(task, training, seed, source.settings.run.rounds))
    constant, held_out_constant = cross_fit_constant(task, folds)
    outputs = {CONSTANT: held_out_constant, LOCAL: alone.outputs, PERSONAL: personal.outputs}
    if source.has_global:
        with torch.no_grad():
            outputs[GLOBAL] = task.logits(params, x).float()
    everything = np.arange(len(y))
    held_out = RowOutputs((name,), np.zeros(len(y), np.int64), everything, y, outputs)
    metric = str(source.settings.run.metric) or task.objective.default_metrics[0]
    notes.insert(0, f"The personal model is {rule.describe(personal.candidate, training)}.")
    decision = judge_site(held_out, target, source.card.method, metric, folds.count)
    decision = replace(decision, notes=[*notes, *decision.notes])
    return Adapted(
        name,
        decision,
        msgspec.structs.replace(source.card, owner=name, clients=(name,)),
        preprocessor,
        {
            "global": personal.params,
            "federation": params if source.has_global else {},
            "frozen": source.frozen,
            "baselines": baseline_tensors(0, constant, alone.params),
        },
        source.settings.to_dict,
        held_out,
        fit_hazard(held_out, [0], source.hazard) if target.kind == "survival" else None,
    )


# ------------------------------------------------------------------ rows


def _prepare_rows(
    source: Federated, rows: object, name: str
) -> tuple[Preprocessor | None, Tensor, Tensor, list[str]]:
    """Turn the newcomer's rows into inputs and targets.

    Args:
        source: What the federation has learned.
        rows: The newcomer's rows with their target.
        name: Name of the newcomer.

    Returns:
        The newcomer's preprocessor (None for arrays), inputs `[n, ...]`, targets `[n, ...]`, and
        notes for the user.
    """
    preprocessor = source.preprocessor
    notes: list[str] = []
    if preprocessor is None:
        x, y = _array_rows(source, rows)
    else:
        table = table_from_values(rows, "the table of rows", source.client_column)
        preprocessor = _own_preprocessor(source, preprocessor, table, name)
        x, y = _table_rows(preprocessor, table, notes)
    _check_row_count(len(y), notes)
    return preprocessor, x, y, notes


def _own_preprocessor(
    source: Federated, preprocessor: Preprocessor, table: Table, name: str
) -> Preprocessor:
    """Return the preprocessing of the newcomer, with its own scales if clients have theirs."""
    _refuse_columns(source, preprocessor, table)
    changed = msgspec.structs.replace(preprocessor, clients=(name,), served_by=())
    if not preprocessor.client_scales:
        return changed
    scale = fit_client_scale(name, preprocessor.encoders, table)
    return msgspec.structs.replace(changed, client_scales=(scale,))


def _refuse_columns(source: Federated, preprocessor: Preprocessor, table: Table) -> None:
    """Refuse tables that lack columns or belong to several sites."""
    targets = preprocessor.target_spec.columns
    lacking = [
        *preprocessor.missing_columns(table),
        *(name for name in targets if name not in table.columns),
    ]
    unknown = [name for name in table.columns if name not in source.known]
    problems = []
    if lacking:
        wanted = [f"{name!r}{did_you_mean(name, unknown)}" for name in lacking]
        problems.append(f"lack columns: {', '.join(wanted)}")
    if unknown:
        quoted = ", ".join(map(repr, unknown))
        problems.append(f"have columns that training did not have: {quoted}")
    if problems:
        hint = ""
        if any(name in targets for name in lacking):
            hint = "; without the target there is nothing to learn from"
        advice = column_advice(bool(lacking), bool(unknown))
        raise UsageError(f"the rows {' and '.join(problems)}: {advice}{hint}")
    column = source.client_column
    if column in table.columns:
        codes, names = table.columns[column].labels
        sites = [names[code] for code in np.unique(codes[codes >= 0])]
        if len(sites) > 1:
            raise UsageError(
                f"the rows belong to {len(sites)} sites (column '{column}': "
                f"{', '.join(sites[:5])}): give those of one newcomer"
            )
        if sites and sites[0] in source.card.clients:
            raise UsageError(
                f"the rows belong to '{sites[0]}' (column '{column}'), which took part in "
                "training and has a model: give rows of a newcomer"
            )


def _table_rows(
    preprocessor: Preprocessor, table: Table, notes: list[str]
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the rows whose target is known."""
    client = preprocessor.clients[0] if preprocessor.client_scales else None
    x, y = preprocessor.transform_labelled(table, "the rows", client)
    known = preprocessor.target_spec.is_known(table, preprocessor.target.kind)
    if not known.all():
        first = int(table.row_numbers[np.argmin(known)])
        notes.append(
            f"Rows without a target that can be read are left out: {int((~known).sum())}, the "
            f"first is row {first}."
        )
    return torch.from_numpy(x), torch.from_numpy(y)


def _array_rows(source: Federated, rows: object) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of arrays."""
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        raise UsageError("the rows of this task are arrays: give a pair (x, y)")
    x = torch.as_tensor(np.asarray(rows[0]))
    card = source.card
    is_classes = card.target.kind == "classification"
    y = torch.as_tensor(np.asarray(rows[1]), dtype=torch.int64 if is_classes else torch.float32)
    if x.dim() < 1 or card.form.output_shape(tuple(x.shape[1:])) != card.shape:
        raise UsageError(f"the rows have shape {tuple(x.shape[1:])}, the model takes {card.shape}")
    if len(x) != len(y):
        raise UsageError(f"there are {len(x)} rows and {len(y)} labels: give one for each")
    return x, y


def _check_row_count(num_rows: int, notes: list[str]) -> None:
    """Refuse too few rows; note few ones."""
    if num_rows < MIN_ROWS:
        raise UsageError(
            f"the newcomer has {num_rows} rows with a target: at least {MIN_ROWS} are needed to "
            "adapt a model; with fewer, predict with the global one"
        )
    if num_rows < FEW_ROWS:
        notes.append(
            f"{num_rows} rows are few: intervals are wide, and the choice may be by chance. With "
            f"{FEW_ROWS} or more, adapt again."
        )


# ------------------------------------------------------------------ task


def _newcomer_task(
    source: Federated, folds: Folds, x: Tensor, y: Tensor
) -> tuple[ExamplesTask, Params]:
    """Build the task whose clients are the training sets of the folds.

    Returns:
        The task, and its initial model.
    """
    settings = source.settings
    run = settings.run
    card = source.card
    data = folds.data(x, y, card.target, card.form)
    module = card.network()
    training = settings.training.at(1, run.rounds)
    config = settings.task_config
    if module is None:  # a model of the user: only its task can build it
        built = build_task(replace(settings, run=replace(run, device="cpu")))
        if not isinstance(built, ExamplesTask):
            raise UsageError(f"task '{built.info.name}' learns no model of rows")
        task = built.with_data(data)
        return task, task.init_params(run.seed)
    objective = config.objective(data) if isinstance(config, TableLearningConfig) else None
    preparation = Preparation(source.preprocessor)
    if card.model == TREES:
        from equipoise.tasks.trees import TreesTask

        assert isinstance(config, TreeOptions)
        categories = source.preprocessor.num_categories if source.preprocessor else ()
        trees = TreesTask(run.task, data, training, config, categories, objective, preparation)
        return trees, trees.init_params(run.seed)
    is_fresh = not (run.init_weights or run.adapter)
    task = _network_task(source, module, data, is_fresh, objective, preparation)
    return task, task.init_params(run.seed)


def _network_task(
    source: Federated,
    module: nn.Module,
    data: Federation,
    is_fresh: bool,
    objective: Objective | None,
    preparation: Preparation,
) -> ExamplesTask:
    """Build the task of a network from its card."""
    run = source.settings.run
    training = source.settings.training.at(1, run.rounds)
    module.load_state_dict(source.frozen, strict=False)
    task = ExamplesTask(
        run.task,
        module,
        data,
        training,
        fresh=is_fresh,
        objective=objective,
        preparation=preparation,
    )
    return task.with_network("", "", run.blocks, run.seed) if run.blocks else task
