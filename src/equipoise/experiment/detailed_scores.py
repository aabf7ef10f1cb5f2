"""Scores on new rows in detail: groups of rows, every model at every site, and calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Ints, Target
from equipoise.data.tabular.columns import Column
from equipoise.data.tabular.table import Table
from equipoise.experiment.row_outputs import (
    ResampledScores,
    RowOutputs,
    resample,
    wilson_interval,
)
from equipoise.records.decision import Estimate
from equipoise.records.evaluation import Calibration, CalibrationBin, GroupScores
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError, did_you_mean

DEFAULT_MIN_COUNT = 10
"""Groups with fewer rows are not shown: scores of few rows tell about single persons."""
NUM_QUANTILE_GROUPS = 4
MAX_CATEGORIES = 12  # a column of numbers with more different values is cut into quantiles
MAX_CALIBRATION_BINS = 10
ROWS_PER_CALIBRATION_BIN = 20
SLOPE_ITERATIONS = 25
MISSING_GROUP = "missing"
Floats = NDArray[np.float64]


# ------------------------------------------------------------------ groups of rows


@dataclass(frozen=True)
class Grouping:
    """A column by which rows are grouped.

    Attributes:
        column: Name of the column.
        edges: Values at which numbers are cut; empty for quantiles or categories.
    """

    column: str
    edges: tuple[float, ...] = ()

    @staticmethod
    def parse(text: str) -> list[Grouping]:
        """Read ``sex,age:40:60``: columns, with the values at which numbers are cut.

        Raises:
            UsageError: If an edge is no number, or edges do not ascend.
        """
        groupings = []
        for part in filter(None, (one.strip() for one in text.split(","))):
            column, *words = part.split(":")
            try:
                edges = tuple(float(word) for word in words)
            except ValueError as error:
                raise UsageError(
                    f"--by '{part}': write a column, or numbers at which it is cut, age:40:60"
                ) from error
            if list(edges) != sorted(set(edges)):
                raise UsageError(f"--by '{part}': the numbers must ascend")
            groupings.append(Grouping(column, edges))
        return groupings

    def assign(self, table: Table) -> tuple[Ints, list[str]]:
        """Return the group of each row ``[n]``, and the names of the groups.

        Args:
            table: The rows.

        Raises:
            UsageError: If there is no such column, or it holds no numbers to cut.
        """
        if self.column not in table.columns:
            known = did_you_mean(self.column, table.columns)
            raise UsageError(f"the rows have no column '{self.column}'{known}: see --by")
        column = table.columns[self.column]
        numbers = column.numbers
        is_numeric = bool(np.isfinite(numbers).any()) and not bool(
            (np.isnan(numbers) & ~column.missing).any()
        )
        if self.edges and not is_numeric:
            raise UsageError(f"--by {self.column}: the column holds texts, which cannot be cut")
        edges = self.edges
        if is_numeric and not edges:
            known_numbers = numbers[np.isfinite(numbers)]
            if len(np.unique(known_numbers)) > MAX_CATEGORIES:
                shares = np.linspace(0, 1, NUM_QUANTILE_GROUPS + 1)[1:-1]
                edges = tuple(dict.fromkeys(np.quantile(known_numbers, shares).tolist()))
        return _group_by_edges(numbers, edges) if edges else _categories(column)


def _group_by_edges(numbers: Floats, edges: tuple[float, ...]) -> tuple[Ints, list[str]]:
    """Group numbers between edges; a number on an edge belongs to the upper group."""
    texts = [f"{edge:g}" for edge in edges]
    names = [
        f"below {texts[0]}",
        *(f"{low} to {high}" for low, high in pairwise(texts)),
        f"{texts[-1]} and above",
    ]
    group = np.searchsorted(np.array(edges), numbers, side="right").astype(np.int64)
    is_missing = np.isnan(numbers)
    if is_missing.any():
        group[is_missing] = len(names)
        names.append(MISSING_GROUP)
    return group, names


def _categories(column: Column) -> tuple[Ints, list[str]]:
    """Group the different texts of a column."""
    codes, labels = column.labels
    group = codes.astype(np.int64)
    names = [str(label) for label in labels]
    if (group < 0).any():
        group = np.where(group < 0, len(names), group)
        names.append(MISSING_GROUP)
    return group, names


def hidden_groups(counts: Ints, min_count: int) -> NDArray[np.bool_]:
    """Tell which groups must not be shown.

    If exactly one has too few rows, its number would follow from the total: the next smallest
    group is hidden, too.

    Args:
        counts: Rows of each group.
        min_count: Fewest rows of a group that is shown.
    """
    hidden = (counts < min_count) & (counts > 0)
    others = np.flatnonzero(~hidden & (counts > 0))
    if hidden.sum() == 1 and len(others):
        hidden[others[np.argmin(counts[others])]] = True
    return hidden


def group_scores(
    outputs: RowOutputs,
    target: Target,
    metric: str,
    table: Table,
    groupings: Sequence[Grouping],
    min_count: int = DEFAULT_MIN_COUNT,
) -> list[GroupScores]:
    """Score all kinds of models on groups of rows.

    Args:
        outputs: What the models say about the rows.
        target: What is predicted.
        metric: The score.
        table: The rows, with the columns of the groups.
        groupings: The columns.
        min_count: Fewest rows of a group that is shown.

    Returns:
        Scores with intervals; without any where rows are too few.
    """
    group_list: list[GroupScores] = []
    for grouping in groupings:
        group, names = grouping.assign(table)
        counts = np.bincount(group, minlength=len(names))
        hidden = hidden_groups(counts, min_count)
        regrouped = replace(outputs, sites=tuple(names), site=group, row=np.arange(len(group)))
        scores = resample([regrouped], target, metric)
        for number in np.flatnonzero(counts):
            if hidden[number]:
                group_list.append(GroupScores(column=grouping.column, group=names[number]))
                continue
            group_list.append(
                GroupScores(
                    column=grouping.column,
                    group=names[number],
                    rows=int(counts[number]),
                    scores=_known_scores(scores, int(number)),
                )
            )
    return group_list


def _known_scores(scores: ResampledScores, group: int) -> dict[str, Estimate]:
    """Return the scores of all models that have one in a group."""
    estimates = {model: scores.at_site(model, group) for model in scores.scores}
    return {model: one for model, one in estimates.items() if math.isfinite(one.value)}


# ------------------------------------------------------------------ calibration


def calibration_curves(
    outputs: RowOutputs, target: Target, models: Sequence[str]
) -> list[Calibration]:
    """Compare predictions with what was observed.

    Of two classes it is the probability of the second; of more, that of the predicted class; of
    numbers the predicted value. Survival has no curve without a horizon.

    Args:
        outputs: What the models say about the rows.
        target: What is predicted.
        models: Kinds of models.

    Returns:
        One curve for each model that speaks about all rows.
    """
    if target.kind not in ("classification", "regression"):
        return []
    curves = []
    for model in models:
        values = outputs.outputs[model]
        if not bool(torch.isfinite(values).all()):
            continue
        predicted, observed, words = _predictions(target, values, outputs.y)
        if not len(predicted):
            continue
        curves.append(
            Calibration(
                model=model,
                of=words,
                bins=calibration_bins(predicted, observed, target.kind == "classification"),
                slope=calibration_slope(predicted, observed)
                if target.kind == "classification"
                else None,
                mean_predicted=float(predicted.mean()),
                mean_observed=float(observed.mean()),
            )
        )
    return curves


def probability_words(target: Target, name: str) -> str:
    """Say of which class a probability is; a condition such as ``num > 0`` is its own name."""
    return (
        f"probability of {name}"
        if name == target.name
        else f"probability of {target.name} = {name}"
    )


def _predictions(target: Target, outputs: Tensor, y: Tensor) -> tuple[Floats, Floats, str]:
    """Return predictions and outcomes ``[n]``, and what they are in words."""
    if target.kind == "regression":
        predicted = objective_of(target).predict(outputs).numpy()
        return predicted, y.double().numpy(), target.name
    probability = outputs.double().softmax(-1)
    if len(target.classes) == 2:
        words = probability_words(target, target.classes[1])
        return probability[:, 1].numpy(), (y == 1).double().numpy(), words
    best = probability.max(-1)
    words = f"probability of the predicted class of {target.name}"
    return best.values.numpy(), (best.indices == y).double().numpy(), words


def calibration_bins(predicted: Floats, observed: Floats, is_share: bool) -> list[CalibrationBin]:
    """Cut rows into bins of nearly equal size by their prediction.

    Args:
        predicted: Predictions ``[n]``.
        observed: Outcomes ``[n]``.
        is_share: Whether outcomes are 0 or 1.

    Returns:
        Bins from the lowest prediction on.
    """
    num_rows = len(predicted)
    num_bins = max(1, min(MAX_CALIBRATION_BINS, num_rows // ROWS_PER_CALIBRATION_BIN))
    order = np.argsort(predicted, kind="stable")
    bins = []
    for rows in np.array_split(order, num_bins):
        mean = float(observed[rows].mean())
        if is_share:
            estimate = wilson_interval(mean, len(rows))
        else:
            half = 1.96 * float(observed[rows].std()) / math.sqrt(len(rows))
            estimate = Estimate(mean, mean - half, mean + half)
        bins.append(
            CalibrationBin(
                predicted=float(predicted[rows].mean()), observed=estimate, rows=len(rows)
            )
        )
    return bins


def calibration_slope(predicted: Floats, observed: Floats) -> float | None:
    """Fit the outcome on the log odds of the prediction by logistic regression.

    Args:
        predicted: Probabilities ``[n]``.
        observed: Outcomes, 0 or 1 ``[n]``.

    Returns:
        The slope (Cox, 1958); None if it has no finite value.
    """
    tiny = 1e-12
    odds = np.clip(predicted, tiny, 1 - tiny)
    x = np.log(odds / (1 - odds))
    if observed.min() == observed.max() or x.std() < tiny:
        return None
    design = np.stack([np.ones_like(x), x], 1)
    weights = np.zeros(2)
    for _ in range(SLOPE_ITERATIONS):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        curvature = (design * (p * (1 - p))[:, None]).T @ design
        if np.linalg.cond(curvature) > 1 / tiny:
            return None
        step = np.linalg.solve(curvature, design.T @ (observed - p))
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            return float(weights[1])
    return None
