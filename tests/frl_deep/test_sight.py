"""What agents see: images through a convolution, the newest observations together, numbers of usual
size.
"""

import json

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn import functional

from equipoise.cli import main
from equipoise.environments.gym_env import GymVecEnv, env_factories
from equipoise.environments.obs_encoding import NUM_FILTERS, ConvNet, ObsEncoder, obs_mean_std
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from helpers import cut_and_resumed, largest_difference, simulate, timeless

SMALL = {
    **{
        "task": "gym",
        "agents": 2,
        "parallel": 2,
        "width": 8,
        "capacity": 200,
        "learning_starts": 20,
        "episodes": 2,
    },
    **{"epochs": 15, "batch_size": 8, "lr": 0.01, "seed": 3},
}


class Lights(gymnasium.Env):
    """A bright column among five: its third decides which button pays. Its state can be kept."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (5, 6, 2), np.uint8)

    def __init__(self, swapped=False):
        self.swapped = swapped

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.column = 8, int(self.np_random.integers(6))
        return self._shown(), {}

    def step(self, action):
        reward = float((action == (self.column >= 3)) != self.swapped)
        self.left, self.column = self.left - 1, int(self.np_random.integers(6))
        return self._shown(), reward, self.left == 0, False, {}

    def _shown(self):
        image = np.zeros((5, 6, 2), np.uint8)
        image[:, self.column, 0], image[:, :, 1] = 255, 51
        return image


LIGHTS = {**SMALL, "env_id": f"{__file__}:Lights", "model": "cnn", "return_high": 8.0}


def test_an_image_becomes_its_channels_one_after_the_other():
    sight = ObsEncoder.from_space(Lights.observation_space, frames=2)
    assert (sight.obs_dim, sight.image_shape) == (120, (4, 5, 6))
    shown = np.random.default_rng(0).integers(0, 256, (3, 5, 6, 2), dtype=np.uint8)
    np.testing.assert_allclose(
        sight.encode(shown).reshape(3, 2, 5, 6)[:, 1], shown[..., 1] / 255, rtol=1e-6
    )
    grey = ObsEncoder.from_space(gymnasium.spaces.Box(0, 255, (5, 6), np.uint8))
    assert grey.image_shape == (1, 5, 6)
    np.testing.assert_allclose(
        grey.encode(shown[..., 0]), shown[..., 0].reshape(3, 30) / 255, rtol=1e-6
    )


def test_newest_frames_are_seen_together_and_episodes_begin_with_one():
    world = GymVecEnv(env_factories("CartPole-v1", [{}]), 0, 500, frames=3)
    plain = GymVecEnv(env_factories("CartPole-v1", [{}]), 0, 500)
    draws, rng = np.full((1, 2, 1), 0.25), np.random.default_rng(1)
    play, single = world.reset(torch.arange(1), draws), plain.reset(torch.arange(1), draws)
    np.testing.assert_array_equal(play.obs, np.tile(single.obs, 3))
    history, starts = [single.obs] * 3, 0
    for _ in range(60):
        action = rng.integers(2, size=(1, 2))
        moved, alone = play.step(action, draws), single.step(action, draws)
        history.append(alone.next_obs)
        expected = np.concatenate(history[-3:], -1)
        over = alone.terminated | alone.truncated
        np.testing.assert_array_equal(moved.next_obs, expected)
        if over.any():
            starts += 1
            history = [np.where(over[..., None], single.obs, old) for old in history[-3:]]
        np.testing.assert_array_equal(play.obs, np.concatenate(history[-3:], -1))
    assert starts > 1


def test_usual_sizes_are_taken_out_of_each_agents_own_numbers():
    made = env_factories("MountainCar-v0", [{}, {"goal_velocity": 0.02}])
    sight = ObsEncoder.from_space(made[0]().observation_space)
    usual = [obs_mean_std(make, sight, agent) for agent, make in enumerate(made)]
    world, plain = GymVecEnv(made, -200, 0, obs_stats=usual), GymVecEnv(made, -200, 0)
    draws = np.full((2, 1, 1), 0.7)
    seen, raw = (place.reset(torch.arange(2), draws).obs for place in (world, plain))
    for k, (middle, spread) in enumerate(usual):
        np.testing.assert_allclose(seen[k], (raw[k] - middle) / spread, rtol=1e-4, atol=1e-4)
        assert -0.7 < middle[0] < -0.3
        assert 0 < spread[1] < 0.02
    part = world.subset(np.array([1]))
    np.testing.assert_array_equal(part.reset(torch.arange(1), draws[1:]).obs, seen[1:])


@pytest.mark.parametrize("image", [(2, 5, 6), (1, 44, 40)])
def test_slopes_are_those_of_autograd(image):
    net = ConvNet(int(np.prod(image)), 7, 3, 0, image)
    assert (net.kernel, net.stride) == ((3, 1) if image[1] == 5 else (4, 2))
    trees = [net.init(torch.rand(net.size, dtype=torch.float64)) for _ in range(2)]
    views = {
        name: torch.stack([tree[name] for tree in trees]).requires_grad_() for name in net.shapes
    }
    x, d3 = (
        torch.rand(2, 4, net.inputs, dtype=torch.float64),
        torch.randn(2, 4, 3, dtype=torch.float64),
    )
    out = {name: torch.zeros_like(value) for name, value in views.items()}
    with torch.no_grad():
        one, two, values = net.forward_all(views, x)
        net.backward(views, x, one, two, d3, out)
    for k in range(2):
        w = {name: value[k] for name, value in views.items()}
        hidden = (
            functional.conv2d(x[k].view(4, *image), w["w1"], w["b1"], net.stride).relu().flatten(1)
        )
        q = (hidden @ w["w2"] + w["b2"]).relu() @ w["w3"].T + w["b3"]
        torch.testing.assert_close(values[k], q.detach())
        slopes = torch.autograd.grad((q * d3[k]).sum(), list(w.values()))
        for name, slope in zip(w, slopes, strict=True):
            torch.testing.assert_close(out[name][k], slope)
    assert views["w2"].shape[1] == NUM_FILTERS * net.patches[0] * net.patches[1]


@pytest.mark.parametrize("name", ["dqnavg", "pfeddqn-rep"])
def test_loop_equals_stacked(name):
    both = []
    for executor in ("loop", "stacked"):
        settings = ExperimentConfig.from_options({**LIGHTS, "method": name, "frames": 2})
        task = build_task(settings)
        task.dtype = torch.float64
        both.append(simulate(settings.method, task, 3, executor, 1.0, seed=3))
    assert largest_difference(both[0].params, both[1].params) < 1e-10


def test_agents_learn_from_images_what_each_of_them_needs(tmp_path):
    """One agent's buttons are swapped: a shared body with personal heads serves both; chance is 4
    of 8.
    """
    options = {
        **LIGHTS,
        "method": "pfeddqn-rep",
        "env_kwargs": '[{"swapped": false}, {"swapped": true}]',
    }
    budget = {"rounds": 6, "epochs": 60, "capacity": 4000, "eps_decay_steps": 1000, "eval_every": 6}
    summary = run(
        ExperimentConfig.from_options(
            {**options, **budget, "width": 32, "discount": 0.5, "lr": 3e-3}
        ),
        tmp_path / "run",
    )
    assert summary.personal["return"] > 7


def test_resume_with_frames_to_the_bit(tmp_path):
    options = {
        **SMALL,
        "env_id": "CartPole-v1",
        "frames": 3,
        "normalise": True,
        "method": "dqnavg",
        "rounds": 4,
    }
    settings = ExperimentConfig.from_options(options)
    whole = run(settings, tmp_path / "whole")
    assert timeless(cut_and_resumed(settings, tmp_path / "cut", 2)) == timeless(whole)


def test_the_command(tmp_path):
    command = (
        "run --task gym --env-id Acrobot-v1 --frames 2 --normalise --agents 2 --method dqn "
        "--rounds 1"
    )
    small = "--epochs 5 --width 8 --episodes 1 --capacity 1000 --quiet"
    assert main([*command.split(), *small.split(), "--out", str(tmp_path / "run")]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["frames"], config["normalise"]) == (2, True)
