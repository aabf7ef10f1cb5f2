"""Runs of equal values in sorted rows: what ranks, risk sets and precision at a threshold are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot


def tie_bounds(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """For every value of sorted rows ``[..., n]``: the places of the first and of the last one that equals it."""
    n = ordered.shape[-1]
    place = torch.arange(n, device=ordered.device).expand(ordered.shape)
    changes = torch.ones_like(ordered, dtype=torch.bool)
    changes[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = torch.ones_like(changes)
    ends[..., :-1] = changes[..., 1:]
    first = torch.where(changes, place, 0).cummax(-1).values
    last = torch.where(ends, place, n).flip(-1).cummin(-1).values.flip(-1)
    return first, last


NUM_REPLICATES = 500
CONFIDENCE_LEVEL = 0.95


def bootstrap_interval(
    score: Callable[[Tensor], Tensor], rows: int, random: np.random.Generator
) -> tuple[float, float]:
    """``score`` takes places of rows ``[R, n]`` and gives the score of each such draw with replacement ``[R]``.

    Draws for which the score is not defined are left out; NaN where that are all.
    """
    found = score(torch.from_numpy(random.integers(0, rows, (NUM_REPLICATES, rows)))).double()
    found = found[torch.isfinite(found)]
    if not len(found):
        return np.nan, np.nan
    outside = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(found.numpy(), (outside, 1 - outside))
    return float(low), float(high)


NUM_CALIBRATION_BINS = (
    15  # of confidence, as is usual for the expected calibration error (Guo et al., 2017)
)


def auc(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Area under the ROC curve by ranks, ties counted half; of several classes the mean of each against the rest.

    A class that all or none of the rows have does not count in that mean.
    """
    score, positive = _one_against_rest(logits, y)
    counts = real.unsqueeze(1)
    order = score.masked_fill(~counts, torch.inf).sort(-1)
    first, last = tie_bounds(order.values)
    rank = (first + last).double() / 2 + 1
    hits = (positive & counts).gather(-1, order.indices)
    p = hits.sum(-1).double()
    n = counts.sum(-1).double() - p
    area = ((rank * hits).sum(-1) - p * (p + 1) / 2) / (p * n)
    return _mean_where(area, (p > 0) & (n > 0))


def average_precision(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Precision averaged over the positive rows, each at its own threshold; of several classes the mean of each.

    A class that none of the rows has does not count in that mean.
    """
    score, positive = _one_against_rest(logits, y)
    counts = real.unsqueeze(1)
    order = score.masked_fill(~counts, -torch.inf).sort(-1, descending=True)
    hits = (positive & counts).gather(-1, order.indices)
    last = tie_bounds(order.values)[1]
    precision = hits.cumsum(-1).gather(-1, last).double() / (last + 1)
    p = hits.sum(-1).double()
    return _mean_where((precision * hits).sum(-1) / p, p > 0)


def balanced_accuracy(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The share of each class that is recognised, averaged over the classes that there are."""
    hits, there, _ = _counts(logits, y, real)
    return _mean_where(hits / there, there > 0)


def macro_f1(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """F1 = 2 hits / (rows of the class + predictions of it), averaged over classes that are there or predicted."""
    hits, there, predicted = _counts(logits, y, real)
    return _mean_where(2 * hits / (there + predicted), there + predicted > 0)


def expected_calibration_error(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """How far confidence is from accuracy: the mean over rows of their bin's difference."""
    best = logits.double().softmax(-1).max(-1)
    bin = (
        (best.values * NUM_CALIBRATION_BINS).ceil().long().sub(1).clamp(0, NUM_CALIBRATION_BINS - 1)
    )
    gap = ((best.indices == y).double() - best.values) * real
    sums = gap.new_zeros(*gap.shape[:-1], NUM_CALIBRATION_BINS).scatter_add_(-1, bin, gap)
    return sums.abs().sum(-1) / real.sum(-1)


def _one_against_rest(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and hits ``[K, problems, n]``: the second of two classes, or every one of several."""
    probability, classes = logits.double().softmax(-1).movedim(-1, 1), logits.shape[-1]
    if classes == 2:
        return probability[:, 1:], (y == 1).unsqueeze(1)
    return probability, y.unsqueeze(1) == torch.arange(classes, device=y.device)[:, None]


def _counts(logits: Tensor, y: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[K, C]``: rows of each class that are recognised, that there are, and that are predicted."""
    chosen, classes = logits.max(-1).indices, logits.shape[-1]

    def count(labels: Tensor, which: Tensor) -> Tensor:
        return (one_hot(labels, classes) * which.unsqueeze(-1)).sum(-2).double()

    return count(y, real & (chosen == y)), count(y, real), count(chosen, real)


def _mean_where(values: Tensor, defined: Tensor) -> Tensor:
    return torch.where(defined, values, torch.nan).nanmean(-1)


def rmse(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Root of the mean squared error."""
    return _mean((predicted.double() - y).square(), real).sqrt()


def mae(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Mean absolute error."""
    return _mean((predicted.double() - y).abs(), real)


def r2(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """1 - squared error / squared deviation from the rows' own mean; NaN where all targets are equal."""
    y = y.double()
    spread = _mean((y - _mean(y, real).unsqueeze(-1)).square(), real)
    return torch.where(spread > 0, 1 - _mean((predicted - y).square(), real) / spread, torch.nan)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    return (values * real).sum(-1) / real.sum(-1)


MAX_PAIRS_AT_ONCE = 2**22  # bounds the memory


def concordance(risk: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Harrell's C: the share of comparable pairs in which who had the event earlier has the higher risk; ties half.

    Comparable: one had the event, and the other was still without it then (also if censored at that very moment).
    NaN where no pair is comparable.
    """
    time, event = y[..., 0], (y[..., 1] > 0) & real
    models, n = risk.shape
    better, comparable = risk.new_zeros(2, models, dtype=torch.float64)
    for rows in torch.arange(n).split(max(1, MAX_PAIRS_AT_ONCE // (models * n))):
        here, later = time[:, rows, None], time[:, None, :]
        pair = (here < later) | ((here == later) & ~event[:, None, :])
        pair &= event[:, rows, None] & real[:, None, :]
        ahead = risk[:, rows, None] - risk[:, None, :]
        won = (ahead > 0).double() + (ahead == 0).double() / 2
        better += (won * pair).sum((1, 2))
        comparable += pair.sum((1, 2))
    return torch.where(comparable > 0, better / comparable, torch.nan)
