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


METRICS = {
    "acc": MetricInfo(0, 1),
    "balanced_acc": MetricInfo(0, 1),
    "f1": MetricInfo(0, 1),
    "auc": MetricInfo(0, 1, undefined_if="all test rows are of one class"),
    "average_precision": MetricInfo(0, 1, undefined_if="no test row is of the positive class"),
    "concordance": MetricInfo(0, 1, undefined_if="no two test rows can be ordered by their time"),
    "r2": MetricInfo(highest=1, undefined_if="all test rows have the same target"),
    "ece": MetricInfo(0, 1, higher_is_better=False),
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
