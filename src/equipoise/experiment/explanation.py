"""Explain models of tables: permutation importance and partial dependence, by sums of sites.

Names and definitions are those of `sklearn.inspection`. The importance of a column is the drop of a
score if its values are permuted among the rows of a site (Breiman, 2001). The partial dependence is
the mean prediction if all rows have the same value in the column (Friedman, 2001).

Each site works on its own rows with the model that it uses. What leaves it are sums: its rows times
the score drops, counts and sums of values in cells, and sums of predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Ints, Target
from equipoise.data.tabular.preprocessing import Category, Date, Preprocessor
from equipoise.experiment.build import build_task
from equipoise.experiment.checkpoint import check_unchanged
from equipoise.experiment.detailed_scores import DEFAULT_MIN_COUNT, hidden_groups, probability_words
from equipoise.experiment.site_models import RunModels, SiteModels, load_models
from equipoise.experiment.site_rows import RowSelection, refuse_other_data, select_labelled
from equipoise.records import codec
from equipoise.records.explanation import (
    Explanation,
    Importance,
    PartialDependence,
    SiteExplanation,
)
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_in
from equipoise.tasks.supervised import ExamplesTask
from equipoise.training.objectives import Objective, objective_of
from equipoise.trees import binning
from equipoise.utils import io, rng
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.metrics import higher_is_better

Floats = NDArray[np.float64]
GRID_PERCENTILES = (0.05, 0.95)
"""Between these the values of a grid lie, as in scikit-learn."""
MAX_GRID_CATEGORIES = 20
"""Of more categories the most frequent ones are shown."""


@dataclass(frozen=True)
class ExplanationOptions:
    """How models are explained.

    Attributes:
        features: Columns whose partial dependence is computed; none for the most important ones.
        n_features: Number of these most important ones.
        n_repeats: Permutations of each column.
        max_samples: Largest number of rows of a site; of more, a random sample is used.
        grid_resolution: Largest number of values of a number or date.
        min_count: Sites with fewer rows are not shown.
        metric: The score; empty for that of the run.
        seed: Seed of samples and permutations.
    """

    features: tuple[str, ...] = ()
    n_features: int = 6
    n_repeats: int = 5
    max_samples: int = 1000
    grid_resolution: int = 20
    min_count: int = DEFAULT_MIN_COUNT
    metric: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that explain nothing."""
        for name, least in (("n_repeats", 1), ("max_samples", 2), ("min_count", 1)):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {getattr(self, name)}: must be at least {least}")


@dataclass(frozen=True)
class SiteSample:
    """Rows of one site as inputs of its model.

    Attributes:
        name: Name of the site.
        client: Its number; None if training did not have it.
        kind: Kind of model that it uses.
        x: Inputs `[n, features]` for each member of an ensemble; one of a single model.
        y: Targets.
    """

    name: str
    client: int | None
    kind: str
    x: tuple[Floats, ...]
    y: Tensor

    def take(self, rows: Ints) -> SiteSample:
        """Return some of the rows."""
        x = tuple(part[rows] for part in self.x)
        return SiteSample(self.name, self.client, self.kind, x, self.y[torch.from_numpy(rows)])


# ------------------------------------------------------------------ where rows come from


def explain_rows(
    models: SiteModels, selection: RowSelection, options: ExplanationOptions | None = None
) -> Explanation:
    """Explain the models that sites use, on labelled rows.

    Args:
        models: The models.
        selection: Rows with the columns of training and the target.
        options: How to explain.

    Returns:
        Importance and partial dependence.

    Raises:
        UsageError: If the rows do not fit, have no target, or a column is unknown.
    """
    labelled = select_labelled(models, selection)
    samples = []
    for site in labelled.sites:
        own = labelled.inputs_of(site)
        x = tuple(_array(member.inputs(own, site.client)) for member in models.members)
        y = labelled.targets[torch.from_numpy(site.rows)]
        samples.append(SiteSample(site.name, site.client, models.model_of(site.client), x, y))
    title = f"{len(labelled.table)} new rows, models of {models.path.name} ({models.card.method})"
    return explain(models, samples, title, options or ExplanationOptions())


def explain_run(
    path: Path,
    options: ExplanationOptions | None = None,
    settings: ExperimentConfig | None = None,
) -> Explanation:
    """Explain the models of a run on its own test rows, and keep the result in its folder.

    Args:
        path: Folder of the run.
        options: How to explain.
        settings: Options of a run whose task was made in Python.

    Returns:
        Importance and partial dependence; `explanation.json` of the folder holds them too.

    Raises:
        UsageError: If the folder is no finished run on tables with test rows, or its data are gone.
    """
    models = load_models(path, settings)
    refuse_other_data(models)
    give_rows = f"give rows: 'equipoise explain {path} ROWS.csv'"
    if models.choice is not None or models.owner is not None:
        raise UsageError(f"'{models.path}' was trained on all rows: {give_rows}")
    folder = RunFolder(models.path)
    settings = settings or settings_in(folder.read_config())
    task = build_task(settings)
    if not isinstance(task, ExamplesTask) or not task.has_split("test"):
        raise UsageError(f"'{models.path}' has no test rows here: {give_rows}")
    check_unchanged(folder, settings, task)
    samples = []
    for client in range(len(models.card.clients)):
        x, y = task.client_rows(client, "test")
        kind = models.model_of(client)
        inputs = _array(task.prepare(x))
        if len(inputs):
            samples.append(SiteSample(models.name_of(client), client, kind, (inputs,), y))
    title = f"Test rows of {models.path.name} ({models.card.method})"
    explanation = explain(models, samples, title, options or ExplanationOptions())
    with io.locked(folder.path):
        folder.explanation.write(codec.dumps(explanation, indent=1))
    return explanation


def _array(x: Tensor) -> Floats:
    """Return inputs as an array in double precision."""
    values: Floats = x.double().cpu().numpy()
    return values


# ------------------------------------------------------------------ the explanation


def explain(
    models: SiteModels, samples: Sequence[SiteSample], title: str, options: ExplanationOptions
) -> Explanation:
    """Explain models on rows of sites.

    Args:
        models: The models.
        samples: Rows of each site.
        title: What the rows are.
        options: How to explain.

    Returns:
        Importance and partial dependence.

    Raises:
        UsageError: If a column is unknown, or no site has a score.
    """
    columns = [encoder.name for encoder in _preprocessor(models.members[0]).encoders]
    for name in options.features:
        if name not in columns:
            raise UsageError(
                f"the model has no input '{name}'{did_you_mean(name, columns)}: see --features"
            )
    objective = objective_of(models.target)
    metric = objective.with_primary_metric(options.metric or models.metric)[0]
    sampled = [draw_sample(one, number, options) for number, one in enumerate(samples)]
    counts = np.array([len(one.y) for one in sampled])
    hidden = hidden_groups(counts, options.min_count)
    scores, drops = _scores_of_sites(models, sampled, columns, objective, metric, options)
    known = np.isfinite(scores)
    weights = counts[known] / counts[known].sum()
    overall = np.tensordot(weights, drops[known], axes=1)
    importances = _importances(columns, overall)
    ranked = sorted(importances, key=lambda one: -one.importances_mean)
    wanted = options.features or tuple(one.column for one in ranked[: options.n_features])
    dependence = [_partial_dependence(models, sampled, hidden, name, options) for name in wanted]
    return Explanation(
        title=title,
        metric=metric,
        outputs=response_names(models.target),
        rows=int(counts.sum()),
        n_repeats=options.n_repeats,
        min_count=options.min_count,
        score=float(weights @ scores[known]),
        importances=ranked,
        partial_dependence=[one for one in dependence if one.grid_values],
        sites=[
            _site_explanation(one, bool(hidden[k]), scores[k], _importances(columns, drops[k]))
            for k, one in enumerate(sampled)
        ],
        notes=_notes(sampled, samples, scores, hidden, metric, options)
        + [
            f"Partial dependence of '{one.column}' is not shown: no value of it has "
            f"{options.min_count} rows."
            for one in dependence
            if not one.grid_values
        ],
    )


def _scores_of_sites(
    models: SiteModels,
    sampled: Sequence[SiteSample],
    columns: Sequence[str],
    objective: Objective,
    metric: str,
    options: ExplanationOptions,
) -> tuple[Floats, Floats]:
    """Return the scores `[sites]` and their drops `[sites, columns, repeats]`.

    Raises:
        UsageError: If no site has a score.
    """
    scores = np.full(len(sampled), np.nan)
    drops = np.zeros((len(sampled), len(columns), options.n_repeats))
    for number, one in enumerate(sampled):
        orders = _permutations(len(one.y), number, options)
        scores[number], drops[number] = score_drops(models, one, columns, objective, metric, orders)
    if not np.isfinite(scores).any():
        raise UsageError(
            f"no site has a value of {metric} on these rows, such as an AUC of one class: give "
            "more rows, or another --metric"
        )
    return scores, drops


def draw_sample(sample: SiteSample, number: int, options: ExplanationOptions) -> SiteSample:
    """Return at most `max_samples` rows of a site, drawn without replacement.

    Args:
        sample: The rows of a site.
        number: Number of the site, which the draw depends on.
        options: The largest number of rows, and the seed.
    """
    if len(sample.y) <= options.max_samples:
        return sample
    random = rng.generator(options.seed, rng.EXPLANATION, number, 0)
    rows = random.choice(len(sample.y), options.max_samples, replace=False)
    return sample.take(np.sort(rows))


def _permutations(num_rows: int, number: int, options: ExplanationOptions) -> Ints:
    """Draw the permutations `[n_repeats, n]` of a site, which all columns share."""
    random = rng.generator(options.seed, rng.EXPLANATION, number, 1)
    return np.stack([random.permutation(num_rows) for _ in range(options.n_repeats)])


def _importances(columns: Sequence[str], drops: Floats) -> list[Importance]:
    """Summarise the drops `[columns, repeats]`."""
    return [
        Importance(
            column=name,
            importances_mean=float(own.mean()),
            importances_std=float(own.std()),
        )
        for name, own in zip(columns, drops, strict=True)
    ]


def _site_explanation(
    sample: SiteSample, is_hidden: bool, score: float, importances: list[Importance]
) -> SiteExplanation:
    """Describe one site; without figures if its rows are too few."""
    if is_hidden:
        return SiteExplanation(site=sample.name, model=sample.kind)
    if not math.isfinite(score):
        return SiteExplanation(site=sample.name, rows=len(sample.y), model=sample.kind)
    return SiteExplanation(
        site=sample.name,
        rows=len(sample.y),
        model=sample.kind,
        score=float(score),
        importances=importances,
    )


def _notes(
    drawn: Sequence[SiteSample],
    samples: Sequence[SiteSample],
    scores: Floats,
    hidden: NDArray[np.bool_],
    metric: str,
    options: ExplanationOptions,
) -> list[str]:
    """Say what was left out."""
    notes = []
    cut = sum(len(a.y) < len(b.y) for a, b in zip(drawn, samples, strict=True))
    if cut:
        notes.append(
            f"{cut} of {len(drawn)} sites have more rows: {options.max_samples} of each were "
            "drawn (--max-samples)."
        )
    if undefined := int((~np.isfinite(scores)).sum()):
        notes.append(f"{undefined} of {len(drawn)} sites have no value of {metric}.")
    if hidden.any():
        notes.append(
            f"{int(hidden.sum())} of {len(drawn)} sites are not shown, so that none with fewer "
            f"than {options.min_count} rows can be told; they count in the figures of all rows."
        )
    return notes


# ------------------------------------------------------------------ permutation importance


def score_drops(
    models: SiteModels,
    sample: SiteSample,
    columns: Sequence[str],
    objective: Objective,
    metric: str,
    orders: Ints,
) -> tuple[float, Floats]:
    """Permute each column of a site's rows.

    Args:
        models: The models.
        sample: Rows of the site.
        columns: Columns of the table; all features of a column are permuted together.
        objective: Has the metric.
        metric: The score.
        orders: Permutations `[n_repeats, n]`.

    Returns:
        The score on the rows as they are, and by how much the permutations worsen it
        `[columns, n_repeats]`.
    """
    score = _scores(models, sample, sample.x, objective, metric)[0]
    drops = np.zeros((len(columns), len(orders)))
    sign = 1.0 if higher_is_better(metric) else -1.0
    for place, name in enumerate(columns):
        permuted = []
        for member, x in zip(models.members, sample.x, strict=True):
            features = _preprocessor(member).feature_places(name)
            stack = np.repeat(x[None], len(orders), axis=0)
            stack[:, :, features] = x[:, features][orders]
            permuted.append(stack.reshape(-1, x.shape[1]))
        after = _scores(models, sample, permuted, objective, metric)
        drops[place] = sign * (score - after)
    return float(score), drops


def _scores(
    models: SiteModels,
    sample: SiteSample,
    inputs: Sequence[Floats],
    objective: Objective,
    metric: str,
) -> Floats:
    """Score copies of a site's rows `[copies]`; inputs are `[copies * n, features]` by member."""
    outputs = _outputs(models, sample, inputs)
    stack = outputs.reshape(-1, len(sample.y), outputs.shape[1])
    y = sample.y.expand(len(stack), *sample.y.shape)
    values: Floats = objective.score(stack, y, None, (metric,))[metric].double().numpy()
    return values


def _outputs(models: SiteModels, sample: SiteSample, inputs: Sequence[Floats]) -> Tensor:
    """Return what the site's model says about inputs of each member."""
    x = [torch.from_numpy(part.astype(np.float32)) for part in inputs]
    return models.outputs_of_inputs(sample.kind, sample.client, x)


def _preprocessor(member: RunModels) -> Preprocessor:
    """Return the preprocessing of a member."""
    preprocessor = member.predictor.preprocessor
    assert isinstance(preprocessor, Preprocessor)
    return preprocessor


# ------------------------------------------------------------------ partial dependence


def response_names(target: Target) -> list[str]:
    """Say what the outputs of :func:`response` are."""
    if target.kind == "classification":
        classes = target.classes[1:] if len(target.classes) == 2 else target.classes
        return [probability_words(target, name) for name in classes]
    return [f"log risk of {target.name}" if target.kind == "survival" else target.name]


def response(target: Target, outputs: Tensor) -> Floats:
    """Return predictions `[n, m]`: probabilities (of two classes the second), values or log risks.

    Args:
        target: What is predicted.
        outputs: Outputs `[n, outputs]` of a network or of trees.
    """
    if target.kind != "classification":
        values: Floats = np.asarray(objective_of(target).predict(outputs), np.float64)
        return values.reshape(len(outputs), 1)
    probability: Floats = outputs.double().softmax(-1).numpy()
    return probability[:, 1:] if len(target.classes) == 2 else probability


def _partial_dependence(
    models: SiteModels,
    samples: Sequence[SiteSample],
    hidden: NDArray[np.bool_],
    column: str,
    options: ExplanationOptions,
) -> PartialDependence:
    """Add up the predictions of all sites for each value of a grid."""
    preprocessor = _preprocessor(models.members[0])
    encoder = next(one for one in preprocessor.encoders if one.name == column)
    decoded = [
        preprocessor.decode_values(column, one.x[0], scale_owner(models.members[0], one.client))
        for one in samples
    ]
    values: list[float] | list[str]
    if isinstance(encoder, Category):
        grid = category_grid(decoded, encoder.num_codes, options.min_count)
        names = [*encoder.values, "(other)"]
        values = [names[int(code)] for code in grid]
    else:
        standard = [(own - encoder.mean) / encoder.scale for own in decoded]
        grid = number_grid(standard, options.grid_resolution, options.min_count)
        grid = np.array([float(f"{v:.6g}") for v in grid * encoder.scale + encoder.mean])
        values = grid.tolist()
    sums = [prediction_sums(models, one, column, grid) for one in samples]
    counts = [len(one.y) for one in samples]
    average = np.sum(sums, axis=0) / np.sum(counts)
    kind = "category" if isinstance(encoder, Category) else "number"
    return PartialDependence(
        column=column,
        kind="date" if isinstance(encoder, Date) else kind,
        grid_values=values,
        average=average.tolist(),
        sites={
            one.name: (own / count).tolist()
            for one, own, count, hide in zip(samples, sums, counts, hidden, strict=True)
            if not hide
        },
    )


def scale_owner(member: RunModels, client: int | None) -> str | None:
    """Return the name of the client by whose scales its rows are standardised."""
    if client is not None and member.card.clients:
        return member.card.clients[client]
    return member.card.owner or None


def prediction_sums(models: SiteModels, sample: SiteSample, column: str, grid: Floats) -> Floats:
    """Add up the predictions of a site's rows, all of which have the same value in a column.

    Args:
        models: The models.
        sample: Rows of the site.
        column: The column.
        grid: Numbers, days or codes of categories `[values]`.

    Returns:
        Sums `[outputs, values]`.
    """
    inputs = []
    for member, x in zip(models.members, sample.x, strict=True):
        preprocessor = _preprocessor(member)
        owner = scale_owner(member, sample.client)
        stack = np.repeat(x[None], len(grid), axis=0)
        features = preprocessor.encode_values(column, grid, owner)
        stack[:, :, preprocessor.feature_places(column)] = features[:, None, :]
        inputs.append(stack.reshape(-1, x.shape[1]))
    responses = response(models.target, _outputs(models, sample, inputs))
    sums: Floats = responses.reshape(len(grid), len(sample.y), responses.shape[1]).sum(1).T
    return sums


def category_grid(codes: Sequence[Floats], num_codes: int, min_count: int) -> Floats:
    """Choose the categories that are shown: the most frequent ones of at least `min_count` rows.

    Args:
        codes: Codes `[n]` at each site; NaN where they are missing.
        num_codes: Number of codes.
        min_count: Fewest rows of a value.

    Returns:
        Codes, ascending.
    """
    counts = np.zeros(num_codes, np.int64)
    for own in codes:
        counts += np.bincount(own[np.isfinite(own)].astype(np.int64), minlength=num_codes)
    frequent = np.argsort(-counts, kind="stable")[:MAX_GRID_CATEGORIES]
    return np.sort(frequent[counts[frequent] >= min_count]).astype(np.float64)


def number_grid(values: Sequence[Floats], resolution: int, min_count: int) -> Floats:
    """Choose the values of a number that are shown, from counts and sums in cells.

    As in scikit-learn: each value if there are few different ones, else equally spaced values
    between the 5 % and the 95 % quantile.

    Args:
        values: Standardised values `[n]` at each site; NaN where they are missing.
        resolution: Largest number of values.
        min_count: Cells with fewer rows are no values of their own.

    Returns:
        Values, ascending.
    """
    known = [own[np.isfinite(own)] for own in values]
    fixed = binning.fixed_grid(1)
    first = np.sum([_cell_sums(own, fixed[0]) for own in known], axis=0)
    refined = binning.refined_grid(fixed, first[:1])
    counts, totals = np.sum([_cell_sums(own, refined[0]) for own in known], axis=0)
    used = np.flatnonzero(counts)
    if not len(used):
        return np.zeros(0)
    means: Floats = totals[used] / counts[used]
    if len(used) <= resolution:
        frequent: Floats = means[counts[used] >= min_count]
        return frequent
    share = np.cumsum(counts[used]) / counts.sum()
    low, high = (means[int(np.searchsorted(share, p))] for p in GRID_PERCENTILES)
    return np.linspace(low, high, resolution) if high > low else means[:1]


def _cell_sums(values: Floats, cuts: Floats) -> Floats:
    """Return the number of values in each cell, and their sum `[2, cells]`."""
    cell = np.searchsorted(cuts, values, side="left")
    size = len(cuts) + 1
    return np.stack(
        [np.bincount(cell, minlength=size), np.bincount(cell, weights=values, minlength=size)]
    )
