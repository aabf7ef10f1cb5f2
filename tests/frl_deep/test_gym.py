"""Foreign environments through Gymnasium's vector environments, against our own physics."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.environments.gym_env import GymVecEnv, env_factories
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate

TINY = (
    "task",
    "agents",
    "parallel",
    "width",
    "capacity",
    "learning_starts",
    "epochs",
    "batch_size",
    "seed",
)
SMALL = {
    **{
        "task": "gym",
        "env_id": "CartPole-v1",
        "agents": 2,
        "parallel": 2,
        "width": 8,
        "capacity": 60,
        "learning_starts": 20,
    },
    **{
        "learning_starts": 20,
        "episodes": 2,
        "epochs": 15,
        "batch_size": 8,
        "lr": 0.01,
        "seed": 3,
        "return_high": 500.0,
    },
}


def test_steps_are_those_of_the_environment_itself():
    def twin(length):
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.length = length
        return env

    lengths = (0.2, 0.8)
    world = GymVecEnv([lambda length=length: twin(length) for length in lengths], 0, 500)
    assert (world.obs_dim, world.num_actions, world.max_episode_steps) == (4, 2, 500)
    rng = np.random.default_rng(0)
    draws = rng.random((2, 3, 1))
    play = world.reset(torch.arange(2), draws)
    twins = [[twin(length) for _ in range(3)] for length in lengths]
    seen = np.stack(
        [
            [twins[k][e].reset(seed=int(draws[k, e, 0] * 2**31))[0] for e in range(3)]
            for k in range(2)
        ]
    )
    ended = 0
    for _ in range(80):
        np.testing.assert_array_equal(play.obs, seen)
        action, draws = rng.integers(2, size=(2, 3)), rng.random((2, 3, 1))
        moved = play.step(action, draws)
        for k in range(2):
            for e in range(3):
                after, reward, terminated, _, _ = twins[k][e].step(int(action[k, e]))
                np.testing.assert_array_equal(moved.next_obs[k, e], after)
                assert (moved.reward[k, e], moved.terminated[k, e]) == (reward, terminated)
                if terminated:
                    ended += 1
                    after, _ = twins[k][e].reset(seed=int(draws[k, e, 0] * 2**31))
                seen[k, e] = after
    assert ended > 5


def test_agents_have_arguments_of_their_own():
    arguments = json.dumps([{"sutton_barto_reward": False}, {"sutton_barto_reward": True}])
    task = build_task(
        ExperimentConfig.from_options({**SMALL, "method": "dqn", "env_kwargs": arguments})
    )
    one = task.init_params(0)
    stack = {name: value.expand(2, *value.shape) for name, value in one.items()}
    plain, other = task.evaluate_stack(torch.arange(2), stack, "test")["return"].tolist()
    assert plain > 5
    assert other == -1  # nothing until the pole falls, then -1


def test_loop_equals_stacked_and_absent_agents_stand_still():
    both = []
    for executor in ("loop", "stacked"):
        settings = ExperimentConfig.from_options({**SMALL, "method": "pfeddqn-rep"})
        task = build_task(settings)
        task.dtype = torch.float64
        both.append(simulate(settings.method, task, 3, executor, 0.5))
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-10


HEATER = f"{Path(__file__).parents[2] / 'examples' / 'own_environment.py'}:Heater"
SAVED = {
    "classic": {"env_id": "CartPole-v1"},
    "vector": {"env_id": "Pendulum-v1"},
    "mujoco": {"env_id": "Hopper-v5"},
    "own": {"env_id": HEATER, "env_kwargs": '[{"wanted": 18}, {"wanted": 24}]'},
}


@pytest.mark.parametrize("name", SAVED)
def test_resume_to_the_bit_in_the_middle_of_an_episode(name, tmp_path, monkeypatch):
    """15 steps per round, episodes of 50 to 1,000: simulators' states are in the checkpoint."""
    if name == "mujoco":
        pytest.importorskip(
            "mujoco", reason="MuJoCo is not installed: pip install 'equipoise[mujoco]'"
        )
        monkeypatch.chdir(tmp_path)  # MuJoCo writes warnings about Gymnasium's models there
    options = {**SMALL, **SAVED[name], "method": "dqnavg", "rounds": 5, "episodes": 1}
    settings = ExperimentConfig.from_options(options)
    assert build_task(settings).env.not_checkpointable is False
    whole = run(settings, tmp_path / "whole")
    cut = cut_and_resumed(settings, tmp_path / "cut", at=3, checkpoint_every=2)
    assert cut.trained == whole.trained


def test_episodes_go_on_across_rounds_or_start_anew_where_they_must():
    """The play of a second call stands where the first left it; in another process only if the
    state can be kept.
    """
    draws = np.full((1, 2, 1), 0.3)
    ids, push = torch.arange(1), np.ones((1, 2), np.int64)
    for env_id, keeps in (("CartPole-v1", True), (f"{__file__}:Counter", False)):
        first, elsewhere = (GymVecEnv(env_factories(env_id, [{}]), 0, 1) for _ in range(2))
        play = first.resume(ids, first.init_state(ids, 2, 0), draws)
        for _ in range(3):
            play.step(push, draws)
        kept = play.state_dict()
        assert first.not_checkpointable is not keeps
        np.testing.assert_array_equal(first.resume(ids, kept, draws).encoded, play.encoded)
        there = elsewhere.resume(ids, kept, draws)
        assert (there.encoded == play.encoded).all() == keeps
        assert there.clock.tolist() == ([[3, 3]] if keeps else [[0, 0]])
        if keeps:  # and it goes on as the other does
            again = first.resume(ids, kept, draws)
            np.testing.assert_array_equal(
                there.step(push, draws).next_obs, again.step(push, draws).next_obs
            )


class Counter(gymnasium.Env):
    """Counts its steps, and hands nothing over."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 0.0, False, False, {}


class Boastful(Counter):
    """Shows less than it says."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Broken(Counter):
    """Its author has made a mistake that its third step meets."""

    def step(self, action):
        return super().step([0, 1][self.count])  # the list is too short


class Layered(Counter):
    """Shows what nobody can see."""

    observation_space = gymnasium.spaces.Box(0, 1, (2, 2, 2, 2))


def test_the_number_of_a_state_has_a_place_of_its_own():
    world = GymVecEnv(env_factories("FrozenLake-v1", [{"is_slippery": False}]), 0, 1)
    assert (world.obs_dim, world.num_actions) == (16, 4)
    draws = np.full((1, 2, 1), 0.5)
    play = world.reset(torch.arange(1), draws)
    assert play.obs.argmax(-1).tolist() == [[0, 0]]
    moved = play.step(np.array([[2, 1]]), draws)  # right, down, on a board of four by four
    assert moved.next_obs.argmax(-1).tolist() == [[1, 4]]
    assert moved.next_obs.sum(-1).tolist() == [[1, 1]]


def test_a_run_says_what_may_surprise(tmp_path, capsys):
    command = (
        f"run --task gym --env-id {__file__}:Counter --method dqn --agents 1 --rounds 1 "
        "--epochs 5 --out"
    )
    assert main([*command.split(), str(tmp_path / "x")]) == 0
    err = capsys.readouterr().err
    assert "a round has 5 steps and an episode may have 1000" in err
    assert "does not hand over its state" in err


def test_traits_of_foreign_environments():
    options = {**SMALL, "method": "dqn", "differ": "reversed,offsets"}
    world = build_task(ExperimentConfig.from_options(options)).env
    assert world.env_actions(np.array([[0], [0]]), world.interface.motor).tolist() == [
        [0],
        [1],
    ]  # the second is reversed
    assert np.abs(world.interface.offset).max() > 0
    with pytest.raises(UsageError, match="have no strength"):
        build_task(ExperimentConfig.from_options({**SMALL, "method": "dqn", "differ": "motor"}))
    pendulum = build_task(
        ExperimentConfig.from_options(
            {**SMALL, "method": "dqn", "env_id": "Pendulum-v1", "differ": "motor,reversed"}
        )
    )
    found = pendulum.env.env_actions(np.ones((2, 1, 1)), pendulum.env.interface.motor)
    np.testing.assert_allclose(found[:, 0, 0], [2 * 0.55, -2 * 0.85])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (f"--env-id {__file__}:Nothing", "has no class 'Nothing'"),
        ("--env-id nowhere.py:Heater", "cannot be read"),
        ("--env-id CartPole-v1 --differ length", "there is no 'length' here"),
        ("", "needs --env-id"),
        ("--env-id NoSuch-v0", "cannot be made"),
        ("--env-id CartPole-v1 --env-kwargs {", "neither JSON"),
        ("--env-id CartPole-v1 --env-kwargs [{}]", "1 objects for 10 agents"),
        ("--env-id CartPole-v1 --env-kwargs 3", "must be a JSON object"),
        ('--env-id CartPole-v1 --env-kwargs {"no":1}', "cannot be made"),
        ("--env-id Pendulum-v1 --model embedded", "takes a vector as its action"),
        ("--env-id CartPole-v1 --return-high -1", "must be below"),
        (f"--env-id {__file__}:Boastful", "and its observation_space says (8, 8, 3)"),
        (
            f"--env-id {__file__}:Broken --agents 2",
            "agent 0 failed: IndexError: list index out of range (test_gym.py, line",
        ),
        (f"--env-id {__file__}:Layered", "only a vector, the number of a state or an image"),
        ("--env-id CartPole-v1 --model cnn", "shows no image"),
        ("--env-id FrozenLake-v1 --normalise", "normalise is for vectors"),
        ("--env-id CartPole-v1 --frames 1000 --capacity 10000000", "this machine's memory holds"),
    ],
)
def test_bad_environments_are_refused_in_one_line(options, words, tmp_path, capsys):
    assert (
        main(
            [
                "run",
                "--task",
                "gym",
                "--method",
                "dqn",
                "--quiet",
                "--out",
                str(tmp_path / "x"),
                *options.split(),
            ]
        )
        == 2
    )
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_errors_name_the_agent():
    arguments = json.dumps([{}, {"nonsense": 1}])
    with pytest.raises(UsageError, match="of agent 1 cannot be made"):
        build_task(
            ExperimentConfig.from_options({**SMALL, "method": "dqn", "env_kwargs": arguments})
        )
