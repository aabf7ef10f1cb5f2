"""Metrics of classification, regression and survival, and bootstrap intervals.

Every metric takes the predictions of K models, the targets and a mask:

    metric(predictions [K, n, ...], y [K, n, ...], is_real [K, n]) -> [K]

Rows with `is_real` False are padding and do not count. A metric that is undefined is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

NUM_REPLICATES = 500
"""Bootstrap samples of an interval."""
CONFIDENCE_LEVEL = 0.95
"""Coverage of bootstrap intervals."""
NUM_CALIBRATION_BINS = 15
"""Confidence bins of the expected calibration error, as in Guo et al. (2017)."""
MAX_PAIRS_AT_ONCE = 2**22
"""Pairs that `concordance` compares at once. Bounds its memory."""


def tie_bounds(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Find the runs of equal values (ties) in sorted rows.

    Args:
        ordered: Sorted values, `[..., n]`.

    Returns:
        Positions of the first and of the last equal value, for each value, `[..., n]`.
    """
    n = ordered.shape[-1]
    position = torch.arange(n, device=ordered.device).expand(ordered.shape)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = torch.ones_like(starts)
    ends[..., :-1] = starts[..., 1:]
    first = torch.where(starts, position, 0).cummax(-1).values
    last = torch.where(ends, position, n).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def bootstrap_interval(
    score: Callable[[Tensor], Tensor], rows: int, random: np.random.Generator
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a score.

    Args:
        score: Maps row numbers of R samples, `[R, n]`, to their scores, `[R]`.
        rows: Number n of rows.
        random: Generator of the samples.

    Returns:
        Lower and upper bound at `CONFIDENCE_LEVEL`. Samples with an undefined score are left out;
        NaN if all are undefined.
    """
    samples = torch.from_numpy(random.integers(0, rows, (NUM_REPLICATES, rows)))
    scores = score(samples).double()
    scores = scores[torch.isfinite(scores)]
    if not len(scores):
        return np.nan, np.nan
    tail = (1 - CONFIDENCE_LEVEL) / 2
    low, high = np.quantile(scores.numpy(), (tail, 1 - tail))
    return float(low), float(high)


def auc(logits: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the area under the ROC curve from ranks; ties count one half.

    `(sum of positive ranks - P (P + 1) / 2) / (P N)`. For more than two classes: the mean over one
    class against the rest, without the classes that all or none of the rows have.

    Args:
        logits: Logits `[K, n, C]`.
        y: Classes `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    score, positive = _one_against_rest(logits, y)
    counts = is_real.unsqueeze(1)
    order = score.masked_fill(~counts, torch.inf).sort(-1)
    first, last = tie_bounds(order.values)
    rank = (first + last).double() / 2 + 1
    hits = (positive & counts).gather(-1, order.indices)
    p = hits.sum(-1).double()
    n = counts.sum(-1).double() - p
    area = ((rank * hits).sum(-1) - p * (p + 1) / 2) / (p * n)
    return _mean_where(area, (p > 0) & (n > 0))


def average_precision(logits: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the precision at the threshold of each positive row, averaged over these rows.

    For more than two classes: the mean over one class against the rest, without absent classes.

    Args:
        logits: Logits `[K, n, C]`.
        y: Classes `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    score, positive = _one_against_rest(logits, y)
    counts = is_real.unsqueeze(1)
    order = score.masked_fill(~counts, -torch.inf).sort(-1, descending=True)
    hits = (positive & counts).gather(-1, order.indices)
    last = tie_bounds(order.values)[1]
    precision = hits.cumsum(-1).gather(-1, last).double() / (last + 1)
    p = hits.sum(-1).double()
    return _mean_where((precision * hits).sum(-1) / p, p > 0)


def balanced_accuracy(logits: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the mean recall over the classes that are present.

    Args:
        logits: Logits `[K, n, C]`.
        y: Classes `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    hits, present, _ = _counts(logits, y, is_real)
    return _mean_where(hits / present, present > 0)


def macro_f1(logits: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the mean F1 over the classes that are present or predicted.

    `F1 = 2 hits / (rows of the class + predictions of the class)`.

    Args:
        logits: Logits `[K, n, C]`.
        y: Classes `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    hits, present, predicted = _counts(logits, y, is_real)
    return _mean_where(2 * hits / (present + predicted), present + predicted > 0)


def expected_calibration_error(logits: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the expected calibration error (Guo et al., 2017).

    `sum over bins of |sum of (accuracy - confidence)| / n`.

    Args:
        logits: Logits `[K, n, C]`.
        y: Classes `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    best = logits.double().softmax(-1).max(-1)
    bin = (
        (best.values * NUM_CALIBRATION_BINS).ceil().long().sub(1).clamp(0, NUM_CALIBRATION_BINS - 1)
    )
    gap = ((best.indices == y).double() - best.values) * is_real
    sums = gap.new_zeros(*gap.shape[:-1], NUM_CALIBRATION_BINS).scatter_add_(-1, bin, gap)
    return sums.abs().sum(-1) / is_real.sum(-1)


def _one_against_rest(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels of the binary problems, `[K, P, n]`.

    One problem for two classes (the second is positive), otherwise one problem per class.
    """
    probability = logits.double().softmax(-1).movedim(-1, 1)
    classes = logits.shape[-1]
    if classes == 2:
        return probability[:, 1:], (y == 1).unsqueeze(1)
    return probability, y.unsqueeze(1) == torch.arange(classes, device=y.device)[:, None]


def _counts(logits: Tensor, y: Tensor, is_real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count hits, rows and predictions of each class, `[K, C]` each."""
    predicted = logits.max(-1).indices
    classes = logits.shape[-1]

    def count(labels: Tensor, mask: Tensor) -> Tensor:
        return (one_hot(labels, classes) * mask.unsqueeze(-1)).sum(-2).double()

    return count(y, is_real & (predicted == y)), count(y, is_real), count(predicted, is_real)


def _mean_where(values: Tensor, defined: Tensor) -> Tensor:
    """Average the defined values over the last axis; NaN if there are none."""
    return torch.where(defined, values, torch.nan).nanmean(-1)


def rmse(predicted: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the root mean squared error.

    Args:
        predicted: Predictions `[K, n]`.
        y: Targets `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    return _mean((predicted.double() - y).square(), is_real).sqrt()


def mae(predicted: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the mean absolute error.

    Args:
        predicted: Predictions `[K, n]`.
        y: Targets `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    return _mean((predicted.double() - y).abs(), is_real)


def r2(predicted: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute `1 - MSE / variance of the targets`; NaN if all targets are equal.

    Args:
        predicted: Predictions `[K, n]`.
        y: Targets `[K, n]`.
        is_real: Mask `[K, n]` of the rows that are no padding.

    Returns:
        One number per client `[K]`.
    """
    y = y.double()
    variance = _mean((y - _mean(y, is_real).unsqueeze(-1)).square(), is_real)
    return torch.where(
        variance > 0, 1 - _mean((predicted - y).square(), is_real) / variance, torch.nan
    )


def _mean(values: Tensor, is_real: Tensor) -> Tensor:
    """Average the real rows over the last axis."""
    return (values * is_real).sum(-1) / is_real.sum(-1)


def concordance(risk: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute Harrell's C: the share of comparable pairs that are ordered correctly.

    A pair is comparable if one row had the event at a time when the other was still without it
    (also if the other was censored at that very time). It is correct if the row with the earlier
    event has the higher risk; equal risks count one half. NaN without comparable pairs.

    Args:
        risk: Predicted risks, `[K, n]`.
        y: Times and events (0 or 1), `[K, n, 2]`.
        is_real: Rows that count, `[K, n]`.

    Returns:
        Concordance of each model, `[K]`.
    """
    time = y[..., 0]
    event = (y[..., 1] > 0) & is_real
    models, n = risk.shape
    # Every comparable pair has a row with an event first: those rows alone are gone through.
    num_events = event.sum(1)
    event_rows = event.to(torch.int8).sort(dim=1, descending=True, stable=True).indices
    event_rows = event_rows[:, : int(num_events.max())]
    is_event = torch.arange(event_rows.shape[1], device=risk.device) < num_events[:, None]
    correct, comparable = risk.new_zeros(2, models, dtype=torch.float64)
    for part in torch.arange(event_rows.shape[1]).split(max(1, MAX_PAIRS_AT_ONCE // (models * n))):
        rows = event_rows[:, part]
        event_time = time.gather(1, rows)[:, :, None]
        event_risk = risk.gather(1, rows)[:, :, None]
        other_time = time[:, None, :]
        pair = (event_time < other_time) | ((event_time == other_time) & ~event[:, None, :])
        pair &= is_event[:, part, None] & is_real[:, None, :]
        comparable += pair.sum((1, 2))
        correct += (pair & (event_risk > risk[:, None, :])).sum((1, 2))
        correct += (pair & (event_risk == risk[:, None, :])).sum((1, 2)) / 2
    return torch.where(comparable > 0, correct / comparable, torch.nan)
