"""Averaging rules: hand-computed numbers and the identities of the paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.environments import tabular_mdp as mdps
from equipoise.environments import tabular_q
from equipoise.environments.tabular_mdp import preferred_action_policies

COUNTS = st.lists(st.integers(0, 400), min_size=1, max_size=8)


def combine(rule, q, counts, eta, base=None, current=None):
    q = np.asarray(q, float)
    base = np.zeros_like(q) if base is None else np.asarray(base, float)
    current = np.zeros(q.shape[1:]) if current is None else np.asarray(current, float)
    counts = np.asarray(counts, np.int64)
    sent = tabular_q.evidence(q, counts, base, eta) if rule == "targets" else q
    return tabular_q.average_tables(rule, sent, counts, current, eta)


def test_hand_computed_weights():
    q, counts = [[8.0, 1.0], [2.0, 3.0]], [[2, 0], [0, 0]]
    np.testing.assert_allclose(combine("equal", q, counts, 0.5), [5, 2])
    np.testing.assert_allclose(combine("importance", q, counts, 0.5), [(4 * 8 + 2) / 5, 2])
    # agent 1: d = 1/4, started from 4, so its mean target is (8 - 1) / (3/4) = 28/3; agent 2 never
    # visited
    base, current = [[4.0, 9.0], [4.0, 9.0]], [4.0, 9.0]
    np.testing.assert_allclose(combine("targets", q, counts, 0.5, base, current), [8, 9])
    np.testing.assert_allclose(
        combine("targets", q, counts, 0.5, base, [0.0, 9.0]), [28 / 3 * 3 / 4, 9]
    )  # the same evidence on a table that has moved on


@given(COUNTS, st.floats(0.001, 0.99))
@settings(deadline=None)
def test_weight_left_on_the_old_table(visits, eta):
    """Targets 0 and an old table of 1: what remains is the weight of the old table, known in closed
    form.
    """
    n = np.array(visits)[:, None]
    q = (1 - eta) ** n.astype(float)
    np.testing.assert_allclose(
        combine("equal", q, n, eta), np.mean((1 - eta) ** n.astype(float)), rtol=1e-9
    )
    logs = -n * np.log1p(-eta)
    closed = np.exp(np.log(len(n)) - (logs.max() + np.log(np.exp(logs - logs.max()).sum())))
    np.testing.assert_allclose(combine("importance", q, n, eta), closed, rtol=1e-9, atol=1e-300)


@given(st.integers(1, 8), st.integers(0, 50), st.floats(0.001, 0.99), st.integers(0, 10_000))
@settings(deadline=None)
def test_equal_counts_make_all_rules_equal(agents, visits, eta, seed):
    rng = np.random.default_rng(seed)
    q, base = rng.normal(size=(agents, 3, 2, 4)), rng.normal(size=(3, 2, 4))
    counts = np.full(q.shape, visits)
    expected = combine("equal", q, counts, eta)
    np.testing.assert_array_equal(combine("importance", q, counts, eta), expected)
    if visits:
        got = combine("targets", q, counts, eta, np.broadcast_to(base, q.shape).copy(), base)
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("rule", ["importance", "targets"])
@pytest.mark.parametrize("eta", [1e-6, 0.05, 0.999999])
def test_a_million_visits_overflow_nothing(rule, eta):
    q = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    counts = [[1_000_000, 0], [0, 0], [999_999, 1_000_000]]
    out = combine(rule, q, counts, eta)
    assert np.isfinite(out).all()
    if rule == "importance":
        first = (
            (1 + 3 * (1 - eta)) / (2 - eta) if eta > 1e-3 else None
        )  # the unvisited agent has vanished
        if first is not None:
            np.testing.assert_allclose(out, [first, 3.0], rtol=1e-12)


def test_importance_is_the_softmax_of_counts():
    rng = np.random.default_rng(0)
    q, counts = rng.normal(size=(5, 40)), rng.integers(0, 60, (5, 40))
    logits = -counts * np.log1p(-0.07)
    weights = np.exp(logits - logits.max(axis=0))
    np.testing.assert_allclose(
        combine("importance", q, counts, 0.07),
        (weights * q).sum(axis=0) / weights.sum(axis=0),
        rtol=1e-12,
    )


@given(st.integers(1, 300), st.floats(0.001, 0.9))
@settings(deadline=None)
def test_weight_of_a_target_mean_is_its_effective_sample_size(visits, eta):
    """(1 - d)/(1 + d) is (sum w)^2 / sum w^2 of the weights that N visits leave in a table, up to a
    common factor.
    """
    w = (1 - eta) ** np.arange(visits)
    effective = w.sum() ** 2 / (w**2).sum() * eta / (2 - eta)
    d = (1 - eta) ** visits
    np.testing.assert_allclose((1 - d) / (1 + d), effective, rtol=1e-9)


def test_targets_recover_what_a_late_agent_saw():
    """An agent that saw the constant target 7 moves the table towards 7 from wherever the table
    stands by now.
    """
    eta, n, old, now = 0.1, 12, 3.0, 6.0
    d = (1 - eta) ** n
    late = d * old + (1 - d) * 7.0
    np.testing.assert_allclose(
        combine("targets", [[late]], [[n]], eta, [[old]], [now]), [d * now + (1 - d) * 7.0]
    )


def test_absent_agents_walk_on_and_only_the_present_are_averaged():
    mdp = mdps.two_state(0)
    problem = tabular_q.TabularProblem([mdp], 4, preferred_action_policies(mdp, 4, 0.0))
    state = tabular_q.init_state(problem, 2, seed=0)
    tabular_q.run_local_steps(problem, state, 0, 0.1, 10)
    before, counts = state.q.copy(), state.counts.copy()
    tabular_q.synchronise(state, "equal", 0.1, np.array([1, 3]))
    np.testing.assert_allclose(state.table, (before[1] + before[3]) / 2)
    np.testing.assert_array_equal(state.q[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(state.counts[[0, 2]], counts[[0, 2]])
    np.testing.assert_array_equal(state.q[1], state.table)
    assert state.counts[1].sum() == 0
    tabular_q.run_local_steps(problem, state, 0, 0.1, 10)
    assert state.counts[0].sum() == 40
    assert state.counts[1].sum() == 20
    table = state.table.copy()
    tabular_q.synchronise(state, "equal", 0.1, np.array([], np.int64))
    np.testing.assert_array_equal(state.table, table)


def test_bytes_of_a_synchronisation():
    mdp = mdps.two_state(0)
    assert tabular_q.downlink_bytes(mdp) == 2 * 20 * 8
    assert tabular_q.uplink_bytes("equal", mdp) == 320
    assert (
        tabular_q.uplink_bytes("importance", mdp) == tabular_q.uplink_bytes("targets", mdp) == 640
    )
