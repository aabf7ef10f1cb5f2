"""What an evaluation on new rows says beyond the verdict: site by site, by group, calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.records.decision import Decision, Estimate


@dataclass(frozen=True, kw_only=True)
class CrossSite:
    """Scores of every site's model on every site's rows."""

    metric: str
    models: list[str]
    """``global``, and the names of sites that have a personal model."""
    sites: list[str]
    """Sites that have rows, in the order of the columns."""
    rows: list[int | None]
    """Rows of each site; None where they are too few to be told."""
    scores: list[list[Estimate]]
    """One list for each model, with one score for each site; NaN where it is undefined or the
    rows are too few."""


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """Scores on the rows of one group, such as one sex."""

    column: str
    group: str
    """Such as ``F`` or ``40 to 60``."""
    rows: int | None = None
    """Number of rows; None where they are too few to be told."""
    scores: dict[str, Estimate] = field(default_factory=dict)
    """By kind of model; empty where the rows are too few."""


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Rows with similar predictions: their mean prediction and what was observed."""

    predicted: float
    observed: Estimate
    rows: int


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Calibration curve of one kind of model."""

    model: str
    of: str
    """What is predicted, in words: ``probability of ill = 1``."""
    bins: list[CalibrationBin]
    slope: float | None = None
    """Slope of the outcome on the log odds of the prediction; 1 is calibrated, below 1 means that
    predictions are too extreme. None where it has no value."""
    mean_predicted: float
    mean_observed: float


@dataclass(frozen=True, kw_only=True)
class HorizonScores:
    """Scores of predicted probabilities that the event happens by a horizon."""

    model: str
    horizon: float
    brier: Estimate
    """Brier score, weighted for censoring; 0 is best."""
    auc: Estimate
    """Time-dependent AUC, weighted for censoring."""


@dataclass(frozen=True, kw_only=True)
class EvaluationDetails:
    """Content of a page about new rows."""

    title: str
    decision: Decision
    calibration: list[Calibration] = field(default_factory=list)
    cross_site: CrossSite | None = None
    groups: list[GroupScores] = field(default_factory=list)
    horizon: list[HorizonScores] = field(default_factory=list)
    """Scores at a horizon, of survival."""
    min_count: int = 0
    """Groups with fewer rows are not shown."""
