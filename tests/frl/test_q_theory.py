"""Occupancies, mixing times, predictions and slopes, against closed forms."""

import numpy as np
import pytest

from equipoise.environments import tabular_mdp as mdps
from equipoise.environments import tabular_q, theory
from equipoise.environments.tabular_mdp import preferred_action_policies
from equipoise.utils.errors import UsageError


def two_state_chain(leave0, leave1):
    return mdps.make_mdp([[[1 - leave0, leave0]], [[leave1, 1 - leave1]]], [[0.0], [1.0]])


ONE = np.ones((2, 1))


def test_stationary_law_and_mixing_time_of_a_two_state_chain():
    mdp = two_state_chain(0.1, 0.3)
    np.testing.assert_allclose(theory.occupancy(mdp, ONE)[:, 0], [0.75, 0.25], atol=1e-14)
    # the distance after t steps from the worst start is 0.75 * 0.6^t: 0.75 .45 .27 .162
    assert theory.mixing_time(mdp, ONE) == 3


@pytest.mark.parametrize("leave", [0.5, 0.2, 0.01, 0.001])
def test_mixing_time_matches_a_linear_search(leave):
    mdp = two_state_chain(leave, leave)
    t, distance = 0, 0.5
    while distance > 0.25:
        t, distance = t + 1, distance * abs(1 - 2 * leave)
    assert theory.mixing_time(mdp, ONE) == t


@pytest.mark.parametrize("seed", range(5))
def test_mixing_time_from_every_state_and_action_by_brute_force(seed):
    mdp = mdps.garnet(seed, 7, 3, 2)
    policy = preferred_action_policies(mdp, 1, 0.2)[0]
    stationary, step = (
        theory.occupancy(mdp, policy).sum(axis=1),
        np.einsum("sa,sat->st", policy, mdp.P),
    )
    rows, t = mdp.P.reshape(-1, 7), 1
    while 0.5 * np.abs(rows - stationary).sum(axis=1).max() > 0.25:
        rows, t = rows @ step, t + 1
    assert theory.mixing_time(mdp, policy) == t


def test_periodic_and_disconnected_chains_never_mix():
    assert theory.mixing_time(two_state_chain(1.0, 1.0), ONE) == float("inf")
    np.testing.assert_allclose(theory.occupancy(two_state_chain(1.0, 1.0), ONE)[:, 0], [0.5, 0.5])
    assert theory.mixing_time(two_state_chain(0.0, 0.0), ONE) == float("inf")


def test_transient_states_have_no_occupancy():
    np.testing.assert_array_equal(
        theory.occupancy(two_state_chain(0.2, 0.0), ONE)[:, 0], [0.0, 1.0]
    )


def test_occupancy_is_what_the_kernel_visits():
    mdp = mdps.garnet(1, 6, 3, 3)
    pi = preferred_action_policies(mdp, 2, 0.5)
    problem = tabular_q.TabularProblem([mdp], 2, pi)
    state = tabular_q.init_state(problem, 50, seed=0)
    tabular_q.run_local_steps(problem, state, 0, 0.1, 20_000)
    share = state.counts.sum(axis=1) / 1_000_000
    for k in range(2):
        np.testing.assert_allclose(share[k], theory.occupancy(mdp, pi[k]), atol=2e-3)


def test_coverage_from_equal_to_disjoint_policies():
    mdp = mdps.two_state(0)
    equal = theory.coverage(mdp, preferred_action_policies(mdp, 20, 1.0))
    assert equal.c_het == pytest.approx(1.0)
    assert equal.mu_min == pytest.approx(equal.mu_avg)
    disjoint = theory.coverage(mdp, preferred_action_policies(mdp, 20, 0.0))
    assert disjoint.mu_min == 0.0
    assert disjoint.c_het == pytest.approx(20.0)
    assert disjoint.mu_avg == pytest.approx(0.02, rel=0.3)
    assert disjoint.t_mix == 1.0


def test_predictions():
    cover = theory.Coverage(mu_min=0.0, mu_avg=0.02, c_het=20.0, t_mix=1.0)
    assert theory.predicted_samples("fedsynq", 0.9, 0.1, 10) == pytest.approx(1e6)
    assert theory.predicted_samples("fedasynq-im", 0.9, 0.1, 10, cover) == pytest.approx(5e7)
    assert theory.predicted_samples("fedasynq-eq", 0.9, 0.1, 10, cover) == pytest.approx(1e9)
    uncovered = theory.Coverage(0.0, 0.0, 20.0, 1.0)
    assert theory.predicted_samples("fedasynq-im", 0.9, 0.1, 10, uncovered) == float("inf")
    with pytest.raises(UsageError, match="theory knows"):
        theory.predicted_samples("fedavg", 0.9, 0.1, 10, cover)
    with pytest.raises(UsageError, match="coverage"):
        theory.predicted_samples("fedasynq-im", 0.9, 0.1, 10)


def test_fit_slope():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    slope, error = theory.fit_slope(x, 3 * x**-0.5)
    assert slope == pytest.approx(-0.5)
    assert error == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(UsageError, match="three points"):
        theory.fit_slope([1, 2], [1, 2])


@pytest.mark.slow
def test_fedsynq_slopes_in_agents_and_in_steps():
    """Predicted -1/2 in K and T with eta = 14 / ((1 - gamma) T): within 0.06."""
    mdp = mdps.garnet(0, 5, 3, 5)

    def error(K, T):
        problem = tabular_q.TabularProblem([mdp], K)
        state = tabular_q.init_state(problem, 60, seed=1, random_start=False)
        for _ in range(T // 5):
            tabular_q.run_local_steps(problem, state, 1, 14 / (0.1 * T), 5)
            tabular_q.synchronise(state, "equal", 0.1)
        return tabular_q.normalised_errors(state.table, mdp).mean()

    Ks, Ts = [1, 2, 4, 8, 16, 32], [1000, 2000, 4000, 8000, 16000]
    in_K = theory.fit_slope(Ks, [error(K, 4000) for K in Ks])[0]
    in_T = theory.fit_slope(Ts, [error(4, T) for T in Ts])[0]
    assert abs(in_K + 0.5) < 0.06
    assert abs(in_T + 0.5) < 0.06
