"""MDPs as arrays: validation, Q*, environments, behaviour policies."""

import numpy as np
import pytest

from equipoise.environments import tabular_mdp as mdps
from equipoise.environments.tabular_mdp import (
    behaviour_policies,
    preferred_action_policies,
    region_policies,
)
from equipoise.environments.theory import occupancy
from equipoise.utils.errors import UsageError


def test_q_star_of_a_hand_solved_chain():
    # state 0 pays 1 and stays, or (action 1) pays 0 and goes to state 1, which pays 3 for ever: V1
    # = 3/(1-.5) = 6
    P = [[[1, 0], [0, 1]], [[0, 1], [0, 1]]]
    mdp = mdps.make_mdp(P, [[1, 0], [3, 3]], gamma=0.5)
    np.testing.assert_allclose(mdp.q_star, [[1 + 0.5 * 3, 0.5 * 6], [6, 6]], atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_q_star_satisfies_bellman_to_1e_12(gamma):
    mdp = mdps.garnet(1, states=12, actions=4, branching=3, gamma=gamma)
    backed_up = mdp.R + mdp.P @ (mdp.discount * mdp.q_star.max(axis=1))
    scale = max(1.0, np.abs(mdp.q_star).max())
    assert np.abs(backed_up - mdp.q_star).max() <= 1e-12 * scale
    assert np.abs(backed_up - mdp.q_star).max() * gamma / (1 - gamma) <= 1e-12 * scale


def test_two_state_mdp_is_the_papers():
    mdp = mdps.two_state(seed=3)
    assert mdp.P.shape == (2, 20, 2)
    stay = mdp.P[[0, 1], :, [0, 1]]
    assert stay.min() >= 0.4
    assert stay.max() <= 0.6
    np.testing.assert_array_equal(mdp.R, np.repeat([[0.0], [1.0]], 20, axis=1))


def test_two_state_value_in_closed_form():
    # greedy: leave state 0 as often as possible (p), stay in state 1 as often as possible (r)
    mdp, g = mdps.two_state(seed=0), 0.9
    p, r = mdp.P[0, :, 1].max(), mdp.P[1, :, 1].max()
    v0, v1 = np.linalg.solve([[1 - g * (1 - p), -g * p], [-g * (1 - r), 1 - g * r]], [0, 1])
    np.testing.assert_allclose(mdp.q_star.max(axis=1), [v0, v1], atol=1e-11)


def test_garnet_has_the_asked_branching_and_is_reproducible():
    one, two = (mdps.garnet(5, 9, 3, 4) for _ in range(2))
    assert ((one.P > 0).sum(axis=2) == 4).all()
    np.testing.assert_array_equal(one.P, two.P)
    assert (one.P != mdps.garnet(6, 9, 3, 4).P).any()


def test_perturbed_of_strength_zero_is_the_same_mdp():
    mdp = mdps.garnet(5, 9, 3, 4)
    np.testing.assert_allclose(mdps.perturb(mdp, 1, 0.0).P, mdp.P, atol=1e-15)
    np.testing.assert_array_equal(mdps.perturb(mdp, 1, 0.0).R, mdp.R)
    assert np.abs(mdps.perturb(mdp, 1, 0.5).P - mdp.P).max() > 0.05


def test_terminal_states_restart_and_pass_no_value_back():
    # 0 -> 1 (terminal) with reward 1; the next episode's reward must not count
    P = [[[0, 1]], [[0, 1]]]
    mdp = mdps.make_mdp(P, [[1], [7]], gamma=0.9, start=[1, 0], terminal=np.array([False, True]))
    assert mdp.q_star[0, 0] == 1.0
    np.testing.assert_array_equal(mdp.P[1, 0], [1, 0])
    np.testing.assert_allclose(mdp.q_star[1, 0], 0.9, atol=1e-12)


GOOD = {"P": np.full((2, 2, 2), 0.5), "R": np.zeros((2, 2))}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"P": np.full((2, 2, 2), 0.4)}, "sums to 0.8"),
        ({"P": np.full((2, 2, 3), 0.5)}, "shape"),
        ({"P": np.array([[[1.5, -0.5]] * 2] * 2)}, "negative"),
        ({"P": np.full((2, 2, 2), np.nan)}, "not finite"),
        ({"R": np.array([[0, np.inf], [0, 0]])}, r"R\[0, 1\] is not finite"),
        ({"R": np.zeros((2, 3))}, "R has shape"),
        ({"R": [["a", "b"], ["c", "d"]]}, "not an array of numbers"),
        ({"gamma": 1.0}, "gamma"),
        ({"start": [0.5, 0.6]}, "start"),
        ({"terminal": [0, 1]}, "booleans"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(change, words):
    with pytest.raises(UsageError, match=words):
        mdps.make_mdp(**{**GOOD, **change})


def test_own_arrays_from_a_file(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **GOOD, gamma=0.8)
    assert mdps.load_mdp(path).gamma == 0.8
    assert mdps.load_mdp(path, gamma=0.7).gamma == 0.7
    np.savez(path, P=GOOD["P"])
    with pytest.raises(UsageError, match="lacks the array R"):
        mdps.load_mdp(path)
    np.savez(path, **GOOD, reward=1)
    with pytest.raises(UsageError, match="unknown array reward"):
        mdps.load_mdp(path)
    np.savez(path, **GOOD, gamma="high")
    with pytest.raises(UsageError, match="gamma must be one number"):
        mdps.load_mdp(path)
    path.write_text("no numpy file")
    with pytest.raises(UsageError, match="cannot be read"):
        mdps.load_mdp(path)
    with pytest.raises(UsageError, match="cannot be read"):
        mdps.load_mdp(tmp_path / "absent.npz")
    np.save(tmp_path / "single.npy", GOOD["P"])
    with pytest.raises(UsageError, match="cannot be read"):
        mdps.load_mdp(tmp_path / "single.npy")


@pytest.mark.parametrize(
    ("name", "states", "actions"),
    [("frozen-lake", 16, 4), ("cliff-walking", 38, 4), ("taxi", 404, 6)],
)
def test_toy_text_environments_by_their_tables(name, states, actions):
    pytest.importorskip("gymnasium")
    mdp = mdps.gymnasium_mdp(name)
    assert mdp.P.shape == (states, actions, states)
    assert (mdp.discount == 0).any()


def test_toy_text_values_that_can_be_counted_by_hand():
    pytest.importorskip("gymnasium")
    cliff = mdps.gymnasium_mdp("cliff-walking", gamma=0.9)  # 13 steps of -1 along the cliff's edge
    start = int(cliff.start.argmax())
    np.testing.assert_allclose(cliff.q_star[start].max(), -(1 - 0.9**13) / 0.1, atol=1e-10)
    lake = mdps.gymnasium_mdp(
        "frozen-lake", gamma=0.9, is_slippery=False
    )  # 6 steps, reward 1 on the last
    np.testing.assert_allclose(lake.q_star[0].max(), 0.9**5, atol=1e-12)
    with pytest.raises(UsageError, match="no toy-text environment"):
        mdps.gymnasium_mdp("chess")


def test_preferred_action_from_fixed_to_uniform():
    mdp = mdps.garnet(0, 4, 3, 2)
    pi = preferred_action_policies(mdp, 5, 0.3)
    np.testing.assert_allclose(pi.sum(axis=2), 1.0)
    np.testing.assert_allclose(pi[4, :, 1], 0.7 + 0.1)
    np.testing.assert_array_equal(behaviour_policies("fixed", mdp, 5, 0.5).max(axis=2), 1.0)
    np.testing.assert_allclose(behaviour_policies("uniform", mdp, 5, 0.5), 1 / 3)
    with pytest.raises(UsageError, match="epsilon"):
        preferred_action_policies(mdp, 5, 1.5)
    with pytest.raises(UsageError, match="no behaviour policy"):
        behaviour_policies("greedy", mdp, 5, 0.5)
    with pytest.raises(UsageError, match="at least one"):
        behaviour_policies("fixed", mdp, 0, 0.5)


@pytest.mark.parametrize("agents", [2, 3, 7])
def test_regions_are_covered_together_and_by_no_agent_alone(agents):
    mdp = mdps.garnet(2, 12, 3, 3)
    mu = np.stack([occupancy(mdp, policy) for policy in region_policies(mdp, agents)])
    assert (mu.min(axis=(1, 2)) == 0).all()
    assert mu.mean(axis=0).min() > 0
