"""Foreign environments through Gymnasium's vector environments, against our own physics."""

import json

import gymnasium
import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.core.errors import UsageError
from equipoise.frl.deep.gym_world import GymWorld
from equipoise.runs.running import Interrupted, build_task, resume_run, run
from equipoise.settings.config import Settings
from helpers import largest_difference, simulate

SMALL = {
    **{
        "task": "gym",
        "env_id": "CartPole-v1",
        "agents": 2,
        "parallel": 2,
        "width": 8,
        "capacity": 60,
        "learn_after": 20,
    },
    **{"learn_after": 20, "episodes": 2, "epochs": 15, "batch_size": 8, "lr": 0.01, "seed": 3, "return_high": 500.0},
}


def test_steps_are_those_of_the_environment_itself():
    def twin(length):
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.length = length
        return env

    lengths = (0.2, 0.8)
    world = GymWorld([lambda length=length: twin(length) for length in lengths], 0, 500)
    assert (world.observations, world.actions, world.limit) == (4, 2, 500)
    rng = np.random.default_rng(0)
    draws = rng.random((2, 3, 1))
    play = world.begin(torch.arange(2), draws)
    twins = [[twin(length) for _ in range(3)] for length in lengths]
    seen = np.stack([[twins[k][e].reset(seed=int(draws[k, e, 0] * 2**31))[0] for e in range(3)] for k in range(2)])
    ended = 0
    for _ in range(80):
        np.testing.assert_array_equal(play.seen, seen)
        action, draws = rng.integers(2, size=(2, 3)), rng.random((2, 3, 1))
        moved = play.step(action, draws)
        for k in range(2):
            for e in range(3):
                after, reward, terminated, _, _ = twins[k][e].step(int(action[k, e]))
                np.testing.assert_array_equal(moved.following[k, e], after)
                assert (moved.reward[k, e], moved.terminated[k, e]) == (reward, terminated)
                if terminated:
                    ended += 1
                    after, _ = twins[k][e].reset(seed=int(draws[k, e, 0] * 2**31))
                seen[k, e] = after
    assert ended > 5


def test_agents_have_arguments_of_their_own():
    arguments = json.dumps([{"sutton_barto_reward": False}, {"sutton_barto_reward": True}])
    task = build_task(Settings.of({**SMALL, "method": "dqn", "env_kwargs": arguments}))
    one = task.init_params(0)
    stack = {name: value.expand(2, *value.shape) for name, value in one.items()}
    plain, other = task.evaluate_stack(torch.arange(2), stack, "test")["return"].tolist()
    assert plain > 5
    assert other == -1  # nothing until the pole falls, then -1


def test_loop_equals_stacked_and_absent_agents_stand_still():
    both = []
    for executor in ("loop", "stacked"):
        settings = Settings.of({**SMALL, "method": "pfeddqn-rep"})
        task = build_task(settings)
        task.dtype = torch.float64
        both.append(simulate(settings.method, task, 3, executor, 0.5))
    assert largest_difference(both[0].state(), both[1].state()) < 1e-10


def test_resume_to_the_bit(tmp_path):
    settings = Settings.of({**SMALL, "method": "dqnavg", "rounds": 5})
    whole = run(settings, tmp_path / "whole")

    def stop(log):
        if log.round == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(Settings.of({**settings.flat, "checkpoint_every": 2}), tmp_path / "cut", watch=stop)
    assert resume_run(tmp_path / "cut").trained == whole.trained


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "needs --env-id"),
        ("--env-id NoSuch-v0", "cannot be made"),
        ("--env-id CartPole-v1 --env-kwargs {", "neither JSON"),
        ("--env-id CartPole-v1 --env-kwargs [{}]", "1 objects for 10 agents"),
        ("--env-id CartPole-v1 --env-kwargs 3", "must be a JSON object"),
        ('--env-id CartPole-v1 --env-kwargs {"no":1}', "cannot be made"),
        ("--env-id Pendulum-v1 --model embedded", "takes a vector as its action"),
        ("--env-id CartPole-v1 --return-high -1", "must be below"),
        ("--env-id FrozenLake-v1", "only vectors of numbers"),
    ],
)
def test_bad_environments_are_refused_in_one_line(options, words, tmp_path, capsys):
    assert (
        main(["run", "--task", "gym", "--method", "dqn", "--quiet", "--out", str(tmp_path / "x"), *options.split()])
        == 2
    )
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_errors_name_the_agent():
    arguments = json.dumps([{}, {"nonsense": 1}])
    with pytest.raises(UsageError, match="of agent 1 cannot be made"):
        build_task(Settings.of({**SMALL, "method": "dqn", "env_kwargs": arguments}))
