"""Outputs of several models on the same labelled rows, and their scores with intervals.

Models can be compared only on the same rows. :class:`RowOutputs` holds what each model says about
each row. :func:`resample` scores all models on the same bootstrap samples, so that the difference
of two models has an interval of its own, which is far narrower than those of their scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Ints, Target
from equipoise.records.decision import Estimate
from equipoise.training.objectives import Objective, objective_of
from equipoise.utils import rng, serialization
from equipoise.utils.pytree import Params

CONSTANT = "constant"
LOCAL = "local"
GLOBAL = "global"
PERSONAL = "personal"
MODELS = (CONSTANT, LOCAL, GLOBAL, PERSONAL)
"""Kinds of models that a run has for a site, the simplest first."""
USED = "used"
"""The model that each site uses, where sites use different kinds."""

MAX_REPLICATES = 500
MIN_REPLICATES = 100
MAX_RESAMPLED_ROWS = 2**23  # rows of all replicates; bounds time and memory
MAX_OUTPUTS_AT_ONCE = 2**22
CONFIDENCE_LEVEL = 0.95
NUM_ERRORS = 1.0
"""Standard errors by which a simpler model may be behind the best one."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowOutputs:
    """What several models say about the same rows.

    Attributes:
        sites: Names of the sites.
        site: Site of each row ``[n]``, as an index of ``sites``.
        row: Identity of each row ``[n]`` within its site, equal in all repeats.
        y: Targets ``[n]`` or ``[n, 2]``.
        outputs: Outputs ``[n, outputs]`` by model. NaN where a site does not have the model.
    """

    sites: tuple[str, ...]
    site: Ints
    row: Ints
    y: Tensor
    outputs: Mapping[str, Tensor]

    def rename(self, names: Mapping[str, str]) -> RowOutputs:
        """Return the outputs of some models under other names.

        Args:
            names: New name of each model that is kept; others are left out.
        """
        outputs = {new: self.outputs[old] for old, new in names.items() if old in self.outputs}
        return RowOutputs(self.sites, self.site, self.row, self.y, outputs)

    def with_models_of(self, other: RowOutputs) -> RowOutputs:
        """Add the models of another set of outputs on the same rows."""
        outputs = {**self.outputs, **other.outputs}
        return RowOutputs(self.sites, self.site, self.row, self.y, outputs)

    def has_rows_of(self, other: RowOutputs) -> bool:
        """Whether both are about the same rows in the same order."""
        return (
            self.sites == other.sites
            and np.array_equal(self.site, other.site)
            and np.array_equal(self.row, other.row)
            and torch.equal(self.y, other.y)
        )

    def centred_by_site(self) -> RowOutputs:
        """Return outputs with mean 0 at each site.

        A log risk is known up to a constant, which differs between models. The models of several
        folds can be ranked together at a site only after this.
        """
        outputs = {name: values.clone() for name, values in self.outputs.items()}
        for site in range(len(self.sites)):
            own = torch.from_numpy(self.site == site)
            if bool(own.any()):
                for values in outputs.values():
                    values[own] -= values[own].mean(0)
        return RowOutputs(self.sites, self.site, self.row, self.y, outputs)

    def fill(self, path: Path) -> None:
        """Write everything but the names of the sites to a safetensors file."""
        tensors = {"site": torch.from_numpy(self.site), "row": torch.from_numpy(self.row)}
        outputs = {f"outputs.{name}": value for name, value in self.outputs.items()}
        serialization.fill_tensors(path, {**tensors, "y": self.y, **outputs}, {})

    @staticmethod
    def from_tensors(tensors: Params, sites: tuple[str, ...]) -> RowOutputs:
        """Return the outputs that :meth:`fill` wrote.

        Args:
            tensors: Tensors of the file.
            sites: Names of the sites.
        """
        prefix = "outputs."
        outputs = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        site: Ints = tensors["site"].numpy()
        row: Ints = tensors["row"].numpy()
        return RowOutputs(sites, site, row, tensors["y"], outputs)


def concatenate(parts: Sequence[RowOutputs]) -> RowOutputs:
    """Join outputs on different rows, such as those of the folds of a cross-validation.

    Models that not all parts have are left out.
    """
    first = parts[0]
    common = [name for name in first.outputs if all(name in part.outputs for part in parts)]
    return RowOutputs(
        first.sites,
        np.concatenate([part.site for part in parts]),
        np.concatenate([part.row for part in parts]),
        torch.cat([part.y for part in parts]),
        {name: torch.cat([part.outputs[name] for part in parts]) for name in common},
    )


# ------------------------------------------------------------------ scores


@dataclass(frozen=True)
class ResampledScores:
    """Scores of models on the rows and on bootstrap samples of the rows.

    Attributes:
        sites: Names of the sites.
        num_rows: Different rows of each site ``[S]``.
        scores: Scores ``[1 + R, S]`` by model: on the rows themselves, then on R samples. NaN
            where a score is undefined.
        is_share: Whether the score is a share of rows, such as accuracy.
    """

    sites: tuple[str, ...]
    num_rows: Ints
    scores: Mapping[str, Floats]
    is_share: bool

    def known_sites(self, models: Sequence[str]) -> NDArray[np.bool_]:
        """Tell for each site whether all these models have a score there ``[S]``."""
        known = np.ones(len(self.sites), np.bool_)
        for model in models:
            known &= np.isfinite(self.scores[model][0])
        return known

    def at_site(self, model: str, site: int) -> Estimate:
        """Return the score of a model at one site."""
        values = self.scores[model][:, site]
        if self.is_share and math.isfinite(values[0]):
            return wilson_interval(float(values[0]), int(self.num_rows[site]))
        return estimate(values)

    def mean(self, model: str, sites: NDArray[np.bool_], weighted: bool) -> Estimate:
        """Return the mean of a model's score over sites.

        Args:
            model: The model.
            sites: Which sites count ``[S]``.
            weighted: Whether every row counts alike, instead of every site.
        """
        return estimate(self._means(model, sites, weighted))

    def difference(
        self, model: str, other: str, sites: NDArray[np.bool_], weighted: bool
    ) -> Estimate:
        """Return the paired difference of two models' means over sites, ``model - other``.

        Args:
            model: One model.
            other: The model that it is compared with.
            sites: Mask `[S]` of the sites that count.
            weighted: Whether sites count by their rows instead of equally.

        Returns:
            The difference with its interval.
        """
        ours = self._means(model, sites, weighted)
        return estimate(ours - self._means(other, sites, weighted))

    def standard_error(self, model: str, other: str, sites: NDArray[np.bool_]) -> float:
        """Return the standard error of a paired difference in which every row counts alike.

        It is the standard deviation over the bootstrap samples; NaN if no site is known.

        Args:
            model: One model.
            other: The model that it is compared with.
            sites: Mask `[S]` of the sites that count.
        """
        differences = self._means(model, sites, True) - self._means(other, sites, True)
        return float(differences[1:].std())

    def site_difference(
        self, model: str, other: str, site: int, num_comparisons: int = 1
    ) -> Estimate:
        """Return the paired difference of two models at one site, ``model - other``.

        Args:
            model: One model.
            other: The other model.
            site: The site.
            num_comparisons: Number of comparisons that are made at once. The interval is as wide
                as Bonferroni's correction asks for.
        """
        differences = self.scores[model][:, site] - self.scores[other][:, site]
        if num_comparisons == 1:
            return estimate(differences)
        known = differences[1:][np.isfinite(differences[1:])]
        if not math.isfinite(differences[0]) or len(known) < 2:
            return Estimate(float(differences[0]), math.nan, math.nan)
        # So far out the samples are too few for quantiles: use the normal distribution.
        tail = (1 - CONFIDENCE_LEVEL) / 2 / num_comparisons
        half = NormalDist().inv_cdf(1 - tail) * float(known.std())
        value = float(differences[0])
        return Estimate(value, value - half, value + half)

    def _means(self, model: str, sites: NDArray[np.bool_], weighted: bool) -> Floats:
        """Return the mean over sites in each sample ``[1 + R]``.

        A site whose score is undefined in a sample (all drawn rows are of one class) keeps its
        score on all rows there. Without it, the mean would be that of the other sites.
        """
        values = self.scores[model][:, sites]
        if not values.shape[1]:
            return np.full(len(values), np.nan)
        values = np.where(np.isfinite(values), values, values[:1])
        weights = self.num_rows[sites] if weighted else None
        means: Floats = np.average(values, axis=1, weights=weights)
        return means


def estimate(samples: Floats) -> Estimate:
    """Return the first value with the percentile interval of the others."""
    value = float(samples[0])
    others = samples[1:][np.isfinite(samples[1:])]
    if not math.isfinite(value) or not len(others):
        return Estimate(value, math.nan, math.nan)
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(others, (tail, 1 - tail))
    return Estimate(value, min(float(low), value), max(float(high), value))


def wilson_interval(share: float, num_rows: int) -> Estimate:
    """Return the Wilson score interval of a share.

    The bootstrap of five right answers in five rows would say that nothing is uncertain.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
    spread = 1 + z * z / num_rows
    centre = (share + z * z / (2 * num_rows)) / spread
    variance = share * (1 - share) / num_rows + (z / (2 * num_rows)) ** 2
    half = z * math.sqrt(variance) / spread
    return Estimate(share, min(share, centre - half), max(share, centre + half))


def resample(
    repeats: Sequence[RowOutputs], target: Target, metric: str, seed: int = 0
) -> ResampledScores:
    """Score all models on the same bootstrap samples of rows.

    A sample draws rows of each site with replacement. Where several repeats (seeds) test the same
    row, it is drawn for all of them at once: more seeds do not make more patients. The score of a
    site is the mean over repeats.

    Args:
        repeats: Outputs of the same models, one per seed.
        target: What is predicted.
        metric: The score.
        seed: Seed of the samples.

    Returns:
        The scores.
    """
    objective = objective_of(target)
    names = [name for name in repeats[0].outputs if all(name in one.outputs for one in repeats)]
    sites = repeats[0].sites
    units = [
        np.unique(np.concatenate([one.row[one.site == site] for one in repeats]))
        for site in range(len(sites))
    ]
    num_rows = np.array([len(rows) for rows in units], np.int64)
    replicates = MAX_RESAMPLED_ROWS // max(1, int(num_rows.sum()) * len(repeats))
    replicates = min(MAX_REPLICATES, max(MIN_REPLICATES, replicates))
    scores = {name: np.full((1 + replicates, len(sites)), np.nan) for name in names}
    for site, rows in enumerate(units):
        if not len(rows):
            continue
        random = rng.generator(seed, rng.BOOTSTRAP, site)
        draws = random.integers(0, len(rows), (replicates, len(rows)))
        samples = np.concatenate([np.arange(len(rows))[None], draws])
        for name, values in _site_scores(repeats, objective, metric, site, rows, samples).items():
            scores[name][:, site] = values
    return ResampledScores(sites, num_rows, scores, metric == "acc")


def _site_scores(
    repeats: Sequence[RowOutputs],
    objective: Objective,
    metric: str,
    site: int,
    rows: Ints,
    samples: Ints,
) -> dict[str, Floats]:
    """Return the scores ``[samples]`` of all models at one site, means over repeats."""
    columns: dict[str, list[Floats]] = {}
    for one in repeats:
        own = np.flatnonzero(one.site == site)
        place = np.full(len(rows), -1)
        place[np.searchsorted(rows, one.row[own])] = own
        sampled_places = place[samples]
        for name, outputs in one.outputs.items():
            values = np.full(len(samples), np.nan)
            if len(own) and bool(torch.isfinite(outputs[own]).all()):
                values = _sample_scores(objective, metric, outputs, one.y, sampled_places)
            columns.setdefault(name, []).append(values)
    means: dict[str, Floats] = {}
    for name, parts in columns.items():
        stacked = np.stack(parts)
        known = np.isfinite(stacked)
        count = known.sum(0)
        total = np.where(known, stacked, 0.0).sum(0)
        means[name] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return means


def _sample_scores(
    objective: Objective, metric: str, outputs: Tensor, y: Tensor, draws: Ints
) -> Floats:
    """Score one model on samples of rows.

    Args:
        objective: Has the metric.
        metric: The score.
        outputs: Outputs ``[n, outputs]``.
        y: Targets of all rows.
        draws: Rows of each sample ``[R, m]``; -1 for none.

    Returns:
        Scores ``[R]``; NaN of samples without rows.
    """
    at_once = max(1, MAX_OUTPUTS_AT_ONCE // (draws.shape[1] * outputs.shape[1]))
    parts = []
    for start in range(0, len(draws), at_once):
        rows = torch.from_numpy(draws[start : start + at_once])
        is_real = rows >= 0
        count = is_real.sum(1)
        weight = None if bool(is_real.all()) else is_real / count.clamp(min=1)[:, None]
        rows = rows.clamp(min=0)
        score = objective.score(outputs[rows], y[rows], weight, (metric,))[metric].double()
        parts.append(torch.where(count > 0, score, torch.nan).numpy())
    return np.concatenate(parts)


def site_scores(rows: RowOutputs, objective: Objective, model: str, metric: str) -> Tensor:
    """Score one model at each site ``[S]``; NaN where the score is undefined.

    Args:
        rows: Outputs of all models on all rows.
        objective: Loss and metrics.
        model: The model.
        metric: The metric.
    """
    outputs = rows.outputs[model]
    scores = torch.full((len(rows.sites),), torch.nan, dtype=torch.float64)
    for site in range(len(rows.sites)):
        own = torch.from_numpy(rows.site == site)
        if bool(own.any()) and bool(torch.isfinite(outputs[own]).all()):
            values = objective.score(outputs[own][None], rows.y[own][None], None, (metric,))
            scores[site] = float(values[metric][0])
    return scores


def only_class(rows: RowOutputs, target: Target, model: str) -> str:
    """Return the class that a model predicts for every row, though rows have several classes.

    Args:
        rows: Outputs of all models on all rows.
        target: What is predicted.
        model: The model.

    Returns:
        Name of the class; empty if several are predicted or all rows have one class.
    """
    outputs = rows.outputs[model]
    if target.kind != "classification" or len(torch.unique(rows.y)) < 2:
        return ""
    known = outputs[torch.isfinite(outputs).all(1)]
    predicted = torch.unique(known.argmax(1))
    return target.classes[int(predicted[0])] if len(predicted) == 1 else ""


# ------------------------------------------------------------------ choice by losses


def simplest_within_error(losses: Mapping[str, Floats]) -> str:
    """Return the first model that is not clearly worse than the best one.

    Losses of rows are far steadier than a score such as the AUC at sites with few rows, and their
    differences have a standard error. Of models that the rows do not tell apart, the best one is so
    by chance: as in the pruning of trees (Breiman et al., 1984) and in glmnet, the simplest is
    taken.

    Args:
        losses: Losses of the same rows `[rows]` by model, the simplest model first.

    Returns:
        The first model whose mean loss is above the lowest one by at most one standard error of the
        differences of single rows.
    """
    best = min(losses, key=lambda model: float(losses[model].mean()))
    return next(model for model, own in losses.items() if not is_clearly_lower(losses[best], own))


def is_clearly_lower(losses: Floats, others: Floats) -> bool:
    """Tell whether losses are lower than others of the same rows by more than one standard error.

    The standard error is that of the mean difference of single rows.
    """
    differences = others - losses
    return is_clear(float(differences.mean()), standard_error(differences))


def is_clear(difference: float, error: float) -> bool:
    """Tell whether a difference is more than :data:`NUM_ERRORS` standard errors above 0."""
    return difference > NUM_ERRORS * error


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean of values of single rows."""
    return float(values.std()) / math.sqrt(len(values))


def row_losses(rows: RowOutputs, objective: Objective, model: str) -> Floats:
    """Return the loss of each row `[n]` under a model; of survival, risk sets are those of sites.

    Args:
        rows: What models say about rows.
        objective: The loss.
        model: Kind of model.
    """
    losses = np.zeros(len(rows.y))
    for site in np.unique(rows.site):
        own = torch.from_numpy(rows.site == site)
        outputs = rows.outputs[model][own].double()
        losses[own.numpy()] = objective.losses(outputs[None], rows.y[own][None])[0].numpy()
    return losses


def mean_losses(
    repeats: Sequence[RowOutputs], target: Target, models: Sequence[str]
) -> dict[str, Floats]:
    """Return the losses of rows under models, means over repeats that hold the same row.

    Args:
        repeats: Outputs of the models, one for each seed.
        target: What is predicted.
        models: The models, in the order of the result.

    Returns:
        Losses ``[rows]`` by model, of the rows where all these models have one. Models without any
        are left out; the result is empty without rows.
    """
    objective = objective_of(target)
    known = [model for model in models if all(model in one.outputs for one in repeats)]
    if not repeats or not known:
        return {}
    table = np.concatenate(
        [np.stack([row_losses(one, objective, model) for model in known]) for one in repeats],
        axis=1,
    )
    has_any = np.isfinite(table).any(1)
    table = table[has_any]
    pairs = np.concatenate([np.stack([one.site, one.row]) for one in repeats], axis=1)
    is_known = np.isfinite(table).all(0)
    _, unit = np.unique(pairs[:, is_known], axis=1, return_inverse=True)
    unit = unit.reshape(-1)
    if not len(unit):
        return {}
    counts = np.bincount(unit)
    means = [np.bincount(unit, weights=losses[is_known]) / counts for losses in table]
    names = [model for model, has in zip(known, has_any, strict=True) if has]
    return dict(zip(names, means, strict=True))
