"""Environments given as values: a class or function from a notebook, keyword arguments as dicts."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

gymnasium = pytest.importorskip("gymnasium", reason="the extra rl is not installed")
QUICK = {"method": "dqnavg", "rounds": 2, "epochs": 4}


class Line(gymnasium.Env):
    """Action 1 earns `reward`; episodes have 5 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), self.reward * int(action), False, self.steps == 5, {}

    def save_state(self):
        return [self.steps]

    def load_state(self, state):
        self.steps = int(state[0])


def test_a_class_runs_with_arguments_of_each_agent(tmp_path):
    task = eq.Task.from_environment(Line, [{"reward": 0.0}, {"reward": 0.0}, {"reward": -1.0}])
    run = eq.run(tmp_path / "run", task=task, **QUICK)
    assert run.config["agents"] == 3
    assert run.config["task"] == "python:environment"
    returns = run.clients_frame()["trained_return"].tolist()
    assert returns[:2] == [0.0, 0.0]
    assert -5.0 <= returns[2] <= 0.0


def test_a_function_is_a_factory_and_the_run_resumes(tmp_path):
    def make(reward=1.0):
        return Line(reward)

    task = eq.Task.from_environment(make, {"reward": 2.0}, agents=2)
    whole = eq.run(tmp_path / "whole", task=task, **QUICK)
    stopped = eq.run(
        tmp_path / "part", task=task, **QUICK, on_round=lambda r: "stop" if r.round == 1 else None
    )
    assert len(stopped.rounds) == 1
    assert whole.rounds[0].trained.return_ == stopped.rounds[0].trained.return_
    assert eq.open(tmp_path / "whole").resume(task=task).final == whole.final


def test_arguments_by_name_as_a_dictionary(tmp_path):
    run = eq.run(
        tmp_path / "a",
        task="gym",
        env_id="CartPole-v1",
        env_kwargs={"sutton_barto_reward": True},
        agents=2,
        **QUICK,
    )
    assert run.config["env_kwargs"] == '{"sutton_barto_reward": true}'
    task = eq.Task.from_environment("CartPole-v1", [{}, {"sutton_barto_reward": True}])
    assert task.options["agents"] == 2
    assert task.name == "gym"


def test_mistakes_are_named(tmp_path):
    with pytest.raises(eq.UsageError, match="from_environment"):
        eq.run(tmp_path / "a", task="gym", env_id=Line)
    with pytest.raises(eq.UsageError, match="must be a class or a function"):
        eq.Task.from_environment(Line())
    with pytest.raises(eq.UsageError, match="2 objects for 3 agents"):
        eq.run(tmp_path / "a", task=eq.Task.from_environment(Line, [{}, {}], agents=3), **QUICK)
    with pytest.raises(eq.UsageError, match=r"'Line' of agent 1 cannot be made.*rewrd"):
        eq.run(tmp_path / "a", task=eq.Task.from_environment(Line, [{}, {"rewrd": 1}]), **QUICK)
    with pytest.raises(eq.UsageError, match=r"no option 'agent'.*'agents'"):
        eq.Task.from_environment(Line, agent=3)
