"""DDPG: parts by hand, an agent of a stack against the same agent alone, and learning."""

import dataclasses

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from equipoise.core import State
from equipoise.rl import ddpg
from equipoise.rl.nn import unflatten
from helpers import largest_difference

CONFIG = ddpg.Config(buffer_size=64, learning_starts=8, batch=16, steps=2, noise_decay_steps=0)


def draws(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fresh(
    config: ddpg.Config, agents: int, state_dim: int, action_dim: int, seed: int = 0
) -> State:
    u = draws(seed, agents, ddpg.init_draws(config, state_dim, action_dim))
    stack: State = vmap(lambda one: ddpg.init(config, state_dim, action_dim, one))(u)
    return stack


def bandit(config: ddpg.Config, agent: State, u: Tensor, wanted: Tensor) -> State:
    """One round of a game whose best action is ``wanted``, whatever the state."""
    state = u[:1]
    action, agent = ddpg.act(config, agent, state, u[1:2])
    agent = ddpg.store(
        agent, state, action, -(action - wanted).square().sum(), u[2:3], torch.tensor(True)
    )
    return ddpg.learn(config, agent, u[3:].reshape(config.steps, config.batch))


def play(config: ddpg.Config, agents: State, wanted: Tensor, rounds: int, seed: int = 1) -> State:
    for t in range(rounds):
        u = draws(seed * 10_000 + t, len(wanted), 3 + config.steps * config.batch)
        agents = vmap(lambda a, u, w: bandit(config, a, u, w))(agents, u, wanted)
    return agents


def row(tree: State, k: int) -> State:
    one: State = pytree.tree_map(lambda value: value[k], tree)
    return one


@pytest.mark.parametrize("noise", ["ou", "gaussian"])
def test_one_agent_of_a_stack_equals_the_same_agent_alone(noise: str) -> None:
    config = dataclasses.replace(CONFIG, noise=noise)
    stack = fresh(config, 5, 1, 1)
    alone = row(stack, 3)
    wanted = torch.linspace(-0.8, 0.8, 5, dtype=torch.float64)
    stack = play(config, stack, wanted, 30)
    for t in range(30):
        u = draws(10_000 + t, 5, 3 + config.steps * config.batch)[3]
        alone = bandit(config, alone, u, wanted[3])
    assert int(alone["num_updates"]) == 2 * (30 - 7)
    assert largest_difference(row(stack, 3), alone) < 1e-9


def test_each_agent_learns_to_read_its_input_in_its_own_way() -> None:
    """Best action = state for one agent, -state for the other."""
    config = ddpg.Config(
        buffer_size=600,
        learning_starts=50,
        steps=4,
        gamma=0.0,
        actor_lr=0.005,
        tau=0.1,
        noise_decay_steps=0,
    )
    agents, sign = fresh(config, 2, 1, 1), torch.tensor([1.0, -1.0], dtype=torch.float64)

    def once(agent: State, u: Tensor, sign: Tensor) -> State:
        state = 2 * u[:1] - 1
        action, agent = ddpg.act(config, agent, state, u[1:2])
        agent = ddpg.store(
            agent,
            state,
            action,
            -(action - sign * state).square().sum(),
            u[2:3],
            torch.tensor(True),
        )
        return ddpg.learn(config, agent, u[3:].reshape(config.steps, config.batch))

    for t in range(160):
        agents = vmap(once)(agents, draws(t, 2, 3 + config.steps * config.batch), sign)
    grid = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64).unsqueeze(1)
    chosen = vmap(lambda agent: ddpg.greedy_action(config, agent, grid))(agents)
    assert (chosen[..., 0] - sign[:, None] * grid[:, 0]).abs().mean(1).max() < 0.15


def test_a_run_is_determined_by_its_draws_alone() -> None:
    wanted = torch.zeros(2, dtype=torch.float64)
    torch.manual_seed(1)
    first = play(CONFIG, fresh(CONFIG, 2, 1, 1), wanted, 12)
    torch.manual_seed(2)
    assert largest_difference(first, play(CONFIG, fresh(CONFIG, 2, 1, 1), wanted, 12)) == 0.0
    assert largest_difference(first, play(CONFIG, fresh(CONFIG, 2, 1, 1), wanted, 12, seed=2)) > 0.0


def test_saved_and_loaded_it_goes_on_to_the_bit() -> None:
    wanted = torch.zeros(2, dtype=torch.float64)
    halfway = play(CONFIG, fresh(CONFIG, 2, 1, 1), wanted, 12)
    leaves, spec = pytree.tree_flatten(halfway)
    stored = load(save({str(k): leaf.contiguous() for k, leaf in enumerate(leaves)}))
    loaded = pytree.tree_unflatten([stored[str(k)] for k in range(len(leaves))], spec)
    assert (
        largest_difference(play(CONFIG, halfway, wanted, 5, 3), play(CONFIG, loaded, wanted, 5, 3))
        == 0.0
    )


def test_the_memory_is_a_ring_and_can_skip() -> None:
    agent = row(fresh(dataclasses.replace(CONFIG, buffer_size=3), 1, 1, 1), 0)
    one = torch.ones(1, dtype=torch.float64)
    for k in range(5):
        agent = ddpg.store(agent, k * one, one, k * one[0], one, torch.tensor(k != 3))
    assert agent["buffer"]["reward"].tolist() == [4.0, 1.0, 2.0]
    assert int(agent["num_stored"]) == 4


def test_nothing_is_learned_before_the_warm_up_is_over() -> None:
    start = fresh(CONFIG, 1, 1, 1)
    early = play(CONFIG, start, torch.zeros(1, dtype=torch.float64), CONFIG.learning_starts - 1)
    assert largest_difference(start["actor"], early["actor"]) == 0.0
    late = play(CONFIG, early, torch.zeros(1, dtype=torch.float64), 1)
    assert largest_difference(start["actor"], late["actor"]) > 0.0


def test_random_at_first_then_the_actor_with_noise_that_fades() -> None:
    config = dataclasses.replace(
        CONFIG, noise="gaussian", sigma=0.2, noise_decay_steps=4, learning_starts=2
    )
    agent = row(fresh(config, 1, 1, 1), 0)
    state, high = (
        torch.zeros(1, dtype=torch.float64),
        torch.full((1,), 0.8413447460685429, dtype=torch.float64),
    )
    greedy, actions = ddpg.greedy_action(config, agent, state), []
    for _ in range(8):
        action, agent = ddpg.act(config, agent, state, high)
        actions.append(float(action))
    assert actions[:2] == pytest.approx([2 * float(high) - 1] * 2)
    # The draw is the normal distribution's point at +1 sigma; noise decays from 0.2 to 0 in 4.
    expected = [float(greedy) + 0.2 * left for left in (1.0, 0.75, 0.5, 0.25, 0.0, 0.0)]
    assert actions[2:] == pytest.approx(expected)


def test_ornstein_uhlenbeck_by_hand() -> None:
    config = dataclasses.replace(CONFIG, learning_starts=0, sigma=0.2, theta=0.15)
    agent = row(fresh(config, 1, 1, 1), 0)
    high = torch.full((1,), 0.8413447460685429, dtype=torch.float64)
    for expected in (0.2, 0.2 * 0.85 + 0.2, (0.2 * 0.85 + 0.2) * 0.85 + 0.2):
        _, agent = ddpg.act(config, agent, torch.zeros(1, dtype=torch.float64), high)
        assert float(agent["noise"]) == pytest.approx(expected)


def test_one_update_by_autograd_and_torch_adam() -> None:
    """Algorithm 1, lines 6 to 9, written out with the ordinary optimiser."""
    config = dataclasses.replace(
        CONFIG, steps=1, learning_starts=1, normalise=False, critic_lr=0.01, actor_lr=0.002
    )
    agent = row(fresh(config, 1, 2, 1), 0)
    for k in range(20):
        u = draws(k, 6)
        agent = ddpg.store(agent, u[:2], u[2:3], u[3], u[4:6], torch.tensor(True))
    u = draws(99, 1, config.batch)
    new = ddpg.learn(config, agent, u)

    rows = (u[0] * 20).long()
    s, a, r, s2 = (
        agent["buffer"][name][rows] for name in ("state", "action", "reward", "next_state")
    )
    actor, critic = (agent[name].clone().requires_grad_() for name in ("actor", "critic"))

    def mu(state: Tensor) -> Tensor:
        return ddpg._pretanh(unflatten(actor, ddpg._actor_shapes(config, 2, 1)), state)

    def q(state: Tensor, action: Tensor) -> Tensor:
        return ddpg._critic(unflatten(critic, ddpg._critic_shapes(config, 2, 1)), state, action)

    y = (r + config.gamma * q(s2, mu(s2).tanh())).detach()
    optimiser = torch.optim.Adam([critic], 0.01)
    (y - q(s, a)).square().mean().backward()
    optimiser.step()
    optimiser = torch.optim.Adam([actor], 0.002)
    (config.pretanh_l2 * mu(s).square().mean() - q(s, mu(s).tanh()).mean()).backward()
    optimiser.step()
    for name, expected in (("actor", actor), ("critic", critic)):
        assert (new[name] - expected).abs().max() < 1e-12
        slowly = agent[name] + config.tau * (new[name] - agent[name])
        assert (new[f"{name}_target"] - slowly).abs().max() < 1e-15


def test_initial_nets_have_the_published_shapes_and_bounds() -> None:
    config = ddpg.Config()
    agent = row(fresh(config, 1, 3, 2), 0)
    actor = unflatten(agent["actor"], ddpg._actor_shapes(config, 3, 2))
    critic = unflatten(agent["critic"], ddpg._critic_shapes(config, 3, 2))
    assert [tuple(actor[w].shape) for w in ("w1", "w2", "w3")] == [(3, 40), (40, 30), (30, 2)]
    assert [tuple(critic[w].shape) for w in ("w1", "w2", "w3")] == [(3, 40), (42, 30), (30, 1)]
    for net in (actor, critic):
        assert 0.5 / 3**0.5 < float(net["w1"].abs().max()) <= 1 / 3**0.5
        assert 0.001 < float(net["w3"].abs().max()) <= 0.003
