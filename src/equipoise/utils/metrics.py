"""Metrics by name: the range of their values, which way is better, and when they are undefined.

This is the only place where a metric's range is declared. Plots clip their bands to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class MetricInfo:
    """Facts about one metric that follow from its definition."""

    lowest: float = -math.inf
    """Smallest possible value."""
    highest: float = math.inf
    """Largest possible value."""
    higher_is_better: bool = True
    undefined_if: str = ""
    """Condition, as a clause, under which the metric has no value; empty if it always has one."""


MIN_DIFFERENCE = 0.001
"""Of a share, or of an error relative to its size: nobody notices a smaller difference."""

METRICS = {
    "acc": MetricInfo(0, 1),
    "balanced_acc": MetricInfo(0, 1),
    "f1": MetricInfo(0, 1),
    "auc": MetricInfo(0, 1, undefined_if="all test rows are of one class"),
    "average_precision": MetricInfo(0, 1, undefined_if="no test row is of the positive class"),
    "concordance": MetricInfo(0, 1, undefined_if="no two test rows can be ordered by their time"),
    "r2": MetricInfo(highest=1, undefined_if="all test rows have the same target"),
    "ece": MetricInfo(0, 1, higher_is_better=False),
    "brier": MetricInfo(0, 1, higher_is_better=False),
    "loss": MetricInfo(0, higher_is_better=False),
    "rmse": MetricInfo(0, higher_is_better=False),
    "mae": MetricInfo(0, higher_is_better=False),
    "error": MetricInfo(0, higher_is_better=False),  # (1 - gamma) max |Q - Q*| of agents
    "subspace": MetricInfo(0, 1, higher_is_better=False),  # sine of the largest angle
}


def metric_info(name: str) -> MetricInfo:
    """Return the facts about a metric.

    Args:
        name: Name of the metric, such as ``acc``.

    Returns:
        The declared facts. Of an unknown metric, such as the return of an agent, nothing is known:
        it is unbounded, and higher is better.
    """
    return METRICS.get(name, MetricInfo())


def higher_is_better(name: str) -> bool:
    """Tell whether a larger value of a metric is better."""
    return metric_info(name).higher_is_better


def format_score(metric: str, value: float | None, digits: int | None = None) -> str:
    """Write a score as people do: accuracy in per cent, shares with three digits, money in full.

    Args:
        metric: Name of the metric.
        value: The score; None or NaN if it is undefined.
        digits: Decimals of a score that is no accuracy; those that its size deserves if None.

    Returns:
        Such as ``84.5 %``, ``0.845`` or ``23,252``.
    """
    if value is None or not math.isfinite(value):
        return "—"
    if metric == "acc":
        return f"{100 * value:.1f} %"
    digits = score_digits(metric, value) if digits is None else digits
    return f"{value:,.{digits}f}"


def format_difference(metric: str, value: float, digits: int | None = None) -> str:
    """Write a difference of two scores, with its sign; see :func:`format_score`.

    Args:
        metric: Name of the metric.
        value: The difference.
        digits: Digits after the point; None for the usual ones of the metric.
    """
    if not math.isfinite(value):
        return "—"
    if metric == "acc":
        return f"{round(100 * value, 1) + 0.0:+.1f} points"  # adding 0 makes -0.0 positive
    digits = score_digits(metric, value) if digits is None else digits
    return f"{round(value, digits) + 0.0:+,.{digits}f}"


def is_negligible(metric: str, difference: float, score: float) -> bool:
    """Tell whether a difference is too small to matter, however sure it is.

    Args:
        metric: Name of the metric.
        difference: Difference of two scores.
        score: One of them.
    """
    is_bounded = math.isfinite(metric_info(metric).highest)
    return abs(difference) < MIN_DIFFERENCE * (1 if is_bounded else abs(score))


def score_digits(metric: str, value: float) -> int:
    """Return how many decimals a score deserves: three of a share, fewer of large numbers."""
    if metric == "acc":
        return 2
    if math.isfinite(metric_info(metric).highest) or not math.isfinite(value):
        return 3
    size = abs(value)
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if size >= limit:
            return digits
    return 3
