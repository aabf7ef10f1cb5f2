"""Statistics over seeds: confidence intervals, paired differences and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Quantile 0.975 of Student's t for 1 to 30 degrees of freedom. Beyond, 1.96 of the normal serves.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_QUANTILE = 1.96
MIN_INTERVAL_SEEDS = 5  # seeds from which a plot shows an interval instead of their range
UNBOUNDED = (-math.inf, math.inf)

Point = tuple[float, float]


@dataclass(frozen=True)
class PairedDifference:
    """Score of one method minus that of another: mean and 95 % interval over paired seeds."""

    mean: float
    low: float
    high: float
    higher_is_better: bool = True

    @property
    def verdict(self) -> str:
        """``tie`` if the interval contains 0, else ``ahead`` or ``behind``."""
        if self.low <= 0 <= self.high:
            return "tie"
        return "ahead" if (self.mean > 0) == self.higher_is_better else "behind"


def interval_half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % t-interval of the mean.

    Args:
        values: Two values or more.
    """
    index = len(values) - 2
    quantile = T_QUANTILES[index] if index < len(T_QUANTILES) else NORMAL_QUANTILE
    return quantile * stdev(values) / math.sqrt(len(values))


def confidence_band(
    values: Sequence[float], bounds: tuple[float, float] = UNBOUNDED
) -> tuple[float, float]:
    """Return the ends of the band that a plot draws around the mean over seeds.

    The band is the 95 % t-interval of the mean, clipped to the range of the metric. Of fewer than
    five seeds it would be so wide that it flattens all lines, so their band is their range.

    Args:
        values: One value per seed.
        bounds: Smallest and largest possible value of the metric.
    """
    if len(values) < MIN_INTERVAL_SEEDS:
        return min(values), max(values)
    mean = fmean(values)
    half = interval_half_width(values)
    return max(mean - half, bounds[0]), min(mean + half, bounds[1])


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], higher_is_better: bool = True
) -> PairedDifference | None:
    """Compare two methods seed by seed.

    Args:
        ours: Scores of one method, one per seed.
        theirs: Scores of the other, with the same seeds.
        higher_is_better: Whether a larger score is better.

    Returns:
        Mean and interval of ``ours - theirs``, or None for fewer than two seeds.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return None
    mean = fmean(differences)
    half = interval_half_width(differences)
    return PairedDifference(mean, mean - half, mean + half, higher_is_better)


def compare_to_best(
    scores: Mapping[str, Sequence[float]], higher_is_better: bool = True
) -> tuple[str, dict[str, PairedDifference | None]]:
    """Compare every method with the one that has the best mean.

    Args:
        scores: Scores over the same seeds, by method; at least one method.
        higher_is_better: Whether a larger score is better.

    Returns:
        The best method, and the paired difference of every other one to it.
    """
    choose = max if higher_is_better else min
    best = choose(scores, key=lambda method: fmean(scores[method]))
    differences = {
        method: paired_difference(values, scores[best], higher_is_better)
        for method, values in scores.items()
        if method != best
    }
    return best, differences


def pareto_front(points: Mapping[str, Point], higher_is_better: bool = True) -> list[str]:
    """List the points that no other point matches or beats on both axes.

    Args:
        points: Points ``(x, y)`` by name.
        higher_is_better: Whether larger values are better on both axes.

    Returns:
        The names of these points, from left to right.
    """
    sign = 1.0 if higher_is_better else -1.0
    signed = {name: (sign * x, sign * y) for name, (x, y) in points.items()}

    def is_dominated(point: Point) -> bool:
        return any(
            other != point and other[0] >= point[0] and other[1] >= point[1]
            for other in signed.values()
        )

    front = [name for name, point in signed.items() if not is_dominated(point)]
    return sorted(front, key=lambda name: points[name])
