"""Scores, durations and courses as people read them in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

BLOCKS = "▁▂▃▄▅▆▇█"


def written(headline: str, value: float | None) -> str:
    """A score."""
    if value is None:
        return "—"
    return f"{100 * value:.2f} %" if headline == "acc" else f"{headline} {value:.4g}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02} min"
        if hours
        else f"{minutes} min {rest:02} s"
        if minutes
        else f"{rest} s"
    )


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of a number from its lowest to its highest, averaged to at most so many blocks."""
    if not values or width < 1:
        return ""
    count = min(len(values), width)
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [fmean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if math.isclose(
        low, high, rel_tol=1e-4
    ):  # logs have six digits: do not draw what rounding left
        return BLOCKS[0] * count
    return "".join(BLOCKS[min(7, int(8 * (value - low) / (high - low)))] for value in means)
