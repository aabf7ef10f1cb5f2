"""Linear values: steps by hand, the plain Python oracle, normalisation, angles, and families with
known truth.
"""

import numpy as np
import pytest
import torch

from equipoise.environments import linear_mdp
from equipoise.environments.linear_mdp import greedy_regret, value_error
from equipoise.environments.tabular_mdp import (
    epsilon_greedy_policy,
    evenly_spaced,
    garnet,
    gymnasium_mdp,
    make_mdp,
    mdp_under_policy,
    planted_mdps,
    planted_weights,
    windy_cliff_mdps,
)
from equipoise.environments.theory import occupancy
from equipoise.tasks.rl_linear import WindyCliffConfig
from equipoise.utils import rng as random
from equipoise.utils.errors import UsageError


def walked(problem, phi, theta, steps, rate, moves, at=None, seed=0, relative=False):
    """Stacks after so many steps of every agent."""
    ids = np.arange(problem.agents)
    stack = torch.tensor(phi, dtype=torch.float64).expand(problem.agents, -1, -1).clone()
    weights = torch.tensor(theta, dtype=torch.float64).expand(problem.agents, -1).clone()
    position = torch.from_numpy(
        problem.initial_states(seed) if at is None else np.full(len(ids), at)
    )
    every = torch.full((len(ids),), steps), torch.full((len(ids),), rate, dtype=torch.float64)
    keys = problem.rng_keys(seed, ids, np.zeros_like(ids))
    sq_td_error = torch.zeros(len(ids), dtype=torch.float64)
    how = keys, np.zeros_like(ids), *every, (*moves, relative)
    linear_mdp.advance(problem, ids, stack, weights, position, sq_td_error, *how)
    return stack, weights, position


def cycle():
    """0 -> 1 -> 0 with rewards 1 and -2: no randomness."""
    return make_mdp([[[0.0, 1.0]], [[1.0, 0.0]]], [[1.0], [-2.0]], gamma=0.5)


PHI, THETA = [[1.0, 2.0], [0.5, -1.0]], [2.0, 1.0]


@pytest.mark.parametrize(
    ("moves", "phi", "theta"),
    [  # from state 0: delta = 1 + 0.5 * (0.5 * 2 - 1 * 1) - (1 * 2 + 2 * 1) = -3
        ((False, True), PHI, [2.0 - 0.3 * 1, 1.0 - 0.3 * 2]),
        ((True, False), [[1.0 - 0.3 * 2, 2.0 - 0.3 * 1], PHI[1]], THETA),
        ((True, True), [[1.0 - 0.3 * 2, 2.0 - 0.3 * 1], PHI[1]], [2.0 - 0.3 * 1, 1.0 - 0.3 * 2]),
    ],
)
def test_one_step_by_hand(moves, phi, theta):
    stack, weights, position = walked(
        linear_mdp.LinearProblem([cycle()], 2), PHI, THETA, 1, 0.1, moves, at=0
    )
    torch.testing.assert_close(stack[0], torch.tensor(phi, dtype=torch.float64))
    torch.testing.assert_close(weights[0], torch.tensor(theta, dtype=torch.float64))
    assert position.tolist() == [1]


def test_two_steps_by_hand():
    # theta after one step is (1.7, 0.4); from state 1: delta = -2 + 0.5 (1.7 + 0.8) - (0.85 - 0.4)
    # = -1.2
    _, weights, position = walked(
        linear_mdp.LinearProblem([cycle()], 2), PHI, THETA, 2, 0.1, (False, True), at=0
    )
    torch.testing.assert_close(
        weights[0], torch.tensor([1.7 - 0.12 * 0.5, 0.4 + 0.12], dtype=torch.float64)
    )
    assert position.tolist() == [0]


def test_a_relative_step_on_phi_by_hand():
    # delta = -3 as above: (-3 * 0.1) theta / (|theta|^2 + delta^2) = -0.3 (2, 1) / 14; the second
    # step from state 1 has
    # phi = (0.5, -1), delta = -2 + 0.5 (2 phi_00 + phi_01) - 0, and the mean of both squares below
    # it
    first = np.array(PHI[0]) - 0.3 * np.array(THETA) / (5 + 9)
    stack, _, _ = walked(
        linear_mdp.LinearProblem([cycle()], 2), PHI, THETA, 1, 0.1, (True, False), 0, relative=True
    )
    np.testing.assert_allclose(stack[0].numpy(), [first, PHI[1]], rtol=1e-12)
    delta = -2 + 0.5 * first @ THETA
    second = np.array(PHI[1]) + 0.1 * delta * np.array(THETA) / (5 + (9 + delta**2) / 2)
    stack, _, _ = walked(
        linear_mdp.LinearProblem([cycle()], 2), PHI, THETA, 2, 0.1, (True, False), 0, relative=True
    )
    np.testing.assert_allclose(stack[0].numpy(), [first, second], rtol=1e-12)


@pytest.mark.parametrize("actions", [1, 3])
def test_relative_steps_do_not_know_the_unit_of_rewards(actions):
    """Rewards in another unit, a power of two: the same representation to the bit, weights in that
    unit.
    """
    fade = 1 + np.arange(200) / 50.0
    rates, marks = np.stack([0.05 / fade ** (2 / 3), 1.0 / fade], axis=1), np.array([1, 200])
    found = []
    for unit in (1.0, 2.0**-20, 2.0**20):
        mdps = planted_mdps(0, evenly_spaced(4), 8, actions, 3, 2, 0.8)
        mdps = [make_mdp(mdp.P, unit * mdp.R, mdp.gamma) for mdp in mdps]
        phis, thetas = linear_mdp.run_federated(
            linear_mdp.LinearProblem(mdps, 2, 0.5), 0, rates, 5, marks, relative=True
        )
        found.append((phis, thetas / unit))
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1], found[0][1])


def test_q_learning_takes_the_best_next_action_by_hand():
    stay = make_mdp([[[1.0], [1.0]]], [[1.0, 3.0]], gamma=0.5)
    problem = linear_mdp.LinearProblem([stay], 1, epsilon=0.0)
    # greedy: action 0 with value 2 is better than action 1 with -2; delta = 1 + 0.5 * 2 - 2 = 0;
    # then theta is -1
    _, weights, _ = walked(problem, [[1.0], [-1.0]], [2.0], 1, 0.1, (False, True))
    assert weights.tolist() == [[2.0]]
    # theta = -1: action 1 with value 1; delta = 3 + 0.5 - 1 = 2.5; theta += 0.1 * 2.5 * (-1)
    _, weights, _ = walked(problem, [[1.0], [-1.0]], [-1.0], 1, 0.1, (False, True))
    assert weights.tolist() == [[-1.25]]


def plain(problem, k, phi, theta, steps, rate, moves, seed):
    """The same in plain Python, from the alias tables and the counter-based random numbers."""
    mdp, tables = problem.mdps[k], problem.tabular.transitions
    next_key, action_key = problem.rng_keys(seed, np.array([k]), np.array([0]))
    outcomes, choices = random.bits(next_key, steps)[0], random.bits(action_key, steps)[0]
    phi, theta, s, A = (
        phi.copy(),
        theta.copy(),
        int(problem.initial_states(seed)[k]),
        mdp.num_actions,
    )
    for x, y in zip(outcomes.tolist(), choices.tolist(), strict=True):
        a = 0
        if A > 1:
            explores = y % 2**32 < problem.epsilon * 2**32
            a = (y >> 32) * A >> 32 if explores else int((phi[s * A : s * A + A] @ theta).argmax())
        cell = (x >> 32) * tables.threshold.shape[3] >> 32
        to = int(tables.outcome[k, s, a, cell, int(x % 2**32 >= tables.threshold[k, s, a, cell])])
        row = s * A + a
        delta = (
            mdp.R[s, a]
            + mdp.discount[to] * (phi[to * A : to * A + A] @ theta).max()
            - phi[row] @ theta
        )
        old = phi[row].copy()
        if moves[0]:
            phi[row] = phi[row] + rate * delta * theta
        if moves[1]:
            theta = theta + rate * delta * old
        s = to
    return phi, theta, s


@pytest.mark.parametrize("moves", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("actions", [1, 3])
def test_the_kernel_is_plain_python(moves, actions):
    problem = linear_mdp.LinearProblem(
        planted_mdps(5, evenly_spaced(4), 6, actions, 2, 2, 0.8), 2, epsilon=0.4
    )
    rng = np.random.default_rng(0)
    phi, theta = rng.standard_normal((6 * actions, 2)), rng.standard_normal(2)
    stack, weights, position = walked(problem, phi, theta, 200, 0.05, moves, seed=3)
    for k in range(4):
        expected = plain(problem, k, phi, theta, 200, 0.05, moves, seed=3)
        np.testing.assert_allclose(stack[k].numpy(), expected[0], rtol=1e-10)
        np.testing.assert_allclose(weights[k].numpy(), expected[1], rtol=1e-10)
        assert int(position[k]) == expected[2]


def test_orthonormal_keeps_the_span_with_columns_of_one_size():
    phi = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 12, 3)))
    basis = linear_mdp.orthonormal(phi)
    torch.testing.assert_close(
        basis.mT @ basis, (12 / 3) * torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
    )
    turn = (
        (3 / 12) * basis.mT @ phi
    )  # R / sqrt(S/d): upper triangular, positive diagonal, phi = basis turn
    torch.testing.assert_close(basis @ turn, phi)
    assert float(turn.tril(-1).abs().max()) < 1e-12
    assert float(torch.diagonal(turn, dim1=1, dim2=2).min()) > 0
    torch.testing.assert_close(linear_mdp.orthonormal(basis), basis)


def test_refit_is_r_theta_for_values_of_the_old_basis_and_least_squares_for_others():
    rng = np.random.default_rng(2)
    phi, theta, other = (torch.from_numpy(rng.standard_normal(n)) for n in ((9, 2), (2,), (9,)))
    basis = linear_mdp.orthonormal(phi)
    torch.testing.assert_close(basis @ linear_mdp.fit_theta(basis, phi @ theta), phi @ theta)
    closest = torch.linalg.lstsq(basis, other[:, None]).solution[:, 0]
    torch.testing.assert_close(linear_mdp.fit_theta(basis, other), closest)


def test_a_representation_that_lost_a_column_is_completed():
    phi = torch.ones(6, 2, dtype=torch.float64)
    basis = linear_mdp.orthonormal(phi)
    torch.testing.assert_close(basis.T @ basis, 3 * torch.eye(2, dtype=torch.float64))
    assert (
        float(linear_mdp.subspace_distance(basis, torch.ones(6, 1, dtype=torch.float64) / 6**0.5))
        < 1e-12
    )


def test_distances_of_known_angles():
    eye = torch.eye(4, dtype=torch.float64)
    angle = torch.tensor(0.3, dtype=torch.float64)
    tilted = torch.stack([eye[0], torch.cos(angle) * eye[1] + torch.sin(angle) * eye[2]], 1)
    distance = linear_mdp.subspace_distance(
        torch.stack([eye[:, :2], tilted, eye[:, 2:], 7 * eye[:, :2]]), eye[:, :2]
    )
    torch.testing.assert_close(
        distance, torch.tensor([0.0, np.sin(0.3), 1.0, 0.0], dtype=torch.float64)
    )
    assert (
        float(linear_mdp.subspace_distance(eye[:, :2], eye[:, 1:2])) == 0
    )  # a line within the plane
    assert torch.isnan(
        linear_mdp.subspace_distance(torch.full((4, 2), torch.nan, dtype=torch.float64), eye[:, :2])
    )


def test_planted_values_are_exact_and_share_one_subspace():
    u = evenly_spaced(7)
    for actions in (1, 3):
        problem = linear_mdp.LinearProblem(planted_mdps(4, u, 10, actions, 3, 2, 0.9), 2)
        values = problem.true_values
        singular = torch.linalg.svdvals(values)
        assert float(singular[2] / singular[0]) < 1e-10
        assert problem.best_subspace.shape == (10 * actions, 2)
        assert (
            float(
                linear_mdp.value_error(
                    values @ problem.best_subspace @ problem.best_subspace.T, values
                ).max()
            )
            < 1e-10
        )
        for mdp in problem.mdps:  # the Bellman equation
            q = mdp.q_star
            np.testing.assert_allclose(q, mdp.R + 0.9 * mdp.P @ q.max(axis=1), atol=1e-10)
    assert (
        np.ptp([mdp.P[0, 0] for mdp in problem.mdps], axis=0).max() > 0.1
    )  # the agents' worlds do differ


def test_planted_agents_visit_every_state():
    for seed in (15, 16):  # draws that have states without a way to them, but for the jumps
        for mdp in planted_mdps(seed, evenly_spaced(3), 20, 1, 3, 2, 0.8):
            assert occupancy(mdp, np.ones((20, 1))).min() > 0.1 / 20 - 1e-9


def test_values_of_chains_in_closed_form():
    for mdp in planted_mdps(1, evenly_spaced(3), 8, 1, 3, 2, 0.9):
        closed = np.linalg.solve(np.eye(8) - 0.9 * mdp.P[:, 0], mdp.R[:, 0])
        np.testing.assert_allclose(mdp.q_star[:, 0], closed, atol=1e-10)


def test_planted_weights_are_as_diverse_for_few_agents_as_for_many():
    for agents in (3, 4, 50):
        weights = planted_weights(evenly_spaced(agents), 3)
        np.testing.assert_allclose(weights.T @ weights / agents, np.eye(3) / 3, atol=1e-12)


def test_one_agent_spans_one_dimension():
    assert linear_mdp.LinearProblem(
        planted_mdps(0, evenly_spaced(1), 8, 1, 3, 2, 0.9), 2
    ).best_subspace.shape == (8, 1)


def test_every_agent_wants_to_reach_a_goal_that_pays():
    """By default nobody is best off standing still, as most were without a reward at the goal and
    in stronger wind.
    """
    config = WindyCliffConfig()
    mdps = windy_cliff_mdps(evenly_spaced(16), config.wind, config.gamma, config.goal)
    for mdp in mdps:
        ends = mdp.discount == 0
        chain = mdp.P[np.arange(mdp.num_states), mdp.q_star.argmax(1)]
        chain[ends] = ends  # whoever is there stays
        assert float((mdp.start @ np.linalg.matrix_power(chain, 500))[ends].sum()) > 0.9
    above = 2 * 12 + 11  # the cell above the goal: one step down
    np.testing.assert_allclose(mdps[0].R[above, 2], config.goal - 0.01)


def test_errors_weighted_by_visits_by_hand():
    values, truth = torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, 1.0]])
    visits = torch.tensor([[0.8, 0.2]])
    expected = np.sqrt(0.8 * 1 + 0.2 * 16) / np.sqrt(0.8 * 4 + 0.2 * 1)
    assert float(value_error(values, truth, visits)) == pytest.approx(expected)
    assert float(value_error(values, truth)) == pytest.approx(np.sqrt(17) / np.sqrt(5))


def test_values_of_nan_are_the_worst_never_a_policy():
    mdp = windy_cliff_mdps(np.zeros(1), 0.2, 0.9, 1.0)[0]
    stack = {
        name: torch.from_numpy(getattr(mdp, name))[None] for name in ("P", "R", "discount", "start")
    }
    stack["best"] = torch.from_numpy(mdp.q_star.max(1))[None]
    values = torch.from_numpy(mdp.q_star)[None].clone()
    assert float(greedy_regret(stack, values)) == pytest.approx(0, abs=1e-10)
    values[0, 3, 1] = torch.nan
    assert float(greedy_regret(stack, values)) == torch.inf
    assert float(value_error(values.reshape(1, -1), torch.ones(1, values.numel()))) == torch.inf


def test_the_cliff_without_wind_is_gymnasiums():
    pytest.importorskip("gymnasium")
    theirs = gymnasium_mdp("cliff-walking")
    ours = windy_cliff_mdps(np.zeros(1), 0.5, theirs.gamma)[0]
    np.testing.assert_array_equal(ours.P, theirs.P)
    np.testing.assert_allclose(ours.R, theirs.R / 100)
    np.testing.assert_array_equal(ours.start, theirs.start)
    np.testing.assert_array_equal(ours.discount, theirs.discount)


def test_gusts_by_hand():
    calm, windy = windy_cliff_mdps(np.array([0.0, 0.8]), 0.5, 0.9)
    above, start = 2 * 12 + 5, 36  # the cell above the cliff, and where a fall ends
    np.testing.assert_allclose(windy.P[above, 1, above + 1], 0.6)
    np.testing.assert_allclose(windy.P[above, 1, start], 0.4)
    np.testing.assert_allclose(windy.R[above, 1], 0.6 * -0.01 + 0.4 * -1.0)
    assert (windy.q_star.max(axis=1) <= calm.q_star.max(axis=1) + 1e-12).all()


def test_values_under_a_policy_in_closed_form():
    mdp = garnet(3, 6, 4, 3)
    policy = epsilon_greedy_policy(mdp, 0.3)
    np.testing.assert_allclose(policy.sum(axis=1), 1.0)
    np.testing.assert_allclose(policy.max(axis=1), 0.7 + 0.3 / 4)
    chain = np.einsum("sa,sat->st", policy, mdp.P)
    closed = np.linalg.solve(np.eye(6) - mdp.gamma * chain, (policy * mdp.R).sum(axis=1))
    np.testing.assert_allclose(mdp_under_policy(mdp, policy).q_star[:, 0], closed, atol=1e-10)


def test_regret_of_the_best_and_of_the_worst_action_by_hand():
    stay = make_mdp([[[1.0], [1.0]]], [[1.0, 3.0]], gamma=0.5)
    stack = {
        name: torch.from_numpy(getattr(stay, name))[None]
        for name in ("P", "R", "discount", "start")
    }
    stack["best"] = torch.from_numpy(stay.q_star.max(axis=1))[None]
    assert float(linear_mdp.greedy_regret(stack, torch.tensor([[[0.0, 1.0]]]))) == pytest.approx(
        0, abs=1e-11
    )
    assert float(linear_mdp.greedy_regret(stack, torch.tensor([[[1.0, 0.0]]]))) == pytest.approx(
        3 / 0.5 - 1 / 0.5
    )


def test_td_on_fixed_features_finds_the_projected_fixed_point():
    mdp = planted_mdps(2, evenly_spaced(1), 6, 1, 3, 2, 0.7)[0]
    problem = linear_mdp.LinearProblem([mdp], 2)
    phi = np.random.default_rng(5).standard_normal((6, 2))
    chain = mdp.P[:, 0]
    visits = np.linalg.matrix_power(chain, 500)[0]
    weighted = phi.T * visits
    closed = np.linalg.solve(weighted @ (phi - 0.7 * chain @ phi), weighted @ mdp.R[:, 0])
    _, rough, _ = walked(problem, phi, [0.0, 0.0], 2000, 0.05, (False, True))
    trail = []
    _, theta, _ = walked(problem, phi, rough[0].numpy(), 400, 0.002, (False, True))
    for seed in range(200):  # the mean over many short walks
        _, theta, _ = walked(problem, phi, theta[0].numpy(), 400, 0.002, (False, True), seed=seed)
        trail.append(theta[0].numpy())
    np.testing.assert_allclose(np.mean(trail[20:], axis=0), closed, atol=0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: evenly_spaced(0), "at least one"),
        (lambda: planted_mdps(0, evenly_spaced(2), 5, 1, 2, 6, 0.9), "planted rank is 6"),
        (lambda: windy_cliff_mdps(evenly_spaced(2), 1.5, 0.9), "wind is 1.5"),
        (lambda: linear_mdp.LinearProblem([cycle()], 3), "rank is 3"),
        (lambda: linear_mdp.LinearProblem([cycle()], 1, epsilon=2.0), "epsilon is 2.0"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()
