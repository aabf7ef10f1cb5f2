"""DDPG (Lillicrap et al., ICLR 2016, arXiv:1509.02971); lines refer to algorithm 1 of PAGE.

All functions are of ONE agent's state and are mapped over many agents by `vmap`. Random numbers
are arguments (uniform draws), and nothing branches on data: N agents are one batched computation,
and one agent alone runs the same code. Actions lie in [-1, 1] everywhere: in the actor's output, in
the replay buffer and at the critic's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.func import grad

from equipoise.core import Params
from equipoise.rl.nn import DTYPE, Shapes, adam, init_weights, num_params, unflatten
from equipoise.utils.pytree import map_leaves

MIN_STD = 1e-6
"""Inputs with a smaller standard deviation are centred, but not scaled."""


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of an agent."""

    critic_lr: float = 0.01
    actor_lr: float = 0.001
    tau: float = 0.01
    """How far the target networks follow the main networks in one update (the paper's beta)."""
    gamma: float = 0.99
    """Discount factor."""
    batch: int = 32
    """Transitions in one update."""
    steps: int = 1
    """Updates in one call of `learn`."""
    buffer_size: int = 1000
    """Transitions in the replay buffer."""
    learning_starts: int = 35
    """First actions that are uniformly random, and transitions needed before the first update."""
    hidden: tuple[int, int] = (40, 30)
    """Units of the two hidden layers of actor and critic."""
    noise: str = "ou"
    """Exploration noise: `ou` (Ornstein-Uhlenbeck), `gaussian` (independent) or `none`."""
    sigma: float = 0.2
    """Standard deviation of the exploration noise."""
    theta: float = 0.15
    """Pull of the Ornstein-Uhlenbeck process towards zero."""
    noise_dt: float = 1.0
    """Time step of the Ornstein-Uhlenbeck process."""
    noise_decay_steps: int = 500
    """Actions over which the noise decays linearly to zero; 0 keeps it constant."""
    pretanh_l2: float = 0.01
    """L2 penalty on the input of the actor's tanh: a saturated actor has no gradient."""
    normalise: bool = True
    """Standardise states and rewards by mean and standard deviation of the replay buffer."""
    reward_scale: float = 1.0
    """Factor of rewards, after they are standardised."""
    set_size: int = 0
    """If above 0, a state is a set of this many feature vectors with one action each, and the value
    of a set is the mean over its members (Deep Sets)."""


class AgentState(TypedDict):
    """All that an agent is; a dictionary of tensors."""

    actor: Tensor
    """mu, as a flat vector `[P]` (see `nn.unflatten`)."""
    critic: Tensor
    """Q, as a flat vector."""
    actor_target: Tensor
    critic_target: Tensor
    actor_adam: Params
    """Adam's moments `m` and `v`."""
    critic_adam: Params
    num_updates: Tensor
    """Updates so far."""
    num_actions: Tensor
    """Actions so far."""
    num_stored: Tensor
    """Transitions stored so far; the buffer is a ring."""
    noise: Tensor
    """State of the exploration noise `[A]`."""
    buffer: Params
    """Transitions: `state`, `action`, `reward` and `next_state`, each `[buffer_size, ...]`."""


def init_draws(config: Config, state_dim: int, action_dim: int) -> int:
    """Return how many uniform numbers `init` needs.

    Args:
        config: Hyper-parameters.
        state_dim: Dimension of the state.
        action_dim: Dimension of the action.
    """
    actor_shapes = _actor_shapes(config, state_dim, action_dim)
    critic_shapes = _critic_shapes(config, state_dim, action_dim)
    return num_params(actor_shapes) + num_params(critic_shapes)


def init(config: Config, state_dim: int, action_dim: int, u: Tensor) -> AgentState:
    """Initialise an agent (line 1).

    Args:
        config: Hyper-parameters.
        state_dim: Numbers in a state.
        action_dim: Numbers in an action.
        u: `init_draws` uniform numbers in [0, 1).

    Returns:
        An agent with an empty replay buffer.
    """
    actor_shapes = _actor_shapes(config, state_dim, action_dim)
    critic_shapes = _critic_shapes(config, state_dim, action_dim)
    actor = init_weights(actor_shapes, u)
    critic = init_weights(critic_shapes, u[num_params(actor_shapes) :])
    zero = torch.zeros((), dtype=torch.int64)
    rows: tuple[int, ...] = (config.buffer_size,)
    if config.set_size:
        rows = (config.buffer_size, config.set_size)
    return {
        "actor": actor,
        "critic": critic,
        "actor_target": actor,
        "critic_target": critic,
        "actor_adam": {"m": torch.zeros_like(actor), "v": torch.zeros_like(actor)},
        "critic_adam": {"m": torch.zeros_like(critic), "v": torch.zeros_like(critic)},
        "num_updates": zero,
        "num_actions": zero,
        "num_stored": zero,
        "noise": torch.zeros(action_dim, dtype=DTYPE),
        "buffer": {
            "state": torch.zeros(*rows, state_dim, dtype=DTYPE),
            "action": torch.zeros(*rows, action_dim, dtype=DTYPE),
            "reward": torch.zeros(config.buffer_size, dtype=DTYPE),
            "next_state": torch.zeros(*rows, state_dim, dtype=DTYPE),
        },
    }


def export_policy(config: Config, agent: AgentState) -> Params:
    """Return what another party needs to act as this agent would, without noise.

    Returns:
        The `actor`, and `mean` and `std` by which its inputs are standardised.
    """
    mean, std = _state_scale(config, agent)
    return {"actor": agent["actor"], "mean": mean, "std": std}


def apply_policy(config: Config, policy: Params, state: Tensor, action_dim: int) -> Tensor:
    """Return mu(s) of an exported policy.

    Args:
        config: Hyper-parameters of the agent.
        policy: The result of `export_policy`.
        state: States `[..., S]`.
        action_dim: Numbers in an action.

    Returns:
        Actions `[..., action_dim]` in [-1, 1].
    """
    shapes = _actor_shapes(config, state.shape[-1], action_dim)
    actor = unflatten(policy["actor"], shapes)
    return _actor(actor, _standardise(state, policy["mean"], policy["std"]))


def greedy_action(config: Config, agent: AgentState, state: Tensor) -> Tensor:
    """Return mu(s), the action without noise.

    Args:
        config: Hyper-parameters.
        agent: The agent.
        state: The state s.
    """
    return apply_policy(config, export_policy(config, agent), state, agent["noise"].shape[-1])


def act(config: Config, agent: AgentState, state: Tensor, u: Tensor) -> tuple[Tensor, AgentState]:
    """Choose the next action: random at first, later mu(s) with noise.

    Args:
        config: Hyper-parameters.
        agent: The agent.
        state: The state `[S]`.
        u: Uniform numbers `[A]`, one per number of the action.

    Returns:
        The action `[A]` in [-1, 1] and the agent.
    """
    shock = config.sigma * normal_quantile(u)
    noise = agent["noise"]
    if config.noise == "ou":
        noise = noise - config.theta * config.noise_dt * noise + config.noise_dt**0.5 * shock
    elif config.noise == "gaussian":
        noise = shock
    decay = torch.ones((), dtype=DTYPE)
    if config.noise_decay_steps:
        decay = 1.0 - (agent["num_actions"] - config.learning_starts) / config.noise_decay_steps
    explored = greedy_action(config, agent, state) + noise * decay.clamp(0.0, 1.0)
    action = torch.where(
        agent["num_actions"] < config.learning_starts, 2.0 * u - 1.0, explored.clamp(-1.0, 1.0)
    )
    return action, {**agent, "noise": noise, "num_actions": agent["num_actions"] + 1}


def store(
    agent: AgentState,
    state: Tensor,
    action: Tensor,
    reward: Tensor,
    next_state: Tensor,
    is_valid: Tensor,
) -> AgentState:
    """Store the transition (s, a, r, s') in place of the oldest one.

    Args:
        agent: The agent.
        state: s `[S]`.
        action: a `[A]`.
        reward: r `[]`.
        next_state: s' `[S]`.
        is_valid: A boolean `[]`; nothing is stored where it is false.

    Returns:
        The agent.
    """
    row = {"state": state, "action": action, "reward": reward, "next_state": next_state}
    buffer = agent["buffer"]
    buffer_size = len(buffer["reward"])
    is_target = (torch.arange(buffer_size) == agent["num_stored"] % buffer_size) & is_valid
    new_buffer = {
        name: torch.where(is_target.reshape(-1, *[1] * (old.dim() - 1)), row[name], old)
        for name, old in buffer.items()
    }
    return {**agent, "buffer": new_buffer, "num_stored": agent["num_stored"] + is_valid}


def learn(config: Config, agent: AgentState, u: Tensor) -> AgentState:
    """Take `config.steps` updates (lines 4 to 9).

    Args:
        config: Hyper-parameters.
        agent: The agent. Nothing changes before it has stored `learning_starts` transitions.
        u: Uniform numbers `[steps, batch]` that choose transitions.

    Returns:
        The agent.
    """
    buffer = agent["buffer"]
    buffer_len = agent["num_stored"].clamp(max=config.buffer_size)
    state_scale = _state_scale(config, agent)
    reward_scale = _reward_scale(config, agent)
    learned = agent
    for draws in u:
        rows = (draws * buffer_len).long()
        batch = {name: values[rows] for name, values in buffer.items()}
        batch["state"] = _standardise(batch["state"], *state_scale)
        batch["next_state"] = _standardise(batch["next_state"], *state_scale)
        batch["reward"] = config.reward_scale * _standardise(batch["reward"], *reward_scale)
        learned = _update(config, learned, batch)
    is_ready = agent["num_stored"] >= max(1, config.learning_starts)
    unchanged = ("buffer", "num_stored", "num_actions", "noise")
    new = {name: value for name, value in learned.items() if name not in unchanged}
    old = {name: value for name, value in agent.items() if name not in unchanged}
    selected = map_leaves(lambda a, b: torch.where(is_ready, a, b), new, old)
    return cast(AgentState, {**agent, **selected})


def normal_quantile(u: Tensor) -> Tensor:
    """Return standard normal numbers from uniform ones in [0, 1)."""
    quantiles: Tensor = torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    return quantiles


def _update(config: Config, agent: AgentState, batch: Params) -> AgentState:
    """Take one update of all four networks on a batch of standardised transitions."""
    state = batch["state"]
    action = batch["action"]
    next_state = batch["next_state"]
    actor_shapes = _actor_shapes(config, state.shape[-1], action.shape[-1])
    critic_shapes = _critic_shapes(config, state.shape[-1], action.shape[-1])

    # Line 6: y = r + gamma Q'(s', mu'(s')).
    next_action = _actor(unflatten(agent["actor_target"], actor_shapes), next_state)
    next_value = _critic(unflatten(agent["critic_target"], critic_shapes), next_state, next_action)
    target = batch["reward"] + config.gamma * next_value

    # Line 8: the critic minimises mean (y - Q(s, a))^2.
    def critic_loss(critic: Params) -> Tensor:
        return (target - _critic(critic, state, action)).square().mean()

    num_updates = agent["num_updates"] + 1
    gradient = _flatten(grad(critic_loss)(unflatten(agent["critic"], critic_shapes)))
    critic, critic_adam = adam(
        agent["critic"], gradient, agent["critic_adam"], num_updates, config.critic_lr
    )
    new_critic = unflatten(critic, critic_shapes)

    # Line 9: the actor ascends mean Q(s, mu(s)) (deterministic policy gradient).
    def actor_loss(actor: Params) -> Tensor:
        pretanh = _pretanh(actor, state)
        value = _critic(new_critic, state, torch.tanh(pretanh)).mean()
        return config.pretanh_l2 * pretanh.square().mean() - value

    gradient = _flatten(grad(actor_loss)(unflatten(agent["actor"], actor_shapes)))
    actor, actor_adam = adam(
        agent["actor"], gradient, agent["actor_adam"], num_updates, config.actor_lr
    )
    return {
        **agent,
        "critic": critic,
        "critic_adam": critic_adam,
        "actor": actor,
        "actor_adam": actor_adam,
        "actor_target": torch.lerp(agent["actor_target"], actor, config.tau),
        "critic_target": torch.lerp(agent["critic_target"], critic, config.tau),
        "num_updates": num_updates,
    }


def _actor(net: Params, state: Tensor) -> Tensor:
    """Return mu(s)."""
    return torch.tanh(_pretanh(net, state))


def _pretanh(net: Params, state: Tensor) -> Tensor:
    """Return the input of the actor's tanh."""
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(hidden @ net["w2"] + net["b2"])
    return hidden @ net["w3"] + net["b3"]


def _critic(net: Params, state: Tensor, action: Tensor) -> Tensor:
    """Return Q(s, a). The action enters at the second layer; a set's value is its members' mean."""
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(torch.cat([hidden, action], -1) @ net["w2"] + net["b2"])
    value = (hidden @ net["w3"] + net["b3"]).squeeze(-1)
    return value.mean(-1) if value.dim() > 1 else value


def _scale(values: Tensor, num_stored: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the stored rows; 0 and 1 while there are none."""
    is_stored = (torch.arange(len(values)) < num_stored).to(DTYPE)
    is_stored = is_stored.reshape(-1, *[1] * (values.dim() - 1))
    count = is_stored.sum().clamp(min=1.0)
    mean = (values * is_stored).sum(0) / count
    std = ((values - mean).square() * is_stored).sum(0).div(count).sqrt()
    return mean, torch.where(std > MIN_STD, std, torch.ones_like(std))


def _state_scale(config: Config, agent: AgentState) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of states; all members of a set share one scale."""
    if not config.normalise:
        return _identity_scale()
    state = agent["buffer"]["state"]
    return _scale(state.flatten(0, -2), agent["num_stored"] * max(1, config.set_size))


def _reward_scale(config: Config, agent: AgentState) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of rewards."""
    if not config.normalise:
        return _identity_scale()
    return _scale(agent["buffer"]["reward"], agent["num_stored"])


def _identity_scale() -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)


def _standardise(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (values - mean) / std


def _actor_shapes(config: Config, state_dim: int, action_dim: int) -> Shapes:
    first, second = config.hidden
    return (state_dim, first), (first, second), (second, action_dim)


def _critic_shapes(config: Config, state_dim: int, action_dim: int) -> Shapes:
    first, second = config.hidden
    return (state_dim, first), (first + action_dim, second), (second, 1)


def _flatten(layers: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in layers.values()])
