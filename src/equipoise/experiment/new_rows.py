"""Predict and evaluate new rows with the models of a run, or with the models of a choice.

All models of a site (constant, local, global, personal) see the same rows, so that their scores
can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.tabular.table import Table
from equipoise.data.time_series import WindowTransform
from equipoise.experiment.decision import Entry, Evidence, judge
from equipoise.experiment.detailed_scores import (
    DEFAULT_MIN_COUNT,
    Grouping,
    calibration_curves,
    group_scores,
    hidden_groups,
)
from equipoise.experiment.hazard import horizon_scores
from equipoise.experiment.model_files import refuse_remote_model
from equipoise.experiment.predict import Predictor, predict_recordings
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    MODELS,
    PERSONAL,
    USED,
    RowOutputs,
    resample,
    site_scores,
)
from equipoise.experiment.site_models import SiteModels, find_site, horizon_column, load_models
from equipoise.experiment.site_rows import (
    LabelledRows,
    RowSelection,
    SiteRows,
    SiteTable,
    column_texts,
    encoded_targets,
    feature_columns,
    labelled_mask,
    read_rows,
    select_labelled,
)
from equipoise.records.client_table import csv_text
from equipoise.records.decision import Decision, Estimate
from equipoise.records.evaluation import CrossSite, EvaluationDetails
from equipoise.records.run_dir import RunFolder
from equipoise.training.objectives import objective_of
from equipoise.utils import io as files
from equipoise.utils.errors import UsageError

MAX_LISTED_NAMES = 20
MAX_CROSS_SITE_MODELS = 100


# ------------------------------------------------------------------ evaluation


@dataclass(frozen=True)
class Evaluation:
    """Scores of all kinds of models on new rows.

    Attributes:
        decision: Verdict and scores with intervals in the main metric.
        metrics: All metrics by kind of model, means over sites in which every row counts alike.
        num_unlabelled: Rows without a target, which were left out.
        details: Calibration, and what was asked for: every model at every site, groups of rows.
    """

    decision: Decision
    metrics: Mapping[str, Mapping[str, float]]
    num_unlabelled: int
    details: EvaluationDetails

    def __str__(self) -> str:
        """Return the decision and its notes."""
        return "\n".join([self.decision.headline, *self.decision.notes])


def evaluate_rows(
    models: SiteModels,
    selection: RowSelection,
    metric: str = "",
    *,
    cross_site: bool = False,
    by: Sequence[Grouping] = (),
    min_count: int = DEFAULT_MIN_COUNT,
    horizon: float | None = None,
) -> Evaluation:
    """Score all models on labelled rows that training never had.

    Args:
        models: The models.
        selection: Rows with the columns of training and the target.
        metric: Main metric; empty for that of the run.
        cross_site: Whether to score the model of every site on the rows of every site.
        by: Columns by whose groups the rows are scored.
        min_count: Fewest rows of a group, or of a site in ``cross_site``, that is shown.
        horizon: Of survival, also score the probabilities of the event by this time.

    Returns:
        The scores and the verdict.

    Raises:
        UsageError: If rows do not fit, have no target, or belong to no known site.
    """
    labelled = select_labelled(models, selection, tuple(grouping.column for grouping in by))
    table = labelled.table
    sites = labelled.sites
    target = models.target
    metric = objective_of(target).with_primary_metric(metric or models.metric)[0]
    for grouping in by:
        grouping.assign(table)
    outputs = _all_outputs(models, labelled)
    site_models = {site.name: models.model_of(site.client) for site in sites}
    if models.card.method == LOCAL:  # its personal models are each site's own
        outputs = outputs.rename({CONSTANT: CONSTANT, PERSONAL: LOCAL, USED: USED})
        site_models = dict.fromkeys(site_models, LOCAL)
    evidence = _evidence(models, outputs, metric, site_models)
    scores = resample(evidence.test, target, metric)
    decision = judge(evidence, scores, _used_entry(models, evidence))
    decision = replace(decision, notes=[*_newcomers_note(labelled), *decision.notes])
    kinds = [entry.key for entry in evidence.entries if entry.model != CONSTANT]
    details = EvaluationDetails(
        title=f"{len(table)} new rows, models of {models.path.name} ({models.card.method})",
        decision=decision,
        calibration=calibration_curves(evidence.test[0], target, kinds),
        groups=group_scores(evidence.test[0], target, metric, table, by, min_count),
        min_count=min_count,
    )
    if cross_site:
        matrix = _cross_site(labelled, outputs, metric, min_count)
        details = replace(details, cross_site=matrix)
    if horizon is not None:
        probabilities = _probabilities(models, outputs, sites, horizon)
        times = outputs.y.double().numpy()
        scored, curves = horizon_scores(times, probabilities, horizon)
        details = replace(details, horizon=scored, calibration=curves)
    means = _metrics_by_model(outputs, evidence, metric)
    return Evaluation(decision, means, labelled.num_unlabelled, details)


def _newcomers_note(labelled: LabelledRows) -> list[str]:
    """Name the sites among many that training did not have, if there are any."""
    sites = labelled.sites
    newcomers = [site.name for site in sites if site.client is None]
    if not labelled.client_column or not newcomers:
        return []
    return [
        f"{len(newcomers)} of {len(sites)} sites took no part in training and have the global "
        f"model alone: {', '.join(newcomers[:MAX_LISTED_NAMES])}."
    ]


def _metrics_by_model(
    outputs: RowOutputs, evidence: Evidence, main_metric: str
) -> dict[str, dict[str, float]]:
    """Return the means of all metrics over rows by metric, the main one first, and model."""
    objective = objective_of(evidence.target)
    others = [name for name in objective.metric_names if name != main_metric]
    return {
        name: {
            USED if entry.key == USED else entry.model: _weighted_mean(
                outputs, objective, entry.key, name
            )
            for entry in evidence.entries
        }
        for name in (main_metric, *others)
    }


def _probabilities(
    models: SiteModels, outputs: RowOutputs, sites: Sequence[SiteRows], horizon: float
) -> dict[str, NDArray[np.float64]]:
    """Return the probability of the event by a horizon for all rows, by kind of model.

    Risks of several members are averaged before, as for other scores.
    """
    first = models.members[0]
    probabilities: dict[str, NDArray[np.float64]] = {}
    for kind in outputs.outputs:
        if kind == USED:
            continue
        source = PERSONAL if models.card.method == LOCAL and kind == LOCAL else kind
        values = np.full(len(outputs.y), np.nan)
        for site in sites:
            if source in first.models_of(site.client):
                risks = outputs.outputs[kind][torch.from_numpy(site.rows)]
                values[site.rows] = first.probability(source, site.client, risks, horizon)
        probabilities[kind] = values
    return probabilities


def _cross_site(labelled: LabelledRows, rows: RowOutputs, metric: str, min_count: int) -> CrossSite:
    """Score the model of every site on the rows of every site.

    Args:
        labelled: Labelled rows.
        rows: The same rows with their targets.
        metric: The score.
        min_count: Sites with fewer rows have no scores.

    Raises:
        UsageError: If there are too many models.
    """
    models = labelled.models
    sites = labelled.sites
    first = models.members[0]
    owners = sorted(first.place.get(PERSONAL, {}))
    if len(owners) > MAX_CROSS_SITE_MODELS:
        raise UsageError(
            f"--cross-site with {len(owners)} models: a matrix of more than "
            f"{MAX_CROSS_SITE_MODELS} cannot be read; name one site with --client"
        )
    inputs = labelled.inputs()
    outputs: dict[str, Tensor] = {}
    if first.global_:
        outputs[GLOBAL] = models.outputs(GLOBAL, None, inputs)
    for client in owners:
        outputs[models.name_of(client)] = models.outputs(PERSONAL, client, inputs)
    scores = resample([replace(rows, outputs=outputs)], models.target, metric)
    counts = np.array([len(site.rows) for site in sites])
    hidden = hidden_groups(counts, min_count)
    unknown = Estimate(math.nan)
    return CrossSite(
        metric=metric,
        models=list(outputs),
        sites=list(labelled.site_names),
        rows=[None if hidden[k] else int(count) for k, count in enumerate(counts)],
        scores=[
            [unknown if hidden[k] else scores.at_site(name, k) for k in range(len(sites))]
            for name in outputs
        ],
    )


def _all_outputs(models: SiteModels, labelled: LabelledRows) -> RowOutputs:
    """Collect what all kinds of models say about the rows of their sites."""
    table = labelled.table
    sites = labelled.sites
    num_outputs = models.target.outputs
    kinds = [
        kind for kind in MODELS if any(kind in models.members[0].models_of(s.client) for s in sites)
    ]
    outputs = {kind: torch.full((len(table), num_outputs), torch.nan) for kind in (*kinds, USED)}
    for one in sites:
        rows = torch.from_numpy(one.rows)
        own = labelled.inputs_of(one)
        used = models.model_of(one.client)
        for kind in models.members[0].models_of(one.client):
            outputs[kind][rows] = models.outputs(kind, one.client, own)
        outputs[USED][rows] = outputs[used][rows]
    return RowOutputs(
        labelled.site_names,
        labelled.site_numbers(),
        np.arange(len(table)),
        labelled.targets,
        outputs,
    )


def _evidence(
    models: SiteModels, outputs: RowOutputs, metric: str, site_models: Mapping[str, str]
) -> Evidence:
    """Describe the candidates: all kinds of models, and the mixture that the sites use."""
    method = models.card.method
    if models.choice is not None and models.choice.decision is not None:
        method = models.choice.decision.federated_method or method  # as the comparison called it
    entries = [
        Entry(kind, "" if kind in (CONSTANT, LOCAL) else method, kind)
        for kind in outputs.outputs
        if kind != USED
    ]
    same = [
        kind
        for kind in outputs.outputs
        if kind != USED and torch.equal(outputs.outputs[kind], outputs.outputs[USED])
    ]
    candidates = dict(outputs.outputs)
    if same:
        del candidates[USED]
    else:
        entries.append(Entry(USED, method, USED))
    return Evidence(
        target=models.target,
        metric=metric,
        test=[replace(outputs, outputs=candidates)],
        val=[],
        entries=entries,
        train_rows={},
        source="new rows",
        site_models=site_models,
    )


def _used_entry(models: SiteModels, evidence: Evidence) -> Entry:
    """Return the candidate that the sites use."""
    mixture = next((entry for entry in evidence.entries if entry.key == USED), None)
    if mixture is not None:
        return mixture
    wanted = PERSONAL if models.choice is None else models.choice.model
    for kind in (wanted, GLOBAL, LOCAL):
        entry_of_kind = next((entry for entry in evidence.entries if entry.key == kind), None)
        if entry_of_kind is not None:
            return entry_of_kind
    raise UsageError(f"'{models.path}' has no model for these rows")


def _weighted_mean(rows: RowOutputs, objective: Any, key: str, metric: str) -> float:
    """Return the mean of a metric over sites in which every row counts alike."""
    if key not in rows.outputs:
        return float("nan")
    values = site_scores(rows, objective, key, metric).numpy()
    counts = np.bincount(rows.site, minlength=len(rows.sites))
    known = np.isfinite(values)
    return float(np.average(values[known], weights=counts[known])) if known.any() else float("nan")


# ------------------------------------------------------------------ prediction


@dataclass(frozen=True)
class Predictions:
    """Predictions for the rows of a table, in their order.

    Attributes:
        rows: The rows by site.
        columns: Columns ``[n]`` by name.
        outputs: Outputs ``[n, outputs]`` of the networks.
        models: Kind of model that each site uses, by its name.
    """

    rows: SiteTable
    columns: Mapping[str, NDArray[Any]]
    outputs: Tensor
    models: Mapping[str, str]


def predict_rows(
    models: SiteModels, selection: RowSelection, horizon: float | None = None
) -> Predictions:
    """Predict rows, each by the model of its site.

    Without a site the global model predicts. The column of training names the sites by itself only
    where the user chose models site by site.

    Args:
        models: The models.
        selection: Rows with the inputs of training.
        horizon: Of survival, also predict the probability of the event by this time.

    Returns:
        The predictions.

    Raises:
        UsageError: If the rows do not fit, or a site has no model.
    """
    table = selection.table(models)
    column = selection.client_column
    if models.is_by_site:
        column = selection.site_column(models, table)
    rows = selection.by_site(models, table, column)
    outputs = torch.zeros(len(table), models.target.outputs)
    used: dict[str, str] = {}
    probability = np.zeros(len(table))
    for one in rows.sites:
        own = rows.inputs_of(one)
        used[one.name] = models.model_of(one.client)
        outputs[torch.from_numpy(one.rows)] = models.outputs(used[one.name], one.client, own)
        if horizon is not None:
            kind = used[one.name]
            probability[one.rows] = models.probability(kind, one.client, own, horizon)
    columns = objective_of(models.target).prediction_columns(outputs)
    if horizon is not None:
        columns[horizon_column(horizon)] = probability
    return Predictions(rows, columns, outputs, used)


def predict_file(
    path: Path,
    rows: Path,
    out: Path,
    *,
    client: str | None = None,
    client_column: str = "",
    id_column: str = "",
    horizon: float | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Write predictions for the rows of a file, in their order.

    Args:
        path: Folder of a run, a choice, or a comparison with a choice.
        rows: Table with the columns of training, or archive of recordings.
        out: CSV file to write.
        client: Name or number of the site of all rows.
        client_column: Column that names the site of each row.
        id_column: Column that is copied to the predictions.
        horizon: Of survival, also predict the probability of the event by this time.
        overwrite: Whether an existing file may be replaced.

    Returns:
        Lines that say what was written; with scores, if the rows have targets.

    Raises:
        UsageError: If a file is missing or exists already, or the rows do not fit.
    """
    if out.exists() and not overwrite:
        raise UsageError(f"'{out}' exists already: choose another --out, or give --overwrite")
    if not rows.is_file():
        raise UsageError(f"there is no file '{rows}'")
    models = load_models(path)
    number = None if client is None else find_site(models, client)
    if number is not None and models.choice is None:
        refuse_remote_model(RunFolder(models.path), number)
    predictor = models.members[0].predictor
    if isinstance(predictor.preprocessor, WindowTransform):
        columns = predict_recordings(Predictor.of(RunFolder(models.path), number), rows)
        _write_csv(out, columns)
        return [f"{out}: {len(next(iter(columns.values())))} predictions"]
    if predictor.preprocessor is None and predictor.texts is None:
        raise UsageError(
            f"'{models.path}' is no run on tables: "
            "predict from Python, by equipoise.open(...).predict"
        )
    selection = RowSelection.of(models, rows, number, client_column)
    table = selection.table(models)
    inputs = feature_columns(models, table, id_column)
    predictions = predict_rows(models, replace(selection, rows=inputs), horizon)
    head: dict[str, Any] = {}
    if id_column:
        head[id_column] = column_texts(read_rows(rows, id_column), id_column)
    head["row"] = table.row_numbers
    _write_csv(out, {**head, **predictions.rows.site_cells(), **predictions.columns})
    lines = [f"{out}: {len(table)} predictions, {_used_models(models, predictions)}"]
    return lines + _score_predictions(models, table, predictions)


def _score_predictions(models: SiteModels, table: Table, predictions: Predictions) -> list[str]:
    """Say how good the predictions are, if the rows have targets."""
    labelled = labelled_mask(models, table)
    if labelled is None or not labelled.any():
        return []
    known = np.flatnonzero(labelled)
    site = predictions.rows.site_numbers()[known]
    outputs = {USED: predictions.outputs[torch.from_numpy(known)]}
    y = encoded_targets(models, table.take(known))
    rows = RowOutputs(predictions.rows.site_names, site, np.arange(len(known)), y, outputs)
    scores = resample([rows], models.target, models.metric)
    mean = scores.mean(USED, scores.known_sites([USED]), weighted=True)
    return [
        f"{len(known)} of these rows have a target: {models.metric} "
        f"{mean.score_text(models.metric)}; 'equipoise evaluate' compares this with other models"
    ]


def _used_models(models: SiteModels, predictions: Predictions) -> str:
    """Say which models were used."""
    sites = predictions.rows.sites
    by_model: dict[str, list[str]] = {}
    for site in sites:
        by_model.setdefault(predictions.models[site.name], []).append(site.name)
    if len(sites) == 1:
        client = sites[0].client
        kind = next(iter(by_model))
        owner = "" if client is None or kind == GLOBAL else f" of {models.name_of(client)}"
        return f"by the {kind} model{owner}"
    parts = [
        f"{len(names)} sites by {'the global model' if kind == GLOBAL else f'their {kind} models'}"
        for kind, names in by_model.items()
    ]
    strangers = [site.name for site in sites if site.client is None]
    text = ", ".join(parts)
    if strangers:
        listed = ", ".join(strangers[:MAX_LISTED_NAMES])
        text += f" (took no part in training: {listed})"
    return text


def _write_csv(out: Path, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write columns as CSV; no text is written that a spreadsheet would take for a formula."""
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, csv_text(columns))
