"""Stacked soft actor-critic by hand and against an independent version; MuJoCo's bodies with other
legs.
"""

import importlib.util
import math

import numpy as np
import pytest
import torch

from equipoise.environments import dqn_agent
from equipoise.environments.dqn_agent import AgentHParams as Agent
from equipoise.environments.q_network import BlockSchedule
from equipoise.environments.sac_agent import ActorCritic, SoftActorCritic
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.settings.experiment_config import ExperimentConfig
from helpers import cut_and_resumed, largest_difference, simulate

F64 = torch.float64
TINY = {
    "agents": 2,
    "parallel": 2,
    "width": 8,
    "capacity": 60,
    "learning_starts": 20,
    "episodes": 1,
}
SMALL = {**TINY, "task": "gym", "env_id": "Pendulum-v1", "epochs": 15, "batch_size": 8, "seed": 3}
needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None,
    reason="MuJoCo is not installed: pip install 'equipoise[mujoco]'",
)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes what it thinks of Gymnasium's models into the working directory."""
    monkeypatch.chdir(tmp_path)


def agent(net: ActorCritic, count: int = 1) -> SoftActorCritic:
    settings = Agent(2, 0.9, 20, 4, 0, 0.0, 0.1, 5)
    torch.manual_seed(0)
    models = [net.init(torch.rand(net.size, dtype=F64)) for _ in range(count)]
    params = net.pack({name: torch.stack([model[name] for model in models]) for name in net.shapes})
    params = params + 0.1 * torch.randn_like(params)
    rate = torch.full((count, 1), 0.01, dtype=F64)
    kept = dqn_agent.init_state(net, settings, count, F64)
    each = 2 * net.action_noise_dim + 2 + 5 * (1 + net.update_noise_dim)
    u = np.random.default_rng(0).random((count, 3, each))
    return SoftActorCritic(net, settings, BlockSchedule(rate, rate), params, kept, u)


def test_actor_and_critics_by_hand():
    net = ActorCritic(1, 1, 1)
    names = ["w1", "b1", "w2", "b2", "c1", "d1", "c2", "d2", "w3", "b3", "c3", "d3", "log_alpha"]
    assert list(net.shapes) == names
    actor = [2.0, 0.0, 1.0, 0.0]
    #          c1 of (x, a), twice; d1, c2, d2 of both
    critics = [1.0, 3.0, 0.0, 1.0, 0.5, 0.0, 2.0, 1.0, 1.0, 0.0]
    #        w3 and b3 of mean and width, c3 and d3 of both, log alpha
    heads = [0.1, 0.0, 0.2, 0.0, -1.0, 2.0, 4.0, 0.5, 0.0]
    views = net.views(torch.tensor(actor + critics + heads))
    x, action = torch.tensor([[[0.5]]]), torch.tensor([[[0.25]]])
    assert float(net.greedy(views, x)) == pytest.approx(math.tanh(0.1 * 1.0 + 0.2))
    first = -1.0 * (2.0 * (0.5 + 3.0 * 0.25 + 0.5) + 1.0) + 4.0
    assert net.critics(views, x, action).flatten().tolist() == pytest.approx(
        [first, 2.0 * 0.25 + 0.5]
    )
    assert float(net.policy(views, x)[1]) == pytest.approx(-1.5)  # the middle of -5 and 2


def test_a_sample_has_the_density_of_a_squashed_gaussian():
    net = ActorCritic(3, 4, 2)
    one, x, noise = agent(net, 2), torch.randn(2, 6, 3, dtype=F64), torch.randn(2, 6, 2, dtype=F64)
    action, log_pi = net.sample(one.views, x, noise)
    mean, log_std = net.policy(one.views, x)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.TanhTransform()
    )
    assert largest_difference(log_pi[..., 0], squashed.log_prob(action).sum(-1)) < 1e-9
    far = net.sample(
        one.views, x, 40 * torch.ones_like(noise)
    )  # tanh is 1 there, the density still a number
    assert bool(torch.isfinite(far[1]).all())


def alone(net: ActorCritic, one: SoftActorCritic, k: int) -> dict[str, torch.nn.Module]:
    """Agent k's nets as one would write them, of torch.nn."""

    def mlp(names, last, source, pick=None):
        layers = []
        for weight, bias in [*names, last]:
            w, b = (
                source[name][k] if pick is None else source[name][k, pick]
                for name in (weight, bias)
            )
            w = w.T if weight != "w3" else w
            layer = torch.nn.Linear(w.shape[1], w.shape[0], dtype=F64)
            layer.weight.data, layer.bias.data = w.clone(), b.reshape(-1).clone()
            layers += [layer, torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    found = {"actor": mlp([("w1", "b1"), ("w2", "b2")], ("w3", "b3"), one.views)}
    for which, source in (("", one.views), ("target ", one.target_views)):
        for j in range(2):
            found[f"{which}critic {j}"] = mlp([("c1", "d1"), ("c2", "d2")], ("c3", "d3"), source, j)
    return found


def test_the_gradient_is_that_of_an_independent_version():
    """Three separate losses, three backward passes, torch's modules and distributions."""
    net = ActorCritic(3, 4, 2)
    one = agent(net, 2)
    one.target = one.target + 0.1
    one.target_views = net.views(one.target)
    batch, noise = torch.randn(2, 5, 2 * 3 + 2 + 2, dtype=F64), torch.randn(2, 2, 5, 2, dtype=F64)
    one.compute_gradients(batch, noise)
    for k in range(2):
        nets = alone(net, one, k)
        state, following, reward, future, action = torch.split(batch[k], [3, 3, 1, 1, 2], -1)
        log_alpha = one.views["log_alpha"][k].clone().requires_grad_()
        alpha = log_alpha.detach().exp()

        def draw(x, noise, nets=nets):
            mean, wide = nets["actor"](x).chunk(2, -1)
            std = (-5 + 3.5 * (torch.tanh(wide) + 1)).exp()
            normal = torch.distributions.Normal(mean, std)
            before = mean + std * noise
            log_pi = normal.log_prob(before) - torch.log(1 - torch.tanh(before).square())
            return torch.tanh(before), log_pi.sum(-1, keepdim=True)

        with torch.no_grad():
            ahead, log_ahead = draw(following, noise[k, 0])
            judged = [
                nets[f"target critic {j}"](torch.cat([following, ahead], -1)) for j in range(2)
            ]
            goal = reward + future * (torch.minimum(*judged) - alpha * log_ahead)
        chosen, log_pi = draw(state, noise[k, 1])
        value = torch.minimum(
            *(nets[f"critic {j}"](torch.cat([state, chosen], -1)) for j in range(2))
        )
        (alpha * log_pi - value).mean().backward()
        actor = [p.grad.clone() for p in nets["actor"].parameters()]
        for j in range(2):
            nets[f"critic {j}"].zero_grad()
            q = nets[f"critic {j}"](torch.cat([state, action], -1))
            (0.5 * (q - goal).square()).mean().backward()
        (-log_alpha * (log_pi.detach() - 2).mean()).sum().backward()
        found = {name: value[k] for name, value in net.views(one.grad).items()}
        expected = dict(zip(("w1", "b1", "w2", "b2", "w3", "b3"), actor, strict=True))
        for name in ("w1", "w2"):
            expected[name] = expected[name].T
        for name, value in expected.items():
            assert largest_difference(found[name], value) < 1e-12, name
        for j in range(2):
            slopes = [p.grad for p in nets[f"critic {j}"].parameters()]
            for name, value in zip(("c1", "d1", "c2", "d2", "c3", "d3"), slopes, strict=True):
                value = value.T if name[0] == "c" else value
                assert largest_difference(found[name][j].reshape(-1), value.reshape(-1)) < 1e-12, (
                    name
                )
        assert largest_difference(found["log_alpha"], log_alpha.grad) < 1e-12


def test_actions_are_random_until_warm_and_drawn_from_the_policy_later():
    net = ActorCritic(3, 4, 2)
    one = agent(net)
    seen = np.zeros((1, 2, 3), np.float32)
    first, later = one.act(0, seen), one.act(2, seen)  # two copies: 0 and 4 of 4 steps
    np.testing.assert_array_equal(first, one.random_action[:, 0])
    expected, _ = net.sample(one.views, torch.zeros(1, 2, 3, dtype=F64), one.noise[:, 2])
    np.testing.assert_array_equal(later, expected.numpy())
    assert (np.abs(first) <= 1).all()


@pytest.mark.parametrize(
    "task", [{}, {"task": "pendulum", "differ": "length,reversed"}], ids=["gym", "own"]
)
def test_loop_equals_stacked_and_shares_the_body(task):
    both = []
    options = {**SMALL, "method": "pfeddqn-rep", **task}
    if task:
        del options["env_id"]
    else:
        options["env_kwargs"] = '[{"g": 9.0}, {"g": 5.0}]'
    for executor in ("loop", "stacked"):
        settings = ExperimentConfig.from_options(options)
        made = build_task(settings)
        made.dtype = F64
        both.append(simulate(settings.method, made, 3, executor))
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-9
    end = both[1]
    assert largest_difference(end.store.local_params["c2"].mean(0), end.params["c2"]) < 1e-12
    assert (
        float((end.store.local_params["c3"][0] - end.store.local_params["c3"][1]).abs().max()) > 0
    )
    assert end.logs[-1].trained["return"] < 0


def test_pendulum_resumes_to_the_bit_in_the_middle_of_an_episode(tmp_path):
    settings = ExperimentConfig.from_options(
        {**TINY, "task": "pendulum", "method": "dqnavg", "rounds": 4, "epochs": 15, "batch_size": 8}
    )
    whole = run(settings, tmp_path / "whole")
    cut = cut_and_resumed(settings, tmp_path / "cut", at=3, checkpoint_every=2)
    assert cut.trained == whole.trained


@needs_mujoco
@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5"])
def test_federated_agents_on_mujoco(env_id, tmp_path, monkeypatch):
    monkeypatch.chdir(
        tmp_path
    )  # MuJoCo writes its warnings about Gymnasium's models into the working directory
    options = {
        "agents": 2,
        "parallel": 1,
        "width": 8,
        "capacity": 200,
        "learning_starts": 30,
        "episodes": 1,
        "epochs": 40,
    }
    settings = ExperimentConfig.from_options(
        {**options, "task": "gym", "env_id": env_id, "method": "pfeddqn-rep", "batch_size": 8}
    )
    runs = []
    for _ in range(2):
        task = build_task(settings)
        task.env.max_episode_steps = 50
        runs.append(simulate(settings.method, task, 2))
    assert largest_difference(runs[0].state_dict(), runs[1].state_dict()) == 0
    assert math.isfinite(runs[0].logs[-1].trained["return"])
