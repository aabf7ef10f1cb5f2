"""Validation of the numbers that clients report beside their models.

A method declares a range per value. A client that reports a value outside of it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.messages import ClientUpdate
from equipoise.utils.pytree import State

ROUNDING_SLACK = 1e-6  # tolerance of comparisons


@dataclass(frozen=True)
class ValueRange:
    """An interval. For vectors, one bound for all entries or one per entry."""

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def first_violation(self, values: Tensor) -> Tensor:
        """Find the first value outside of the range, per client.

        Args:
            values: Reported values `[K, ...]`.

        Returns:
            The first such value `[K]` (infinity for NaN), or NaN where all values are valid.
        """
        values = values.double()
        low = torch.tensor(self.low, dtype=torch.float64)
        high = torch.tensor(self.high, dtype=torch.float64)
        # Negated, so that NaN is a violation too.
        wrong = ~((values >= low - ROUNDING_SLACK) & (values <= high + ROUNDING_SLACK))
        rows = values.reshape(len(values), -1)
        wrong = wrong.reshape(len(values), -1)
        if not rows.shape[1]:
            return rows.new_full((len(rows),), torch.nan)
        first = rows.gather(1, wrong.int().argmax(1, keepdim=True)).squeeze(1)
        return torch.where(wrong.any(1), first.nan_to_num(nan=torch.inf), torch.nan)

    def __str__(self) -> str:
        """Return the range as `[low, high]`."""
        return f"[{self.low}, {self.high}]"


FRACTION = ValueRange(0.0, 1.0)
"""Accuracies, errors, yes or no."""
MAX_LOSS = 1e6
LOSS = ValueRange(0.0, MAX_LOSS)
"""A mean loss over a client's rows. Larger values mean that training has diverged."""
COUNT = ValueRange(0.0, 1e12)
"""Numbers of visits or examples."""
CHECKED_BY_METHOD = ValueRange(-math.inf, math.inf)
"""For large values that `Method.check_updates` checks in one pass."""
DEFAULT_RANGE = ValueRange(-1e6, 1e6)
"""For values whose range a method has not declared."""

TRIM_FRACTION = 0.1  # largest values that robust statistics of a cohort ignore
MIN_COHORT = 5  # smaller cohorts have no outliers
MAX_MAD_RATIO = 5.0  # winsorize beyond this many times the trimmed maximal deviation


def trimmed_max(values: Tensor) -> float:
    """Return the largest value `[K]` after the largest 10 % (at least one) are removed."""
    return float(values.sort().values[_trimmed_index(len(values))])


def winsorize(values: Tensor) -> Tensor:
    """Pull outliers towards the median.

    Values inside the declared range can still be far from what honest clients report. Deviations
    from the median are limited to `MAX_MAD_RATIO` times the trimmed maximal deviation.

    Args:
        values: Reported values `[K, ...]`.

    Returns:
        Values of the same shape.
    """
    if len(values) < MIN_COHORT:
        return values
    median = values.median(0).values
    deviations = (values - median).abs().sort(0).values
    limit = MAX_MAD_RATIO * deviations[_trimmed_index(len(values))]
    return torch.minimum(torch.maximum(values, median - limit), median + limit)


def _trimmed_index(count: int) -> int:
    """Return the index of the trimmed maximum among `count` sorted values."""
    return count - 1 - max(1, int(TRIM_FRACTION * count))


def validate_reports(ranges: Mapping[str, ValueRange], updates: ClientUpdate) -> dict[int, str]:
    """Find clients that report a value outside of its range.

    Args:
        ranges: Range by name; a name stands for everything below it in `extra` or `metrics`.
        updates: Uploads of K clients.

    Returns:
        Row of each such client in the stack, with a sentence about the first such value.
    """
    violations: dict[int, str] = {}
    for name, value in (*_named_leaves(updates.metrics), *_named_leaves(updates.extra)):
        allowed = ranges.get(name, ranges.get(name.split("/")[0], DEFAULT_RANGE))
        if allowed is CHECKED_BY_METHOD:
            continue
        wrong = allowed.first_violation(value)
        for row in torch.nonzero(~wrong.isnan()).flatten().tolist():
            reason = f"its {name} is {float(wrong[row]):.6g}: must lie in {allowed}"
            violations.setdefault(row, reason)
    return violations


def _named_leaves(tree: State, prefix: str = "") -> list[tuple[str, Tensor]]:
    """List the tensors of a tree with their paths, such as `agent/loss`."""
    leaves: list[tuple[str, Tensor]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves += _named_leaves(value, f"{prefix}{name}/")
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves
