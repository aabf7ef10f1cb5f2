"""Double DQN: target by hand, normaliser, replay buffer, and a problem that it must solve."""

import dataclasses

import pytest
import torch

from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.rl import dqn
from equipoise.rl.nn import add_to_buffer, unflatten
from helpers import largest_difference, simulate, small_task

CONFIG = dqn.Config(features=3, actions=4, hidden=8, batch=8, steps=2, buffer_size=32)
EVERYTHING = torch.ones(4, dtype=torch.bool)


def agent(config: dqn.Config = CONFIG, seed: int = 0) -> dict[str, object]:
    torch.manual_seed(seed)
    return dqn.init(config, torch.rand(dqn.init_draws(config), dtype=torch.float64))


def rows(count: int, round: int = 1, **given: torch.Tensor) -> dict[str, torch.Tensor]:
    plain = {
        "state": torch.rand(count, 3, dtype=torch.float64),
        "action": torch.arange(count) % 4,
        "reward": torch.rand(count, dtype=torch.float64),
        "base": torch.zeros(count, dtype=torch.float64),
        "next": torch.rand(count, 3, dtype=torch.float64),
        "discount": torch.full((count,), 0.5, dtype=torch.float64),
        "round": torch.full((count,), round),
    }
    return plain | given


def test_running_statistics_are_those_of_all_that_was_seen() -> None:
    seen = torch.rand(30, 3, dtype=torch.float64)
    one = agent()
    for part in (seen[:4], seen[4:5], seen[5:5], seen[5:]):
        one = dqn.update_normaliser(one, part)
    expected = (seen - seen.mean(0)) / seen.std(0, correction=0)
    assert largest_difference(dqn.standardise(one, seen), expected) < 1e-12
    flat = dqn.update_normaliser(agent(), torch.ones(5, 3, dtype=torch.float64))
    assert (
        largest_difference(dqn.standardise(flat, torch.full((1, 3), 3.0)), torch.full((1, 3), 2.0))
        < 1e-12
    )


@pytest.mark.parametrize("residual", [0.0, 10.0])
def test_the_target_is_the_doubled_one(residual: float) -> None:
    """The first Adam step has the gradient's sign, so one update shows which target was used."""
    config = dataclasses.replace(CONFIG, lr=1e-3, residual=residual)
    one = agent(dataclasses.replace(config, residual=0.0))
    one["target"] = agent(dataclasses.replace(config, residual=0.0), 1)["net"]
    batch = rows(8)
    allowed = torch.tensor([True, True, False, True])
    net, target = (unflatten(one[name], config.shapes) for name in ("net", "target"))
    ahead = dqn._q(net, batch["next"]).masked_fill(~allowed, -torch.inf).argmax(1)
    assert 2 not in ahead.tolist()
    goal = batch["reward"] + 0.5 * dqn._q(target, batch["next"])[torch.arange(8), ahead]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        q = dqn._q(unflatten(flat, config.shapes), batch["state"])
        return (
            goal - q[torch.arange(8), batch["action"]]
        ).square().mean() + config.residual * q.square().mean()

    slope = torch.func.grad(loss)(one["net"])
    ours = dqn._grad(config, net, batch["state"], batch["action"], goal)
    assert largest_difference(ours, slope) < 1e-12
    new = dqn._update(config, one, batch, allowed)
    moved, clear = (one["net"] - new["net"]) / config.lr, slope.abs() > 1e-6
    assert largest_difference(moved[clear], slope[clear].sign()) < 0.02
    assert largest_difference(new["target"], torch.lerp(one["target"], new["net"], config.tau)) == 0


def test_old_transitions_are_forgotten_and_replaced() -> None:
    one = add_to_buffer(agent(), rows(6, round=1))
    draws = torch.rand(2, 8, dtype=torch.float64)
    assert largest_difference(dqn.learn(CONFIG, one, EVERYTHING, 51, draws)["net"], one["net"]) == 0
    assert largest_difference(dqn.learn(CONFIG, one, EVERYTHING, 50, draws)["net"], one["net"]) > 0
    full = add_to_buffer(one, rows(40, round=2))
    assert int(full["num_stored"]) == 6 + 32
    assert set(full["buffer"]["round"].tolist()) == {2}


def test_a_residual_starts_at_zero_and_stays_small() -> None:
    config = dataclasses.replace(CONFIG, residual=10.0, gamma=0.0)
    one = agent(config)
    states = torch.rand(5, 3, dtype=torch.float64)
    assert float(dqn.values(config, one, states).abs().max()) == 0
    one = add_to_buffer(one, rows(16, discount=torch.zeros(16, dtype=torch.float64)))
    for _ in range(100):
        one = dqn.learn(config, one, EVERYTHING, 2, torch.rand(2, 8, dtype=torch.float64))
    assert 0 < float(dqn.values(config, one, states).abs().max()) < 0.2  # rewards are up to 1


def test_it_learns_which_action_a_feature_asks_for() -> None:
    config = dataclasses.replace(
        CONFIG, hidden=32, batch=32, steps=200, buffer_size=256, lr=3e-3, gamma=0.0
    )
    one = agent(config)
    states = torch.rand(256, 3, dtype=torch.float64)
    best = (states[:, 0] * 4).long().clamp(max=3)
    action = torch.arange(256) % 4
    reward = (action == best).double()
    given = rows(
        256,
        state=states,
        action=action,
        reward=reward,
        discount=torch.zeros(256, dtype=torch.float64),
    )
    one = add_to_buffer(dqn.update_normaliser(one, states), given)
    for _ in range(5):
        one = dqn.learn(config, one, EVERYTHING, 2, torch.rand(200, 32, dtype=torch.float64))
    assert float((dqn.values(config, one, states).argmax(1) == best).double().mean()) > 0.8


@pytest.mark.parametrize("policy", ["dqn", "trained"])
def test_executors_agree_through_a_learning_run(policy: str) -> None:
    method = FedPolicy(policy=policy, parts="full,backbone,head,none", block_weights="on")
    loop, stacked = (
        simulate(method, small_task(), 14, executor, 0.5) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9
    assert [log.bytes for log in loop.logs] == [log.bytes for log in stacked.logs]
