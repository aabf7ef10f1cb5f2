"""What a run or a comparison says about its models: scores on the same rows, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.utils.metrics import (
    format_difference,
    format_score,
    is_negligible,
    score_digits,
)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; NaN where something is not defined."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether there are a value and an interval."""
        return all(map(math.isfinite, (self.value, self.low, self.high)))

    def score_text(self, metric: str) -> str:
        """Write a score with its interval, such as ``0.845 [0.790, 0.881]``."""
        return self._text(metric, format_score, self._digits(metric))

    def difference_text(self, metric: str, score: float) -> str:
        """Write a difference of scores with its interval and its sign.

        Args:
            metric: Name of the metric.
            score: One of the two scores; the difference has no more decimals than it has.
        """
        digits = self._digits(metric)
        if math.isfinite(score):
            digits = min(digits, score_digits(metric, score))
        return self._text(metric, format_difference, digits)

    def _digits(self, metric: str) -> int:
        """Return the decimals that the largest of value and interval deserves."""
        known = [abs(one) for one in (self.value, self.low, self.high) if math.isfinite(one)]
        return score_digits(metric, max(known, default=0.0))

    def _text(
        self, metric: str, write: Callable[[str, float, int | None], str], digits: int
    ) -> str:
        """Write value and interval with the same number of decimals; the unit stands once."""
        if not self.is_known:
            return write(metric, self.value, digits)
        ends = [
            write(metric, end, digits).removesuffix(" %").removesuffix(" points")
            for end in (self.low, self.high)
        ]
        return f"{write(metric, self.value, digits)} [{', '.join(ends)}]"

    @property
    def reversed(self) -> Estimate:
        """The estimate of ``b - a``, if this is one of ``a - b``."""
        return Estimate(-self.value, -self.high, -self.low)

    @property
    def contains_zero(self) -> bool:
        """Whether the interval does not decide about the sign; true if there is none."""
        return not self.is_known or self.low <= 0 <= self.high

    def is_tie(self, metric: str, score: float) -> bool:
        """Tell whether this difference names no winner: it is not clear, or nobody would notice it.

        Args:
            metric: Name of the metric.
            score: One of the two scores.
        """
        return self.contains_zero or is_negligible(metric, self.value, score)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to get a model for each site, with its scores on the test rows of the sites."""

    label: str
    """Such as ``fedavg, personal models``."""
    method: str
    """Label of the method in the comparison; empty for baselines."""
    model: str
    """``personal``, ``global``, ``local`` or ``constant``."""
    weighted: Estimate
    """Mean over sites in which every row counts alike."""
    unweighted: Estimate
    """Mean over sites in which every site counts alike."""
    difference: Estimate | None = None
    """Paired difference to the chosen one, ``this - chosen``, in which every row counts alike."""
    verdict: str
    """``chosen``, ``tie``, ``behind`` or ``ahead``."""
    validation: float | None = None
    """Score on the validation rows, by which the choice is made."""
    seeds: list[float] = field(default_factory=list)
    """Weighted mean with each seed."""
    one_class: str = ""
    """The class that it predicts for every row, if it does."""


@dataclass(frozen=True, kw_only=True)
class SiteDecision:
    """What is known about one site."""

    name: str
    train_rows: int | None = None
    test_rows: int
    model: str
    """Model that the site should use: ``personal``, ``global`` or ``local``."""
    scores: dict[str, Estimate]
    """By kind of model, of the chosen method."""
    gain: Estimate
    """Paired gain over the site's own model, of the model to use; where that is the own model, of
    the best federated method's. Positive is better, of errors too."""
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Content of ``decision.json``."""

    metric: str
    higher_is_better: bool
    method: str
    """Label of the chosen method; empty if each site's own model is the choice."""
    model: str
    """Kind of model of that method: ``personal``, ``global`` or ``local``."""
    seeds: int
    folds: int = 0
    headline: str
    """The verdict in one sentence."""
    notes: list[str]
    """Further sentences: how sure, ties, tiny sites, seeds that differ."""
    candidates: list[Candidate]
    sites: list[SiteDecision]
    rounds: int
    """Rounds that the final model should train for."""

    @property
    def federated_method(self) -> str:
        """Label of the chosen method, else of the best federated one; empty if there is none."""
        if self.method:
            return self.method
        return next((one.method for one in self.candidates if one.method), "")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Content of ``choice.json``: the final models, and which of them each site uses."""

    members: list[str]
    """Folders of the final runs, relative to that of the choice; several are an ensemble."""
    model: str
    """Kind of model: ``personal``, ``global`` or ``local``."""
    sites: dict[str, str]
    """Kind of model of the sites that use another one."""
    refit: str
    """``all`` if the final models were trained on all rows, else ``none``."""
    has_validation: bool = False
    """Whether the final models kept validation rows, which choose the number of trees."""
    decision: Decision | None = None
    """Scores of the split before; they are not of the final models themselves."""
