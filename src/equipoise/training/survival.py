"""Survival at a horizon: from summed tables of events to probabilities, and their scores.

A site tells, for bins of time that all sites agree on, how many had the event, how many were at
risk, and the sum of their risks. These tables are summed; single times stay at the site. The sums
give the Kaplan-Meier curve and Breslow's baseline hazard

    H(t) = sum over bins b up to t of events_b / (sum of exp(h_i) over those at risk in b)

(Breslow, discussion of Cox, 1972), and the probability of the event by t is
1 - exp(-H(t) exp(h)). With one bin for each different time both are the usual estimates; in wider
bins those who leave count half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_TIME_BINS = 200
"""Bins between 0 and the longest follow-up, on which all sites agree."""
PRIOR_EVENTS = 5.0
"""Events that pull a site's own level towards that of the federation."""


# ------------------------------------------------------------------ tables


@dataclass(frozen=True)
class RiskTable:
    """Events and persons at risk in bins of time; tables of sites are added.

    Attributes:
        edges: Right ends of the bins ``[B]``, ascending. A time on an edge is in the bin before.
        events: Events in each bin ``[B]``.
        at_risk: Persons who reached each bin ``[B]``.
        risk: Sum of their risks exp(h) ``[B]``.
    """

    edges: Floats
    events: Floats
    at_risk: Floats
    risk: Floats

    @staticmethod
    def of(time: Floats, event: Floats, log_risk: Floats, edges: Floats) -> RiskTable:
        """Count the rows of one site.

        Args:
            time: Time of the event or of censoring ``[n]``.
            event: 1 if the event was observed ``[n]``.
            log_risk: Log relative hazards h ``[n]``.
            edges: Right ends of the bins ``[B]``.
        """
        num_bins = len(edges)
        place = np.searchsorted(edges, time, side="left")
        had_event = _sums(place, event, num_bins + 1)[:num_bins]
        count = _sums(place, np.ones_like(event), num_bins + 1)
        risk = _sums(place, np.exp(log_risk), num_bins + 1)
        return RiskTable(
            edges, had_event, _sum_from_here(count)[:num_bins], _sum_from_here(risk)[:num_bins]
        )

    @staticmethod
    def total(tables: Sequence[RiskTable]) -> RiskTable:
        """Add the tables of sites, which have the same bins."""
        first = tables[0]
        return RiskTable(
            first.edges,
            np.sum([table.events for table in tables], axis=0),
            np.sum([table.at_risk for table in tables], axis=0),
            np.sum([table.risk for table in tables], axis=0),
        )

    def survival(self, spread: bool = False) -> Floats:
        """Return the Kaplan-Meier curve at the edges ``[B]``.

        Args:
            spread: Whether times are spread over their bins, instead of being at the edges. Half of
                those who are censored in a bin are then not at risk (the actuarial estimate).
        """
        at_risk = self.at_risk
        if spread:
            at_risk = at_risk - (_leaving(at_risk) - self.events) / 2
        return np.asarray(np.cumprod(1 - _ratio(self.events, at_risk)), np.float64)

    def cumulative_hazard(self, spread: bool = False) -> Floats:
        """Return Breslow's cumulative baseline hazard at the edges ``[B]``.

        Args:
            spread: Whether times are spread over their bins. Half of the risk of those who leave in
                a bin then counts.
        """
        risk = self.risk
        if spread:
            risk = risk - _leaving(risk) / 2
        hazard: Floats = np.cumsum(_ratio(self.events, risk))
        return hazard


def _sums(interval: NDArray[np.int64], values: Floats, num_bins: int) -> Floats:
    """Return the sum of values in each bin."""
    return np.bincount(interval, weights=values, minlength=num_bins).astype(np.float64)


def _ratio(events: Floats, number: Floats) -> Floats:
    """Return events by number, 0 where there is nobody."""
    return np.divide(events, number, out=np.zeros_like(events), where=number > 0)


def _leaving(values: Floats) -> Floats:
    """Return what leaves in each bin."""
    leaving: Floats = values - np.append(values[1:], 0.0)
    return leaving


def _sum_from_here(values: Floats) -> Floats:
    """Return the sums of each value and all after it."""
    sums: Floats = np.cumsum(values[::-1])[::-1]
    return sums


def common_edges(longest: float) -> Floats:
    """Return the bins on which sites agree: equal steps to the longest follow-up.

    Args:
        longest: Longest follow-up of all sites. It is rounded up to two digits, so that it is
            nobody's own time.
    """
    digits = 10.0 ** (math.floor(math.log10(longest)) - 1)
    end = math.ceil(longest / digits) * digits
    return np.linspace(0, end, NUM_TIME_BINS + 1)[1:]


def hazard_at(edges: Floats, hazard: Floats, times: Floats) -> Floats:
    """Interpolate a cumulative hazard between the edges; it is 0 at time 0.

    Args:
        edges: Right ends of the bins ``[B]``.
        hazard: Cumulative hazard at the edges ``[B]``.
        times: Times ``[n]``.

    Returns:
        Hazards ``[n]``; after the last edge the last one.
    """
    hazards: Floats = np.interp(times, np.append(0.0, edges), np.append(0.0, hazard))
    return hazards


def log_level(expected: float, observed: float) -> float:
    """Return by how much a site's hazard is above what is expected, as a logarithm.

    It is log((O + a) / (E + a)) with a = PRIOR_EVENTS: few events change little.

    Args:
        expected: Events that the federation's hazard expects on the site's rows.
        observed: Events on these rows.
    """
    return math.log((observed + PRIOR_EVENTS) / (expected + PRIOR_EVENTS))


def event_probability(hazard: float, log_risk: Floats) -> Floats:
    """Return 1 - exp(-H exp(h)), the probability of the event by the time of H ``[n]``."""
    probability: Floats = -np.expm1(-hazard * np.exp(np.clip(log_risk, -700, 700)))
    return probability


# ------------------------------------------------------------------ scores at a horizon


def censoring_survival(time: Floats, event: Floats, at: Floats) -> Floats:
    """Return the probability G to be uncensored after some times.

    Where events and censoring have the same time, events come first.

    Args:
        time: Times of all rows ``[n]``.
        event: 1 if the event was observed ``[n]``.
        at: Times at which G is wanted ``[m]``.

    Returns:
        G ``[m]``.
    """
    edges = np.unique(time)
    table = RiskTable.of(time, 1 - event, np.zeros_like(time), edges)
    place = np.searchsorted(edges, time)
    events = np.bincount(place, weights=event, minlength=len(edges))
    at_risk = table.at_risk - events
    share = np.divide(table.events, at_risk, out=np.zeros_like(at_risk), where=at_risk > 0)
    curve = np.append(1.0, np.cumprod(1 - share))
    probabilities: Floats = curve[np.searchsorted(edges, at, side="right")]
    return probabilities


def brier_score(time: Floats, event: Floats, probability: Floats, horizon: float) -> float:
    """Return the Brier score at a horizon, weighted for censoring (Graf et al., 1999).

    Args:
        time: Times ``[n]``.
        event: 1 if the event was observed ``[n]``.
        probability: Predicted probability of the event by the horizon ``[n]``.
        horizon: The horizon.

    Returns:
        The score, 0 is best; NaN if nobody is observed beyond the horizon.
    """
    is_case, is_control, weight = _weights(time, event, horizon)
    errors = np.where(is_case, (1 - probability) ** 2, probability**2) * weight
    if not is_control.any():
        return math.nan
    return float(errors[is_case | is_control].sum() / len(time))


def horizon_auc(time: Floats, event: Floats, log_risk: Floats, horizon: float) -> float:
    """Return the cumulative/dynamic AUC at a horizon, weighted for censoring (Uno et al., 2007).

    Cases had the event by the horizon, controls are observed beyond it; equal risks count half.

    Args:
        time: Times ``[n]``.
        event: 1 if the event was observed ``[n]``.
        log_risk: Predicted risks, in any scale ``[n]``.
        horizon: The horizon.

    Returns:
        The area; NaN without cases or controls.
    """
    is_case, is_control, weight = _weights(time, event, horizon)
    if not is_case.any() or not is_control.any():
        return math.nan
    controls = np.sort(log_risk[is_control])
    below = np.searchsorted(controls, log_risk[is_case], side="left")
    up_to = np.searchsorted(controls, log_risk[is_case], side="right")
    share = (below + up_to) / (2 * len(controls))
    return float(np.average(share, weights=weight[is_case]))


def _weights(
    time: Floats, event: Floats, horizon: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
    """Return cases, controls, and weights 1 / G; rows that are censored before count 0."""
    is_case = (time <= horizon) & (event > 0)
    is_control = time > horizon
    g = censoring_survival(time, event, np.where(is_control, horizon, time))
    weight = np.divide(1.0, g, out=np.zeros_like(g), where=(g > 0) & (is_case | is_control))
    return is_case, is_control, weight


def observed_probability(time: Floats, event: Floats, horizon: float) -> tuple[float, float, float]:
    """Return the share with the event by a horizon, by Kaplan-Meier, with its 95 % interval.

    The interval is Greenwood's on the log(-log) scale. Without events it reaches from 0 to Wilson's
    upper end for those who were observed beyond the horizon.

    Args:
        time: Times ``[n]``.
        event: 1 if the event was observed ``[n]``.
        horizon: The horizon.
    """
    had_event = (time <= horizon) & (event > 0)
    if not had_event.any():
        beyond = int((time > horizon).sum())
        return 0.0, 0.0, 1.96**2 / (beyond + 1.96**2)
    edges = np.unique(time[time <= horizon])
    table = RiskTable.of(time, event, np.zeros_like(time), edges)
    survival = float(table.survival()[-1])
    if not 0 < survival < 1:
        return 1 - survival, math.nan, math.nan
    left = table.at_risk - table.events
    terms = np.divide(
        table.events, table.at_risk * left, out=np.zeros_like(left), where=table.at_risk * left > 0
    )
    spread = 1.96 * math.sqrt(float(terms.sum())) / abs(math.log(survival))
    low = 1 - survival ** math.exp(-spread)
    high = 1 - survival ** math.exp(spread)
    return 1 - survival, low, high
