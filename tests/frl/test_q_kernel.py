"""The compiled kernels against a straightforward Python implementation, to the bit."""

import numba
import numpy as np
import pytest

from equipoise.environments import tabular_kernels, tabular_q
from equipoise.environments import tabular_mdp as mdps
from equipoise.environments.tabular_mdp import behaviour_policies, preferred_action_policies
from equipoise.utils.errors import UsageError

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw(key, t, table, row):
    """Outcome number t of a stream, by the alias table of one distribution."""
    x = mix((int(key) + (t + 1) * GOLDEN) & MASK)
    cell = (x >> 32) * table.threshold.shape[-1] >> 32
    return int(table.outcome[row][cell][int((x & 0xFFFFFFFF) >= table.threshold[row][cell])])


def plain_q_learning(problem, seed, eta, steps, q, s, k=0, sim=0, sims=1, first=0):
    """One agent, one table, one loop: what every textbook says."""
    keys = [
        tabular_kernels.stream_keys(seed, stream, problem.agents, sims)[k * sims + sim]
        for stream in (0, 1)
    ]
    e, mdp = int(problem.env_of[k]), problem.mdp
    q, visits = [[float(v) for v in row] for row in q], np.zeros(mdp.R.shape, int)
    for t in range(first, first + steps):
        a = draw(keys[1], t, problem.policy_alias, (k, s))
        s2 = draw(keys[0], t, problem.transitions, (e, s, a))
        target = float(problem.reward[e, s, a]) + float(problem.discount[e, s2]) * max(q[s2])
        q[s][a] = (1.0 - eta) * q[s][a] + eta * target
        visits[s, a] += 1
        s = s2
    return np.array(q), visits, s


CASES = {
    "two-state, fixed": (mdps.two_state(1), "fixed"),
    "two-state, uniform": (mdps.two_state(1), "uniform"),
    "garnet, epsilon": (mdps.garnet(2, 7, 3, 4), "epsilon"),
    "garnet, fixed": (mdps.garnet(2, 7, 3, 4), "fixed"),
    "one action": (mdps.garnet(4, 3, 1, 2), "uniform"),
    "deterministic": (mdps.garnet(4, 5, 2, 1), "epsilon"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_agent_is_plain_q_learning_to_the_bit(case):
    mdp, kind = CASES[case]
    problem = tabular_q.TabularProblem([mdp], 1, behaviour_policies(kind, mdp, 1, 0.4))
    for rule in tabular_q.AVERAGING_RULES:
        state = tabular_q.init_state(problem, sims=1, seed=9)
        start, position = state.q[0, 0].copy(), int(state.position[0, 0])
        for _ in range(6):
            tabular_q.run_local_steps(problem, state, 9, eta=0.3, tau=35)
            if rule != "targets":  # recovering a target and applying it again costs the last bits
                tabular_q.synchronise(state, rule, 0.3)
        expected, visits, end = plain_q_learning(problem, 9, 0.3, 210, start, position)
        np.testing.assert_array_equal(state.q[0, 0], expected)
        assert int(state.position[0, 0]) == end
        if rule == "targets":
            np.testing.assert_array_equal(state.counts[0, 0], visits)
            tabular_q.synchronise(state, rule, 0.3)
            np.testing.assert_allclose(state.table[0], expected, rtol=1e-12)


def test_every_agent_and_simulation_walks_its_own_path():
    mdp = mdps.garnet(2, 7, 3, 4)
    problem = tabular_q.TabularProblem([mdp], 3, preferred_action_policies(mdp, 3, 0.5))
    state = tabular_q.init_state(problem, sims=4, seed=1)
    before = state.q.copy(), state.position.copy()
    tabular_q.run_local_steps(problem, state, 1, eta=0.1, tau=50)
    for k in range(3):
        for sim in range(4):
            q, visits, s = plain_q_learning(
                problem, 1, 0.1, 50, before[0][k, sim], int(before[1][k, sim]), k, sim, 4
            )
            np.testing.assert_array_equal(state.q[k, sim], q)
            np.testing.assert_array_equal(state.counts[k, sim], visits)
            assert s == state.position[k, sim]


def test_trajectories_do_not_notice_where_a_period_ends():
    mdp = mdps.garnet(2, 7, 3, 4)
    for kind in ("fixed", "uniform"):
        problem = tabular_q.TabularProblem([mdp], 5, behaviour_policies(kind, mdp, 5, 0.0))
        whole, parts = (tabular_q.init_state(problem, sims=3, seed=1) for _ in range(2))
        tabular_q.run_local_steps(problem, whole, 1, 0.1, 60)
        for tau in (1, 9, 50):
            tabular_q.run_local_steps(problem, parts, 1, 0.1, tau)
        for name in ("q", "counts", "position"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_fixed_and_random_kernels_agree_on_fixed_actions():
    mdp = mdps.garnet(3, 6, 4, 3)
    problem = tabular_q.TabularProblem([mdp], 5, preferred_action_policies(mdp, 5, 0.0))
    fixed, general = (tabular_q.init_state(problem, sims=5, seed=2) for _ in range(2))
    tabular_q.run_local_steps(problem, fixed, 2, 0.2, 80)
    agent, env = np.repeat(np.arange(5), 5), np.zeros(25, np.int64)
    keys = [tabular_kernels.stream_keys(2, stream, 5, 5) for stream in (0, 1)]
    views = [x.reshape(25, *x.shape[2:]) for x in (general.q, general.counts, general.position)]
    tabular_kernels.walk_random(
        *views, agent, env, *keys, *problem.policy_alias, *problem.tables, 80, 0.2
    )
    np.testing.assert_array_equal(fixed.q, general.q)
    np.testing.assert_array_equal(fixed.counts, general.counts)


@pytest.mark.parametrize("kind", ["fixed", "epsilon", None])
def test_result_does_not_depend_on_the_number_of_threads(kind):
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one core only")
    mdp = mdps.garnet(3, 6, 4, 3)
    problem = tabular_q.TabularProblem(
        [mdp], 13, None if kind is None else behaviour_policies(kind, mdp, 13, 0.3)
    )
    results, before = [], numba.get_num_threads()
    for threads in (1, 2):
        numba.set_num_threads(threads)
        state = tabular_q.init_state(problem, sims=11, seed=2)
        for rule in tabular_q.AVERAGING_RULES:
            tabular_q.run_local_steps(problem, state, 2, 0.2, 20)
            tabular_q.synchronise(state, rule, 0.2)
        results.append(state)
    numba.set_num_threads(before)
    np.testing.assert_array_equal(results[0].q, results[1].q)


def test_a_simulation_does_not_depend_on_how_many_there_are():
    mdp = mdps.garnet(3, 6, 4, 3)
    problem = tabular_q.TabularProblem([mdp], 4, preferred_action_policies(mdp, 4, 0.5))
    few, many = tabular_q.init_state(problem, 2, seed=5), tabular_q.init_state(problem, 9, seed=5)
    for state in (few, many):
        tabular_q.run_local_steps(problem, state, 5, 0.1, 40)
        tabular_q.synchronise(state, "importance", 0.1)
    np.testing.assert_array_equal(few.table, many.table[:2])


def test_seeds_change_the_result():
    mdp = mdps.garnet(3, 6, 4, 3)
    problem = tabular_q.TabularProblem([mdp], 4, preferred_action_policies(mdp, 4, 0.5))
    tables = []
    for seed in (0, 1):
        state = tabular_q.init_state(problem, 1, seed=0, random_start=False)
        tabular_q.run_local_steps(problem, state, seed, 0.1, 40)
        tables.append(state.q)
    assert (tables[0] != tables[1]).any()


@pytest.mark.parametrize("cells", [1, 2, 3, 50])
def test_alias_tables_hold_the_distribution(cells):
    rng = np.random.default_rng(cells)
    p = np.zeros((20, 60))
    for row in p:
        row[rng.permutation(60)[:cells]] = rng.dirichlet(np.full(cells, 0.3))
    p /= p.sum(axis=1, keepdims=True)
    table = tabular_kernels.alias_tables(p)
    share = (table.threshold.astype(float) + (table.threshold == 2**32 - 1)) / 2**32
    width, back = table.threshold.shape[1], np.zeros_like(p)
    for row in range(20):
        np.add.at(back[row], table.outcome[row, :, 0], share[row] / width)
        np.add.at(back[row], table.outcome[row, :, 1], (1 - share[row]) / width)
    np.testing.assert_allclose(back, p, atol=2**-31)


def test_draws_follow_the_probabilities():
    # one state, visits of each action under a known policy: within 5 standard deviations of their
    # expectation
    mdp = mdps.make_mdp(np.ones((1, 4, 1)), np.zeros((1, 4)))
    pi = np.array([0.1, 0.2, 0.3, 0.4])
    problem = tabular_q.TabularProblem([mdp], 1, pi.reshape(1, 1, 4))
    state = tabular_q.init_state(problem, sims=1, seed=0)
    n = 1_000_000
    tabular_q.run_local_steps(problem, state, 0, 0.1, n)
    assert (np.abs(state.counts[0, 0, 0] - n * pi) < 5 * np.sqrt(n * pi * (1 - pi))).all()


def test_start_states_follow_the_start_distribution():
    mdp = mdps.make_mdp(np.full((3, 1, 3), 1 / 3), np.zeros((3, 1)), start=[0.0, 0.25, 0.75])
    problem = tabular_q.TabularProblem([mdp], 10, np.ones((10, 3, 1)))
    seen = np.bincount(tabular_q.initial_states(problem, 1000, seed=4).ravel(), minlength=3)
    assert seen[0] == 0
    assert abs(seen[1] - 2500) < 5 * np.sqrt(10000 * 0.25 * 0.75)


def test_random_first_tables_are_independent_and_in_range():
    mdp = mdps.two_state(0)
    problem = tabular_q.TabularProblem([mdp], 20, preferred_action_policies(mdp, 20, 0.0))
    q = tabular_q.init_state(problem, sims=50, seed=0).q
    assert q.min() > 0
    assert q.max() <= 10
    assert abs(q.mean() - 5) < 5 * 10 / np.sqrt(12 * q.size)
    assert len(np.unique(q)) == q.size


def test_synchronous_sweep_against_plain_python():
    mdp = mdps.garnet(2, 5, 3, 4)
    problem = tabular_q.TabularProblem([mdp], 2)
    state = tabular_q.init_state(problem, sims=2, seed=3)
    q = state.q[1, 0].copy()
    key = tabular_kernels.stream_keys(3, 0, 2, 2)[2]
    for tau in (4, 3):
        tabular_q.run_local_steps(problem, state, 3, 0.2, tau)
    for t in range(7):
        ahead = mdp.discount * q.max(axis=1)
        for s in range(5):
            for a in range(3):
                s2 = draw(key, (t * 5 + s) * 3 + a, problem.transitions, (0, s, a))
                q[s, a] = (1.0 - 0.2) * q[s, a] + 0.2 * (mdp.R[s, a] + ahead[s2])
    np.testing.assert_array_equal(state.q[1, 0], q)


def test_synchronous_with_period_one_is_one_learner_with_a_k_sample_target():
    mdp, K = mdps.garnet(2, 5, 3, 4), 6
    problem = tabular_q.TabularProblem([mdp], K)
    state = tabular_q.init_state(problem, sims=1, seed=3, random_start=False)
    keys, q = tabular_kernels.stream_keys(3, 0, K, 1), np.zeros((5, 3))
    for t in range(30):
        tabular_q.run_local_steps(problem, state, 3, 0.2, 1)
        tabular_q.synchronise(state, "equal", 0.2)
        ahead, new = mdp.discount * q.max(axis=1), q.copy()
        for s in range(5):
            for a in range(3):
                nexts = [
                    draw(keys[k], (t * 5 + s) * 3 + a, problem.transitions, (0, s, a))
                    for k in range(K)
                ]
                new[s, a] = 0.8 * q[s, a] + 0.2 * np.mean(mdp.R[s, a] + ahead[nexts])
        q = new
    np.testing.assert_allclose(state.table[0], q, rtol=1e-13)


@pytest.mark.parametrize("kind", ["epsilon", None])
def test_agents_with_their_own_mdps(kind):
    ms = [mdps.garnet(seed, 4, 2, 2) for seed in range(3)]
    policies = None if kind is None else preferred_action_policies(ms[0], 3, 0.5)
    together = tabular_q.TabularProblem(ms, 3, policies)
    state = tabular_q.init_state(together, 1, seed=1)
    before = state.q.copy(), state.position.copy()
    tabular_q.run_local_steps(together, state, 1, 0.2, 40)
    for k in range(3):
        alone = tabular_q.TabularProblem([ms[k]], 3, policies)
        single = tabular_q.init_state(alone, 1, seed=1)
        single.q[:], single.position[:] = before
        tabular_q.run_local_steps(alone, single, 1, 0.2, 40)
        np.testing.assert_array_equal(state.q[k], single.q[k])


def test_learning_reaches_q_star():
    mdp = mdps.garnet(2, 5, 3, 4)
    for policies, rule in (
        (None, "equal"),
        *((preferred_action_policies(mdp, 8, 0.5), rule) for rule in tabular_q.AVERAGING_RULES),
    ):
        problem = tabular_q.TabularProblem([mdp], 8, policies)
        state = tabular_q.init_state(problem, 4, seed=0)
        start = tabular_q.normalised_errors(state.table, mdp).mean()
        for _ in range(400):
            tabular_q.run_local_steps(problem, state, 0, 0.05, 25)
            tabular_q.synchronise(state, rule, 0.05)
        assert tabular_q.normalised_errors(state.table, mdp).mean() < min(0.03, start / 5)


def test_bad_usage_is_refused():
    mdp = mdps.two_state(0)
    with pytest.raises(UsageError, match="at least one"):
        tabular_q.TabularProblem([mdp], 0)
    with pytest.raises(UsageError, match="2 MDPs for 3 agents"):
        tabular_q.TabularProblem([mdp, mdp], 3)
    with pytest.raises(UsageError, match="differ in their numbers"):
        tabular_q.TabularProblem([mdp, mdps.garnet(0, 3, 2, 2)], 2)
    with pytest.raises(UsageError, match="shape"):
        tabular_q.TabularProblem([mdp], 2, np.ones((2, 2, 3)) / 3)
    with pytest.raises(UsageError, match="sum to 1"):
        tabular_q.TabularProblem([mdp], 2, np.ones((2, 2, 20)))
    problem = tabular_q.TabularProblem([mdp], 2, preferred_action_policies(mdp, 2, 0.0))
    with pytest.raises(UsageError, match="simulations is 0"):
        tabular_q.init_state(problem, 0, seed=0)
    state = tabular_q.init_state(problem, 1, seed=0)
    for eta in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="strictly between 0 and 1"):
            tabular_q.run_local_steps(problem, state, 0, eta, 5)
    with pytest.raises(UsageError, match="at least one step"):
        tabular_q.run_local_steps(problem, state, 0, 0.1, 0)
    with pytest.raises(UsageError, match="no averaging rule"):
        tabular_q.synchronise(state, "median", 0.1)
