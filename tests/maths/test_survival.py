"""Survival at a horizon: tables by hand, sums over sites, and scikit-survival."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.training.survival import (
    Floats,
    RiskTable,
    brier_score,
    censoring_survival,
    common_edges,
    event_probability,
    hazard_at,
    horizon_auc,
    log_level,
    observed_probability,
)


def cohort(num_rows: int = 300, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Times in whole days, so that there are ties; a third is censored."""
    random = np.random.default_rng(seed)
    h = random.normal(size=num_rows)
    due = random.exponential(400 * np.exp(-h))
    until = random.exponential(700, num_rows)
    time = np.ceil(np.minimum(due, until) / 5) * 5
    return time, (due <= until).astype(np.float64), h


def test_a_table_by_hand() -> None:
    """Four rows: events at 2 and 4, censored at 3 and 9."""
    time = np.array([2.0, 3, 4, 9])
    event = np.array([1.0, 0, 1, 0])
    h = np.log(np.array([1.0, 2, 3, 4]))
    table = RiskTable.of(time, event, h, np.array([2.0, 4, 6]))
    assert table.events.tolist() == [1, 1, 0]
    assert table.at_risk.tolist() == [4, 3, 1]
    assert table.risk.tolist() == pytest.approx([10, 9, 4])
    assert table.survival().tolist() == pytest.approx([3 / 4, 1 / 2, 1 / 2])
    assert table.cumulative_hazard().tolist() == pytest.approx([1 / 10, 19 / 90, 19 / 90])


def test_sums_of_sites_are_the_table_of_all() -> None:
    time, event, h = cohort()
    edges = common_edges(float(time.max()))
    parts = [RiskTable.of(time[k::3], event[k::3], h[k::3], edges) for k in range(3)]
    whole = RiskTable.of(time, event, h, edges)
    summed = RiskTable.total(parts)
    np.testing.assert_allclose(summed.cumulative_hazard(), whole.cumulative_hazard(), rtol=1e-12)
    np.testing.assert_allclose(summed.survival(), whole.survival(), rtol=1e-12)


def test_edges_are_round_and_reach_the_longest_time() -> None:
    assert common_edges(7125.3)[-1] == 7200
    assert common_edges(0.0123)[-1] == pytest.approx(0.013)
    assert (np.diff(common_edges(38.0)) > 0).all()


def test_bins_are_nearly_exact() -> None:
    time, event, h = cohort(2000)
    exact = RiskTable.of(time, event, h, np.unique(time))
    binned = RiskTable.of(time, event, h, common_edges(float(time.max())))
    for horizon in (200.0, 500.0, 1000.0):
        truth = hazard_at(exact.edges, exact.cumulative_hazard(), np.array([horizon]))
        found = hazard_at(binned.edges, binned.cumulative_hazard(True), np.array([horizon]))
        assert found == pytest.approx(truth, rel=0.02)
        curve = exact.survival()[np.searchsorted(exact.edges, horizon, side="right") - 1]
        place = np.searchsorted(binned.edges, horizon)
        assert binned.survival(True)[place] == pytest.approx(curve, abs=0.02)


def test_probabilities_and_levels() -> None:
    assert event_probability(math.log(2), np.zeros(1)) == pytest.approx(0.5)
    assert event_probability(0.1, np.array([1e4, -1e4])).tolist() == pytest.approx([1, 0])
    assert log_level(10, 10) == 0
    assert log_level(0, 1e9) > 0 > log_level(1e9, 0)
    assert abs(log_level(1.0, 2.0)) < abs(log_level(100.0, 200.0))  # few events change little


def test_without_censoring_scores_are_the_usual_ones() -> None:
    time = np.array([1.0, 2, 3, 4])
    event = np.ones(4)
    p = np.array([0.9, 0.2, 0.4, 0.1])
    assert brier_score(time, event, p, 2.5) == pytest.approx(
        np.mean([0.1**2, 0.8**2, 0.4**2, 0.1**2])
    )
    assert horizon_auc(time, event, p, 2.5) == pytest.approx(3 / 4)
    assert observed_probability(time, event, 2.5)[0] == 0.5
    assert observed_probability(time, 0 * event, 2.5) == (0, 0, pytest.approx(3.8416 / 5.8416))
    assert math.isnan(horizon_auc(time, event, p, 0.5))
    assert math.isnan(brier_score(time, event, p, 9.0))


def structured(time: Floats, event: Floats) -> Any:
    return np.array(
        list(zip(event > 0, time, strict=True)), dtype=[("event", bool), ("time", float)]
    )


@pytest.fixture
def sksurv() -> Any:
    return pytest.importorskip("sksurv", reason="scikit-survival is not installed")


def test_curves_are_those_of_scikit_survival(sksurv: Any) -> None:
    from sksurv.linear_model.coxph import BreslowEstimator
    from sksurv.nonparametric import kaplan_meier_estimator

    time, event, h = cohort()
    edges = np.unique(time)
    curve = RiskTable.of(time, event, np.zeros_like(time), edges).survival()
    expected_edges, expected = kaplan_meier_estimator(event > 0, time)
    np.testing.assert_array_equal(edges, expected_edges)
    np.testing.assert_allclose(curve, expected, rtol=1e-12)
    reverse = kaplan_meier_estimator(event > 0, time, reverse=True)
    np.testing.assert_allclose(censoring_survival(time, event, edges), reverse[1], atol=1e-12)
    breslow = BreslowEstimator().fit(h, event > 0, time).cum_baseline_hazard_
    found = RiskTable.of(time, event, h, edges).cumulative_hazard()
    np.testing.assert_allclose(found, breslow(edges), rtol=1e-12)


@pytest.mark.parametrize("horizon", [100.0, 400.0, 800.0])
def test_scores_are_those_of_scikit_survival(sksurv: Any, horizon: float) -> None:
    from sksurv import metrics

    time, event, h = cohort()
    table = RiskTable.of(time, event, h, np.unique(time))
    level = float(hazard_at(table.edges, table.cumulative_hazard(), np.array([horizon]))[0])
    p = event_probability(level, h)
    y = structured(time, event)
    expected = metrics.brier_score(y, y, 1 - p, horizon)[1][0]
    assert brier_score(time, event, p, horizon) == pytest.approx(expected, rel=1e-10)
    area = metrics.cumulative_dynamic_auc(y, y, h, horizon)[0][0]
    assert horizon_auc(time, event, h, horizon) == pytest.approx(area, rel=1e-10)


def test_observed_share_and_interval_are_those_of_scikit_survival(sksurv: Any) -> None:
    from sksurv.nonparametric import kaplan_meier_estimator

    time, event, _ = cohort()
    times, curve, interval = kaplan_meier_estimator(event > 0, time, conf_type="log-log")
    place = np.searchsorted(times, 400.0, side="right") - 1
    share, low, high = observed_probability(time, event, 400.0)
    assert share == pytest.approx(1 - curve[place])
    assert low == pytest.approx(1 - interval[1, place], abs=1e-4)
    assert high == pytest.approx(1 - interval[0, place], abs=1e-4)
