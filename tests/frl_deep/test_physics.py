"""Environments over all agents at once, against Gymnasium's own, step by step."""

import gymnasium
import numpy as np
import pytest
import torch

from equipoise.environments.classic_control import Acrobot, CartPole, Pendulum
from equipoise.environments.heterogeneity import (
    INTERFACE_TRAITS,
    PHYSICS_TRAITS,
    AgentInterface,
    BodyParams,
    parse_traits,
)
from equipoise.environments.vec_env import PhysicsVecEnv
from equipoise.utils.errors import UsageError

BOTH = [CartPole(), Acrobot()]
ALL = [*BOTH, Pendulum()]
U = np.array([0.02, 0.3, 0.5, 0.97])
PHYSICAL = ("length", "gravity", "mass", "motor", "reversed")


def bodies(physics, differ=("length",), u=U) -> BodyParams:
    return PhysicsVecEnv.from_traits(physics, u, differ).bodies


def twin(physics, own: BodyParams, k: int):
    """Gymnasium's environment with what is agent k's own."""
    env = gymnasium.make(physics.gym_id)
    body, length, gravity, mass, motor = (
        env.unwrapped,
        *(float(v[k, 0]) for v in (own.length, own.gravity, own.mass, own.motor)),
    )
    if isinstance(physics, CartPole):
        body.length, body.masspole, body.gravity, body.force_mag = (
            length,
            0.1 * mass,
            9.8 * gravity,
            10.0 * motor,
        )
        body.total_mass, body.polemass_length = (
            body.masspole + body.masscart,
            body.masspole * length,
        )
    elif isinstance(physics, Acrobot):
        body.LINK_LENGTH_1 = body.LINK_LENGTH_2 = length
        body.LINK_COM_POS_1 = body.LINK_COM_POS_2 = length / 2
        body.LINK_MASS_1 = body.LINK_MASS_2 = mass
        body.AVAIL_TORQUE = [-motor, 0.0, motor]
    else:
        body.l, body.m, body.g = length, mass, 10.0 * gravity
    return env


@pytest.mark.parametrize("physics", ALL, ids=lambda p: p.gym_id)
@pytest.mark.parametrize("differ", [("length",), PHYSICAL], ids=["lengths", "all"])
def test_every_step_is_gymnasiums(physics, differ):
    """From the same state the same action leads to the same state, reward and end, in every agent's
    environment.
    """
    if isinstance(physics, Acrobot):
        differ = tuple(name for name in differ if name != "gravity")  # a constant in their formulas
    rng, own = np.random.default_rng(0), bodies(physics, differ)
    twins = [twin(physics, own, k) for k in range(len(U))]
    for number, one in enumerate(twins):
        one.reset(seed=number)
    state = np.stack([np.asarray(one.unwrapped.state, np.float64) for one in twins])[:, None]
    ended = 0
    for _ in range(700):
        if physics.continuous:
            action = rng.uniform(-1, 1, (len(U), 1, 1))
            theirs = [2.0 * own.motor[k] * action[k, 0] for k in range(len(U))]
        else:
            action = rng.integers(physics.num_actions, size=(len(U), 1))
            theirs = [int(action[k, 0]) for k in range(len(U))]
        state, reward, over = physics.step(state, action, own)
        seen = physics.observe(state)
        for k, one in enumerate(twins):
            their_seen, their_reward, terminated, truncated, _ = one.step(theirs[k])
            np.testing.assert_allclose(state[k, 0], one.unwrapped.state, rtol=0, atol=1e-12)
            np.testing.assert_allclose(seen[k, 0], their_seen, rtol=0, atol=1e-6)
            assert reward[k, 0] == pytest.approx(their_reward, abs=1e-12)
            assert over[k, 0] == terminated
            if terminated or truncated:
                ended += 1
                one.reset(seed=100 * ended)
            state[k, 0] = one.unwrapped.state  # the next step starts from the very same state
    assert ended > 3


def test_cartpole_is_gymnasiums_to_the_bit_over_whole_episodes():
    physics = CartPole()
    own = bodies(physics, ("length",), np.array([0.75]))
    for seed in range(5):
        other = twin(physics, own, 0)
        other.reset(seed=seed)
        state = other.unwrapped.state[None, None]
        over = False
        while not over:
            action = int(state[0, 0, 2] > 0)
            state, _, ends = physics.step(state, np.array([[action]]), own)
            _, _, terminated, truncated, _ = other.step(action)
            assert (state[0, 0] == other.unwrapped.state).all()
            assert bool(ends[0, 0]) == terminated
            over = terminated or truncated


def test_goals_are_an_agents_own():
    """CartPole: 1 - distance to 2u - 1; Acrobot: height 1 + 0.8 (2u - 1); Pendulum: held at 0.3 (2u
    - 1) rad.
    """
    u = np.array([0.25, 0.75])
    own = [bodies(physics, ("goal",), u) for physics in ALL]
    state = np.zeros((2, 1, 4))
    state[..., 0] = -0.5
    np.testing.assert_allclose(CartPole().step(state, np.ones((2, 1)), own[0])[1][:, 0], [1.0, 0.0])
    raised = np.zeros((2, 1, 4))
    raised[..., 0] = 2.2  # height 0.59 + 0.59, between 0.6 and 1.4
    assert Acrobot().step(raised, np.ones((2, 1)), own[1])[2][:, 0].tolist() == [True, False]
    held = np.array([[[-0.15, 0.0]], [[-0.15, 0.0]]])
    np.testing.assert_allclose(
        Pendulum().step(held, np.zeros((2, 1, 1)), own[2])[1][:, 0], [0.0, -0.09], atol=1e-12
    )


def test_sensors_and_motors_of_an_agents_own():
    seen = np.arange(8.0, dtype=np.float32).reshape(2, 1, 4)
    mixed = AgentInterface.from_traits(("sensors", "offsets"), np.array([0.2, 0.7]), 4, seed=1)
    found = mixed.observe(seen)
    assert [sorted(row) for row in mixed.order.tolist()] == [[0, 1, 2, 3]] * 2
    assert mixed.order[0].tolist() != mixed.order[1].tolist()
    for k in range(2):
        np.testing.assert_array_equal(found[k, 0], seen[k, 0][mixed.order[k]] + mixed.offset[k])
    assert 0 < np.abs(mixed.offset).max() <= 0.5
    plain = AgentInterface.from_traits((), np.array([0.2, 0.7]), 4, seed=1)
    assert plain.observe(seen) is seen
    assert AgentInterface.from_traits(("motor", "reversed"), np.array([0.5, 0.5]), 4, 0).motor[
        :, 0
    ].tolist() == pytest.approx([0.7, -0.7])
    some = PhysicsVecEnv.from_traits(CartPole(), U, ("reversed",)).subset(
        np.array([1, 2])
    )  # held-out agents keep what is theirs
    assert some.bodies.motor[:, 0].tolist() == [-1.0, 1.0]


def test_unknown_traits_are_refused():
    assert parse_traits("length, reversed", (*PHYSICS_TRAITS, *INTERFACE_TRAITS)) == (
        "length",
        "reversed",
    )
    with pytest.raises(UsageError, match=r"there is no 'lenght' here .did you mean 'length'"):
        parse_traits("lenght", (*PHYSICS_TRAITS, *INTERFACE_TRAITS))
    with pytest.raises(UsageError, match="there is no 'gravity' here"):
        parse_traits("gravity", tuple(INTERFACE_TRAITS))


def test_lengths_are_those_of_the_papers():
    assert CartPole().agent_length(np.array([0.0, 0.5, 1.0])) == pytest.approx([0.1, 0.5, 0.9])
    assert Acrobot().agent_length(np.array([0.0, 0.5, 1.0])) == pytest.approx([0.5, 1.0, 1.5])
    for physics in BOTH:  # and they matter
        state, action = np.full((2, 1, 4), 0.05), np.zeros((2, 1), int)
        short, long = physics.step(
            state, action, bodies(physics, ("length",), np.array([0.1, 0.9]))
        )[0]
        assert np.abs(short - long).max() > 1e-3


@pytest.mark.parametrize("physics", BOTH, ids=lambda p: p.gym_id)
def test_an_episode_is_cut_after_500_steps_and_starts_anew(physics):
    world = PhysicsVecEnv.from_traits(physics, np.array([0.5, 0.5]))
    play = world.reset(torch.arange(2), np.full((2, 3, 4), 0.5))
    draws = np.random.default_rng(1).random((2, 3, 4))
    still = np.zeros((2, 3, 4)) if isinstance(physics, CartPole) else np.full((2, 3, 4), 0.01)
    for step in range(1, 501):
        play.state = still.copy()  # held upright, or down, so that only the clock ends it
        moved = play.step(np.ones((2, 3)), draws)
        assert not moved.terminated.any()
        assert moved.truncated.all() == (step == 500)
    np.testing.assert_array_equal(play.state, physics.initial_state(draws))
    units = np.array(physics.obs_scale, np.float32)
    np.testing.assert_array_equal(play.obs, physics.observe(physics.initial_state(draws)) / units)
    assert (moved.next_obs != play.obs).any()
    assert (play.clock == 0).all()


def test_only_the_episode_that_ended_starts_anew():
    world = PhysicsVecEnv.from_traits(CartPole(), np.array([0.5]))
    play = world.reset(torch.arange(1), np.full((1, 2, 4), 0.5))
    play.state[0, 1, 2] = 0.2  # about to fall
    play.state[0, 1, 3] = 3.0
    moved = play.step(np.zeros((1, 2)), np.full((1, 2, 4), 0.9))
    assert moved.terminated.tolist() == [[False, True]]
    np.testing.assert_allclose(play.state[0, 1], 0.04)
    assert play.clock.tolist() == [[1, 0]]
    assert moved.next_obs[0, 1, 2] > 2.0  # in units of 0.1 rad


def test_a_world_goes_on_where_it_was_left():
    world = PhysicsVecEnv.from_traits(Acrobot(), U)
    ids, draws = torch.tensor([2, 0]), np.random.default_rng(0).random((2, 3, 4))
    rng = np.random.default_rng(2)
    actions = rng.integers(3, size=(20, 2, 3))
    kept = world.init_state(ids, 3, seed=5)
    whole = world.resume(ids, kept, draws)
    for action in actions:
        whole.step(action, draws)
    for action in actions:
        play = world.resume(ids, kept, draws)
        play.step(action, draws)
        kept = play.state_dict()
    assert (kept["state"].numpy() == whole.state_dict()["state"].numpy()).all()
    assert kept["clock"].tolist() == whole.state_dict()["clock"].tolist() == [[20] * 3] * 2
