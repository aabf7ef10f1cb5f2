"""DDPG (Lillicrap et al., 2016; algorithm 1 of PAGE): functions of ONE agent's state, mapped over many by ``vmap``.

An agent is a nested dictionary of tensors. Random numbers come in as uniform draws, so an agent has no generator of its
own, and nothing here branches on data: N agents are one batched computation, and one agent alone is the same code.
Actions lie in [-1, 1] everywhere: in the actor's output, in the memory and at the critic's input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad
from torch.utils import _pytree as pytree

from equipoise.core import Params, State
from equipoise.rl.nn import DTYPE, Shapes, adam, fill, layers, size


@dataclass(frozen=True)
class Config:
    """What an agent is: sizes, rates, memory and exploration."""

    critic_lr: float = 0.01
    actor_lr: float = 0.001
    target_rate: float = 0.01
    """beta: how far the target nets follow the main nets in one update."""
    gamma: float = 0.99
    batch: int = 32
    steps: int = 1
    """Updates in one call of :func:`learn`."""
    capacity: int = 1000
    warmup: int = 35
    """Actions that are uniformly random before the actor is asked, and transitions before the first update."""
    hidden: tuple[int, int] = (40, 30)
    noise: str = "ou"
    """``ou``: Ornstein-Uhlenbeck; ``gaussian``: independent; ``none``."""
    sigma: float = 0.2
    theta: float = 0.15
    """Pull of the Ornstein-Uhlenbeck process towards zero."""
    fade: int = 500
    """Noise shrinks linearly to nothing over so many actions; 0 keeps it."""
    restraint: float = 0.01
    """Penalty on the square of what enters the actor's tanh: a saturated actor has no gradient to come back by."""
    normalise: bool = True
    """Standardise states and rewards by the memory's own mean and spread."""
    members: int = 0
    """Above 0, a state is a set of so many feature vectors with an action each; the value of a set is its mean."""


def init(config: Config, state_dim: int, action_dim: int, u: Tensor) -> State:
    """A new agent from ``init_draws`` uniform numbers in [0, 1)."""
    actor_shapes, critic_shapes = (
        _actor_shapes(config, state_dim, action_dim),
        _critic_shapes(config, state_dim, action_dim),
    )
    actor, critic = fill(actor_shapes, u), fill(critic_shapes, u[size(actor_shapes) :])
    zero = torch.zeros((), dtype=torch.int64)
    rows = (config.capacity, config.members) if config.members else (config.capacity,)
    return {
        "actor": actor,
        "critic": critic,
        "actor_target": actor,
        "critic_target": critic,
        "actor_adam": {"m": torch.zeros_like(actor), "v": torch.zeros_like(actor)},
        "critic_adam": {"m": torch.zeros_like(critic), "v": torch.zeros_like(critic)},
        "updates": zero,
        "acted": zero,
        "stored": zero,
        "noise": torch.zeros(action_dim, dtype=DTYPE),
        "replay": {
            "state": torch.zeros(*rows, state_dim, dtype=DTYPE),
            "action": torch.zeros(*rows, action_dim, dtype=DTYPE),
            "reward": torch.zeros(config.capacity, dtype=DTYPE),
            "next": torch.zeros(*rows, state_dim, dtype=DTYPE),
        },
    }


def init_draws(config: Config, state_dim: int, action_dim: int) -> int:
    """How many uniform numbers :func:`init` reads."""
    return size(_actor_shapes(config, state_dim, action_dim)) + size(
        _critic_shapes(config, state_dim, action_dim)
    )


def policy(config: Config, agent: State, state: Tensor) -> Tensor:
    """mu(s): the action without noise."""
    return apply(config, export(config, agent), state, agent["noise"].shape[-1])


def export(config: Config, agent: State) -> Params:
    """All that another party needs to act as this agent would."""
    mean, spread = _state_scale(config, agent)
    return {"actor": agent["actor"], "mean": mean, "spread": spread}


def apply(config: Config, exported: Params, state: Tensor, action_dim: int) -> Tensor:
    """mu(s) of an exported actor."""
    actor = layers(exported["actor"], _actor_shapes(config, state.shape[-1], action_dim))
    return _actor(actor, _standardise(state, exported["mean"], exported["spread"]))


def act(config: Config, agent: State, state: Tensor, u: Tensor) -> tuple[Tensor, State]:
    """The next action, random at first and noisy later; ``u``: one uniform number an action."""
    shock = config.sigma * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    noise = agent["noise"]
    if config.noise == "ou":
        noise = noise - config.theta * noise + shock
    elif config.noise == "gaussian":
        noise = shock
    left = (
        1.0 - (agent["acted"] - config.warmup) / config.fade
        if config.fade
        else torch.ones((), dtype=DTYPE)
    )
    explored = policy(config, agent, state) + noise * left.clamp(0.0, 1.0)
    action = torch.where(agent["acted"] < config.warmup, 2.0 * u - 1.0, explored.clamp(-1.0, 1.0))
    return action, {**agent, "noise": noise, "acted": agent["acted"] + 1}


def store(
    agent: State, state: Tensor, action: Tensor, reward: Tensor, following: Tensor, keep: Tensor
) -> State:
    """Remember (s, a, r, s') in place of the oldest transition; not where ``keep`` is false."""
    row = {"state": state, "action": action, "reward": reward, "next": following}
    memory = agent["replay"]
    here = (torch.arange(len(memory["reward"])) == agent["stored"] % len(memory["reward"])) & keep
    replay = {
        name: torch.where(here.reshape(-1, *[1] * (old.dim() - 1)), row[name], old)
        for name, old in memory.items()
    }
    return {**agent, "replay": replay, "stored": agent["stored"] + keep}


def learn(config: Config, agent: State, u: Tensor) -> State:
    """``config.steps`` updates (algorithm 1, lines 4 to 9); ``u``: uniform numbers ``[steps, batch]``.

    Nothing changes before ``warmup`` transitions are stored.
    """
    memory, filled = agent["replay"], agent["stored"].clamp(max=config.capacity)
    scale, reward_scale = _state_scale(config, agent), _reward_scale(config, agent)
    learned = agent
    for draws in u:
        rows = (draws * filled).long()
        batch = {name: values[rows] for name, values in memory.items()}
        batch["state"], batch["next"] = (
            _standardise(batch[name], *scale) for name in ("state", "next")
        )
        batch["reward"] = _standardise(batch["reward"], *reward_scale)
        learned = _update(config, learned, batch)
    ready = agent["stored"] >= max(1, config.warmup)
    changed = {
        name: learned[name]
        for name in learned
        if name not in ("replay", "stored", "acted", "noise")
    }
    kept = {name: agent[name] for name in changed}
    return {
        **agent,
        **pytree.tree_map(lambda new, old: torch.where(ready, new, old), changed, kept),
    }


def _update(config: Config, agent: State, batch: Params) -> State:
    state, action, following = batch["state"], batch["action"], batch["next"]
    sizes = state.shape[-1], action.shape[-1]
    actor_shapes, critic_shapes = _actor_shapes(config, *sizes), _critic_shapes(config, *sizes)

    # Line 6: y = r + gamma Q'(s', mu'(s'))
    ahead = _actor(layers(agent["actor_target"], actor_shapes), following)
    value = _critic(layers(agent["critic_target"], critic_shapes), following, ahead)
    target = batch["reward"] + config.gamma * value

    def critic_loss(critic: Params) -> Tensor:  # line 8
        return (target - _critic(critic, state, action)).square().mean()

    updates = agent["updates"] + 1
    gradient = _flat(grad(critic_loss)(layers(agent["critic"], critic_shapes)))
    critic, critic_adam = adam(
        agent["critic"], gradient, agent["critic_adam"], updates, config.critic_lr
    )
    judge = layers(critic, critic_shapes)

    def minus_value(
        actor: Params,
    ) -> Tensor:  # the deterministic policy gradient ascends Q(s, mu(s))
        free = _before_tanh(actor, state)
        return (
            config.restraint * free.square().mean() - _critic(judge, state, torch.tanh(free)).mean()
        )

    gradient = _flat(grad(minus_value)(layers(agent["actor"], actor_shapes)))
    actor, actor_adam = adam(
        agent["actor"], gradient, agent["actor_adam"], updates, config.actor_lr
    )
    return {
        **agent,
        "critic": critic,
        "critic_adam": critic_adam,
        "actor": actor,
        "actor_adam": actor_adam,
        "actor_target": torch.lerp(agent["actor_target"], actor, config.target_rate),
        "critic_target": torch.lerp(agent["critic_target"], critic, config.target_rate),
        "updates": updates,
    }


def _actor(net: Params, state: Tensor) -> Tensor:
    return torch.tanh(_before_tanh(net, state))


def _before_tanh(net: Params, state: Tensor) -> Tensor:
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(hidden @ net["w2"] + net["b2"])
    return hidden @ net["w3"] + net["b3"]


def _critic(net: Params, state: Tensor, action: Tensor) -> Tensor:
    """Q(s, a); the action enters at the second layer. The value of a set is the mean over its members."""
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(torch.cat([hidden, action], -1) @ net["w2"] + net["b2"])
    value = (hidden @ net["w3"] + net["b3"]).squeeze(-1)
    return value.mean(-1) if value.dim() > 1 else value


def _scale(values: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of what the memory holds; 0 and 1 while it is empty."""
    held = (torch.arange(len(values)) < stored).to(DTYPE).reshape(-1, *[1] * (values.dim() - 1))
    count = held.sum().clamp(min=1.0)
    mean = (values * held).sum(0) / count
    spread = ((values - mean).square() * held).sum(0).div(count).sqrt()
    return mean, torch.where(spread > 1e-6, spread, torch.ones_like(spread))


def _state_scale(config: Config, agent: State) -> tuple[Tensor, Tensor]:
    if not config.normalise:
        return _as_it_is()
    state = agent["replay"]["state"]  # all members of a set share one scale
    return _scale(state.flatten(0, -2), agent["stored"] * max(1, config.members))


def _reward_scale(config: Config, agent: State) -> tuple[Tensor, Tensor]:
    return _scale(agent["replay"]["reward"], agent["stored"]) if config.normalise else _as_it_is()


def _as_it_is() -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)


def _standardise(values: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    return (values - mean) / spread


def _actor_shapes(config: Config, state_dim: int, action_dim: int) -> Shapes:
    one, two = config.hidden
    return (state_dim, one), (one, two), (two, action_dim)


def _critic_shapes(config: Config, state_dim: int, action_dim: int) -> Shapes:
    one, two = config.hidden
    return (state_dim, one), (one + action_dim, two), (two, 1)


def _flat(layers: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in layers.values()])
