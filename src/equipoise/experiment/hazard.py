"""Baseline hazard of a survival run: from log relative hazards to probabilities at a horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    PERSONAL,
    RowOutputs,
    estimate,
)
from equipoise.records.decision import Estimate
from equipoise.records.evaluation import Calibration, CalibrationBin, HorizonScores
from equipoise.records.run_dir import RunFolder
from equipoise.training.survival import (
    Floats,
    RiskTable,
    brier_score,
    common_edges,
    event_probability,
    hazard_at,
    horizon_auc,
    log_level,
    observed_probability,
)
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.record import Record, from_json

NUM_REPLICATES = 200
"""Bootstrap samples of scores at a horizon."""
MAX_BINS = 5
"""Bins of a calibration curve at a horizon: each needs events for its Kaplan-Meier estimate."""
ROWS_PER_BIN = 40


class BaselineHazard(Record, frozen=True):
    """Cumulative baseline hazard of a federation, from the summed tables of its sites.

    Attributes:
        edges: Times at which it is known, ascending.
        hazard: Cumulative hazard there, of a row whose log relative hazard is 0.
        survival: Kaplan-Meier curve of all sites there.
        levels: By kind of model and client, what is added to the log relative hazard: models of
            single sites have a level of their own. Of others, 0.
    """

    edges: tuple[float, ...]
    hazard: tuple[float, ...]
    survival: tuple[float, ...]
    levels: dict[str, dict[int, float]]

    def probability(
        self, model: str, client: int | None, log_risk: Floats, horizon: float
    ) -> Floats:
        """Return the probability of the event by a horizon ``[n]``.

        Args:
            model: Kind of model.
            client: Whose model it is; None for the global one.
            log_risk: Log relative hazards ``[n]``.
            horizon: Time after the start, in the unit of the target.

        Raises:
            UsageError: If the horizon is not within the follow-up.
        """
        self.check(horizon)
        level = 0.0 if client is None else self.levels.get(model, {}).get(client, 0.0)
        hazard = hazard_at(np.array(self.edges), np.array(self.hazard), np.array([horizon]))
        return event_probability(float(hazard[0]), log_risk + level)

    def check(self, horizon: float) -> None:
        """Raise ``UsageError`` if the horizon is not within the follow-up.

        Args:
            horizon: The time up to which the event counts.

        Raises:
            UsageError: If the horizon is not within the follow-up.
        """
        if not 0 < horizon <= self.edges[-1]:
            raise UsageError(
                f"the horizon is {horizon:g}: must be above 0 and within the follow-up, up to "
                f"{self.edges[-1]:g}"
            )


def read_hazard(folder: RunFolder) -> BaselineHazard | None:
    """Read the baseline hazard of a run; None without one."""
    if not folder.hazard.exists():
        return None
    return from_json(BaselineHazard, folder.hazard.read_text(), f"'{folder.hazard}'")


def fit_hazard(
    rows: RowOutputs, ids: Sequence[int], federation: BaselineHazard | None = None
) -> BaselineHazard:
    """Estimate the baseline hazard from summed tables, and the levels of single models.

    The common curve rests on the global model, else on personal models whose mean risk is 1 at
    each site. The level of a site's own model follows from observed and expected events there.

    Args:
        rows: What all kinds of models say about training rows.
        ids: Number of each site of the rows.
        federation: Curve to keep; None to estimate one from these rows.

    Returns:
        The hazard.
    """
    time = rows.y[:, 0].double().numpy()
    event = rows.y[:, 1].double().numpy()
    log_risks = {
        model: values.double().squeeze(-1).numpy() for model, values in rows.outputs.items()
    }
    own = [np.flatnonzero(rows.site == site) for site in range(len(ids))]
    reference = log_risks.get(GLOBAL)
    if reference is None:
        reference = np.zeros_like(time)
        for places in own:
            reference[places] = _centre(log_risks[PERSONAL][places])
    if federation is None:
        edges = common_edges(float(time.max()))
        tables = [
            RiskTable.of(time[places], event[places], reference[places], edges) for places in own
        ]
        total = RiskTable.total(tables)
        federation = BaselineHazard(
            tuple(edges.tolist()),
            tuple(total.cumulative_hazard(spread=True).tolist()),
            tuple(total.survival(spread=True).tolist()),
            {},
        )
    expected = hazard_at(np.array(federation.edges), np.array(federation.hazard), time)
    levels: dict[str, dict[int, float]] = {}
    for model, log_risk in log_risks.items():
        if model == GLOBAL:
            continue
        levels[model] = {}
        for client, places in zip(ids, own, strict=True):
            offset = _log_sum(reference[places]) - _log_sum(log_risk[places])
            number = float((expected[places] * np.exp(log_risk[places] + offset)).sum())
            level = offset + log_level(number, float(event[places].sum()))
            levels[model][int(client)] = level
    return BaselineHazard(federation.edges, federation.hazard, federation.survival, levels)


def _centre(log_risk: Floats) -> Floats:
    """Shift log risks so that the mean risk is 1."""
    return log_risk - _log_sum(log_risk) + math.log(len(log_risk))


def _log_sum(log_risk: Floats) -> float:
    """Return log sum exp."""
    return float(torch.logsumexp(torch.from_numpy(log_risk), 0))


# ------------------------------------------------------------------ scores at a horizon


def horizon_scores(
    y: NDArray[np.float64], probabilities: dict[str, Floats], horizon: float
) -> tuple[list[HorizonScores], list[Calibration]]:
    """Score predicted probabilities at a horizon: Brier score, AUC and calibration.

    Args:
        y: Times and events ``[n, 2]``.
        probabilities: Probabilities of the event by the horizon ``[n]``, by kind of model. NaN
            where a row has no such model.
        horizon: The horizon.

    Returns:
        Scores with 95 % intervals over rows, and calibration curves; both by model.
    """
    random = rng.generator(0, rng.BOOTSTRAP)
    draws = random.integers(0, len(y), (NUM_REPLICATES, len(y)))
    samples = [np.arange(len(y)), *draws]
    scores = []
    curves = []
    for model, probability in probabilities.items():
        if not np.isfinite(probability).all():
            continue
        brier = [brier_score(*_select_rows(y, probability, rows), horizon) for rows in samples]
        area = [horizon_auc(*_select_rows(y, probability, rows), horizon) for rows in samples]
        scores.append(
            HorizonScores(
                model=model,
                horizon=horizon,
                brier=estimate(np.array(brier)),
                auc=Estimate(math.nan) if model == CONSTANT else estimate(np.array(area)),
            )
        )
        if model != CONSTANT:
            curves.append(_calibration(model, y, probability, horizon))
    return scores, curves


def _select_rows(
    y: NDArray[np.float64], probability: Floats, rows: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """Return times, events and probabilities of some rows."""
    return y[rows, 0], y[rows, 1], probability[rows]


def _calibration(
    model: str, y: NDArray[np.float64], probability: Floats, horizon: float
) -> Calibration:
    """Compare predicted probabilities with Kaplan-Meier estimates in bins of rows."""
    num_bins = max(1, min(MAX_BINS, len(y) // ROWS_PER_BIN))
    order = np.argsort(probability, kind="stable")
    bins = []
    for rows in np.array_split(order, num_bins):
        observed = observed_probability(y[rows, 0], y[rows, 1], horizon)
        bins.append(
            CalibrationBin(
                predicted=float(probability[rows].mean()),
                observed=Estimate(*observed),
                rows=len(rows),
            )
        )
    return Calibration(
        model=model,
        of=f"probability of the event by {horizon:g}",
        bins=bins,
        mean_predicted=float(probability.mean()),
        mean_observed=observed_probability(y[:, 0], y[:, 1], horizon)[0],
    )
