"""Environments over all agents at once, against Gymnasium's own, step by step."""

import numpy as np
import pytest
import torch

from equipoise.frl.deep.physics import Acrobot, CartPole
from equipoise.frl.deep.worlds import PhysicsWorld

BOTH = [CartPole(), Acrobot()]
U = np.array([0.02, 0.3, 0.5, 0.97])


@pytest.mark.parametrize("physics", BOTH, ids=lambda p: p.gym_id)
def test_every_step_is_gymnasiums(physics):
    """From the same state the same action leads to the same state, reward and end, in every agent's environment."""
    rng, lengths = np.random.default_rng(0), physics.length(U)[:, None]
    twins = [physics.twin(float(length)) for length in lengths[:, 0]]
    for number, twin in enumerate(twins):
        twin.reset(seed=number)
    state = np.stack([np.asarray(twin.unwrapped.state, np.float64) for twin in twins])[:, None]
    ended = 0
    for _ in range(700):
        action = rng.integers(physics.actions, size=(len(U), 1))
        state, reward, over = physics.step(state, action, lengths)
        seen = physics.observe(state)
        for k, twin in enumerate(twins):
            theirs, their_reward, terminated, truncated, _ = twin.step(int(action[k, 0]))
            np.testing.assert_allclose(state[k, 0], twin.unwrapped.state, rtol=0, atol=1e-12)
            np.testing.assert_allclose(seen[k, 0], theirs, rtol=0, atol=1e-6)
            assert (reward[k, 0], over[k, 0]) == (their_reward, terminated)
            if terminated or truncated:
                ended += 1
                twin.reset(seed=100 * ended)
            state[k, 0] = twin.unwrapped.state  # the next step starts from the very same state
    assert ended > 3


def test_cartpole_is_gymnasiums_to_the_bit_over_whole_episodes():
    physics, lengths = CartPole(), np.array([[0.7]])
    for seed in range(5):
        twin = physics.twin(0.7)
        twin.reset(seed=seed)
        state = twin.unwrapped.state[None, None]
        over = False
        while not over:
            action = int(state[0, 0, 2] > 0)
            state, _, ends = physics.step(state, np.array([[action]]), lengths)
            _, _, terminated, truncated, _ = twin.step(action)
            assert (state[0, 0] == twin.unwrapped.state).all()
            assert bool(ends[0, 0]) == terminated
            over = terminated or truncated


def test_lengths_are_those_of_the_papers():
    assert CartPole().length(np.array([0.0, 0.5, 1.0])) == pytest.approx([0.1, 0.5, 0.9])
    assert Acrobot().length(np.array([0.0, 0.5, 1.0])) == pytest.approx([0.5, 1.0, 1.5])
    for physics in BOTH:  # and they matter
        state, action = np.full((2, 1, 4), 0.05), np.zeros((2, 1), int)
        short, long = physics.step(state, action, physics.length(np.array([[0.1], [0.9]])))[0]
        assert np.abs(short - long).max() > 1e-3


@pytest.mark.parametrize("physics", BOTH, ids=lambda p: p.gym_id)
def test_an_episode_is_cut_after_500_steps_and_starts_anew(physics):
    world = PhysicsWorld(physics, np.array([0.5, 0.5]))
    play = world.begin(torch.arange(2), np.full((2, 3, 4), 0.5))
    draws = np.random.default_rng(1).random((2, 3, 4))
    still = np.zeros((2, 3, 4)) if isinstance(physics, CartPole) else np.full((2, 3, 4), 0.01)
    for step in range(1, 501):
        play.state = still.copy()  # held upright, or down, so that only the clock ends it
        moved = play.step(np.ones((2, 3)), draws)
        assert not moved.terminated.any()
        assert moved.truncated.all() == (step == 500)
    np.testing.assert_array_equal(play.state, physics.start(draws))
    units = np.array(physics.usual, np.float32)
    np.testing.assert_array_equal(play.seen, physics.observe(physics.start(draws)) / units)
    assert (moved.following != play.seen).any()
    assert (play.clock == 0).all()


def test_only_the_episode_that_ended_starts_anew():
    world = PhysicsWorld(CartPole(), np.array([0.5]))
    play = world.begin(torch.arange(1), np.full((1, 2, 4), 0.5))
    play.state[0, 1, 2] = 0.2  # about to fall
    play.state[0, 1, 3] = 3.0
    moved = play.step(np.zeros((1, 2)), np.full((1, 2, 4), 0.9))
    assert moved.terminated.tolist() == [[False, True]]
    np.testing.assert_allclose(play.state[0, 1], 0.04)
    assert play.clock.tolist() == [[1, 0]]
    assert moved.following[0, 1, 2] > 2.0  # in units of 0.1 rad


def test_a_world_goes_on_where_it_was_left():
    world = PhysicsWorld(Acrobot(), U)
    ids, draws = torch.tensor([2, 0]), np.random.default_rng(0).random((2, 3, 4))
    rng = np.random.default_rng(2)
    actions = rng.integers(3, size=(20, 2, 3))
    kept = world.fresh(ids, 3, seed=5)
    whole = world.open(ids, kept, draws)
    for action in actions:
        whole.step(action, draws)
    for action in actions:
        play = world.open(ids, kept, draws)
        play.step(action, draws)
        kept = play.kept()
    assert (kept["state"].numpy() == whole.kept()["state"].numpy()).all()
    assert kept["clock"].tolist() == whole.kept()["clock"].tolist() == [[20] * 3] * 2
