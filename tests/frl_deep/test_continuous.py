"""Stacked DDPG by hand and through the contract; MuJoCo's bodies with other legs."""

import importlib.util
import math

import numpy as np
import pytest
import torch

from equipoise.core.errors import UsageError
from equipoise.frl.deep import learner, mujoco
from equipoise.frl.deep.adam import Rhythm
from equipoise.frl.deep.continuous import ActorCritic, Ddpg
from equipoise.frl.deep.learner import Settings as Agent
from equipoise.frl.deep.mujoco import HALF_CHEETAH, HOPPER, edited
from equipoise.runs.running import build_task
from equipoise.settings.config import Settings
from helpers import largest_difference, simulate

F64 = torch.float64
SMALL = {
    **{
        "task": "gym",
        "env_id": "Pendulum-v1",
        "agents": 2,
        "parallel": 2,
        "width": 8,
        "capacity": 60,
        "learn_after": 20,
    },
    **{"learn_after": 20, "episodes": 1, "epochs": 15, "batch_size": 8, "seed": 3},
}
needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="MuJoCo is not installed: pip install 'equipoise[mujoco]'"
)


def agent(net: ActorCritic, count: int = 1) -> Ddpg:
    settings = Agent(2, 0.9, 20, 4, 0, 0.0, 0.1, 5)
    torch.manual_seed(0)
    models = [net.init(torch.rand(net.size, dtype=F64)) for _ in range(count)]
    params = net.pack({name: torch.stack([model[name] for model in models]) for name in net.shapes})
    rate = torch.full((count, 1), 0.01, dtype=F64)
    kept = learner.fresh(net, settings, count, F64)
    u = np.random.default_rng(0).random((count, 3, 2 * net.action_draws + 2 + 5))
    return Ddpg(net, settings, Rhythm(rate, rate), params, kept, u)


def test_actor_and_critic_by_hand():
    net = ActorCritic(1, 1, 1)
    names = ["w1", "b1", "w2", "b2", "c1", "d1", "c2", "d2", "w3", "b3", "c3", "d3"]
    assert list(net.shapes) == names
    #        w1   b1   w2   b2   c1 (of x, of a)  d1   c2   d2   w3   b3   c3    d3
    values = [2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 0.5, 2.0, 1.0, 0.1, 0.2, -1.0, 4.0]
    views = net.views(torch.tensor(values))
    x, action = torch.tensor([[[0.5]]]), torch.tensor([[[0.25]]])
    assert float(net.greedy(views, x)) == pytest.approx(math.tanh(0.1 * 1.0 + 0.2))
    hidden = 2.0 * (1.0 * 0.5 + 3.0 * 0.25 + 0.5) + 1.0
    assert float(net.judge(views, x, action)) == pytest.approx(-1.0 * hidden + 4.0)


def test_the_gradient_is_that_of_two_losses():
    """Critic: (Q(s, a) - y)^2 with the target nets in y; actor: -Q(s, mu(s)) with the critic standing still."""
    net = ActorCritic(3, 4, 2)
    one = agent(net, 2)
    one.target = one.target + 0.1
    one.target_views = net.views(one.target)
    batch = torch.randn(2, 5, 2 * 3 + 2 + 2, dtype=F64)
    one.two_losses(batch)
    state, following, reward, goes_on, action = torch.split(batch, [3, 3, 1, 1, 2], -1)
    goal = reward + 0.9 * goes_on * net.judge(one.target_views, following, net.greedy(one.target_views, following))
    for k in range(2):
        own = {name: value[k : k + 1].clone().requires_grad_() for name, value in one.views.items()}
        critic = (net.judge(own, state[k : k + 1], action[k : k + 1]) - goal[k : k + 1]).square().mean()
        actor = -net.judge(own, state[k : k + 1], net.greedy(own, state[k : k + 1])).mean()
        critics, actors = ([name for name in own if name[0] in letters] for letters in ("cd", "wb"))
        of_critic = torch.autograd.grad(critic, [own[name] for name in critics])
        of_actor = torch.autograd.grad(actor, [own[name] for name in actors])
        expected = dict(zip((*critics, *actors), (*of_critic, *of_actor), strict=True))
        found = {name: value[k : k + 1] for name, value in net.views(one.slope).items()}
        assert max(largest_difference(found[n], expected[n]) for n in net.shapes) < 1e-12


def test_actions_are_random_until_warm_and_noisy_later():
    net = ActorCritic(3, 4, 2)
    one = agent(net)
    seen = np.zeros((1, 2, 3), np.float32)
    first, later = one.act(0, seen), one.act(2, seen)  # two copies: 0 and 4 of 4 steps
    assert np.abs(first).max() > 0.3
    assert 0 < np.abs(later).max() < 0.5
    assert (np.abs(first) <= 1).all()


def test_loop_equals_stacked_and_shares_the_body():
    both = []
    for executor in ("loop", "stacked"):
        settings = Settings.of({**SMALL, "method": "pfeddqn-rep", "env_kwargs": '[{"g": 9.0}, {"g": 5.0}]'})
        task = build_task(settings)
        task.dtype = F64
        both.append(simulate(settings.method, task, 3, executor))
    assert largest_difference(both[0].state(), both[1].state()) < 1e-9
    end = both[1]
    assert largest_difference(end.store.local["c2"].mean(0), end.params["c2"]) < 1e-12
    assert float((end.store.local["c3"][0] - end.store.local["c3"][1]).abs().max()) > 0
    assert end.logs[-1].trained["return"] < 0


def test_legs_are_edited_and_nothing_else():
    xml = '<geom friction="0.9" name="leg_geom" size="0.04 0.25" type="capsule"/><geom name="other" size="0.04 0.1"/>'
    assert edited(xml, ("leg_geom",), 0.9) == xml.replace("0.04 0.25", "0.048 0.25")
    with pytest.raises(UsageError, match="no geom 'knee'"):
        edited(xml, ("knee",), 0.5)


@needs_mujoco
@pytest.mark.parametrize("body", [HOPPER, HALF_CHEETAH], ids=lambda body: body.name)
def test_a_body_has_its_own_legs(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thin, own, thick = (mujoco.make(body, u).unwrapped.model for u in (0.1, 0.5, 0.9))
    plain = importlib.import_module("gymnasium").make(body.env_id).unwrapped.model
    np.testing.assert_allclose(own.geom_size, plain.geom_size)
    for leg in body.legs:
        sizes = [float(model.geom(leg).size[0]) for model in (thin, own, thick)]
        assert sizes == pytest.approx([sizes[1] - 0.008, sizes[1], sizes[1] + 0.008])
    assert thin.body_mass[1:].tolist() != thick.body_mass[1:].tolist()


@needs_mujoco
@pytest.mark.parametrize("name", ["hopper", "half-cheetah"])
def test_federated_ddpg_on_mujoco(name):
    options = {"agents": 2, "parallel": 1, "width": 8, "capacity": 200, "learn_after": 30, "episodes": 1, "epochs": 40}
    settings = Settings.of({**options, "task": name, "method": "pfeddqn-rep", "batch_size": 8})
    task = build_task(settings)
    task.world.limit = 50
    one, two = (simulate(settings.method, task, 2) for _ in range(2))
    assert largest_difference(one.state(), two.state()) == 0
    assert math.isfinite(one.logs[-1].trained["return"])


def test_without_mujoco_the_task_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"equipoise\[mujoco\]"):
        mujoco.mujoco_task(HOPPER, None, None, 0)
