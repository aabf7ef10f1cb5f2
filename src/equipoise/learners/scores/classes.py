"""Scores of classification, from logits ``[K, n, C]``, labels ``[K, n]`` and which rows count ``[K, n]``.

A score that is not defined for a model's rows (the AUC of one class alone) is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equipoise.learners.scores.ties import runs_of_equals

BINS = 15  # of confidence, as is usual for the expected calibration error (Guo et al., 2017)


def auc(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Area under the ROC curve by ranks, ties counted half; of several classes the mean of each against the rest.

    A class that all or none of the rows have does not count in that mean.
    """
    score, positive = _one_against_rest(logits, y)
    counts = real.unsqueeze(1)
    order = score.masked_fill(~counts, torch.inf).sort(-1)
    first, last = runs_of_equals(order.values)
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
    last = runs_of_equals(order.values)[1]
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
    bin = (best.values * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    gap = ((best.indices == y).double() - best.values) * real
    sums = gap.new_zeros(*gap.shape[:-1], BINS).scatter_add_(-1, bin, gap)
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
