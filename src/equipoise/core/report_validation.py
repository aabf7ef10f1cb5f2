"""Declared ranges: which numbers a client may report beside its model. Whoever reports others is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.messages import ClientUpdate
from equipoise.utils.pytree import State

ROUNDING_SLACK = 1e-6  # room for rounding


@dataclass(frozen=True)
class ValueRange:
    """From ``low`` to ``high``; of a vector, one pair for all its entries or one for each."""

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def first_violation(self, values: Tensor) -> Tensor:
        """Per client of a stack ``[K, ...]``: its first number that is not within, or NaN if all are."""
        values = values.double()
        low, high = (torch.tensor(bound, dtype=torch.float64) for bound in (self.low, self.high))
        wrong = ~(
            (values >= low - ROUNDING_SLACK) & (values <= high + ROUNDING_SLACK)
        )  # also what is not a number
        rows, wrong = values.reshape(len(values), -1), wrong.reshape(len(values), -1)
        if not rows.shape[1]:
            return rows.new_full((len(rows),), torch.nan)
        first = rows.gather(1, wrong.int().argmax(1, keepdim=True)).squeeze(1)
        return torch.where(wrong.any(1), first.nan_to_num(nan=torch.inf), torch.nan)

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}]"


FRACTION = ValueRange(0.0, 1.0)
"""Accuracies, errors, yes or no."""
MAX_LOSS = 1e6
LOSS = ValueRange(0.0, MAX_LOSS)
"""A mean loss over a client's rows: above, training has diverged."""
COUNT = ValueRange(0.0, 1e12)
"""Visits and samples."""
DEFAULT_RANGE = ValueRange(-1e6, 1e6)
"""What a method has not declared."""


TRIM_FRACTION, MIN_COHORT = 0.1, 5
"""Nearly all of a cohort: all but this share of the largest, from so many clients on."""
MAX_MAD_RATIO = 5.0  # times as far as nearly all others' from the median may a number be that an agent learns from


def trimmed_max(values: Tensor) -> float:
    """The largest of nearly all: what a few clients cannot move, whatever they say."""
    return float(values.sort().values[len(values) - 1 - max(1, int(TRIM_FRACTION * len(values)))])


def winsorize(values: Tensor) -> Tensor:
    """A stack ``[K, ...]`` of numbers, those that lie much further from the median than nearly all others moved nearer.

    Lies within a declared range can still be far from anything that honest clients report; no honest number should be.
    """
    if len(values) < MIN_COHORT:
        return values
    middle = values.median(0).values
    away = (values - middle).abs().sort(0).values
    most = MAX_MAD_RATIO * away[len(values) - 1 - max(1, int(TRIM_FRACTION * len(values)))]
    return torch.minimum(torch.maximum(values, middle - most), middle + most)


def validate_reports(reports: Mapping[str, ValueRange], updates: ClientUpdate) -> dict[int, str]:
    """Rows of a stack of uploads with a number outside its range, each with one sentence about the first such number.

    A name of ``reports`` stands for all that lies below it in ``extra`` or ``metrics``.
    """
    found: dict[int, str] = {}
    for name, value in (*_leaves(updates.metrics), *_leaves(updates.extra)):
        allowed = next(
            (reports[part] for part in (name, name.split("/")[0]) if part in reports), DEFAULT_RANGE
        )
        outside = allowed.first_violation(value)
        for row in torch.nonzero(~outside.isnan()).flatten().tolist():
            found.setdefault(row, f"its {name} is {float(outside[row]):.6g}: must lie in {allowed}")
    return found


def _leaves(tree: State, above: str = "") -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for name, value in tree.items():
        found += (
            _leaves(value, f"{above}{name}/")
            if isinstance(value, dict)
            else [(f"{above}{name}", value)]
        )
    return found
