"""Double DQN (van Hasselt et al., AAAI 2016, arXiv:1509.06461), one agent for all clients.

The agent sees clients by their features, not by their ids. As in the rest of this package an agent
is a nested dictionary of tensors, and random numbers are arguments (uniform draws).

The keys of an agent's state:
    net, target: The Q-network and its target network, as flat vectors (see `nn.unflatten`).
    adam: Adam's moments `m` and `v`.
    num_updates: Updates so far.
    num_stored: Transitions stored so far; the buffer is a ring.
    normaliser: Running statistics of every feature: `count`, `mean`, and `m2`, the sum of squared
        deviations from the mean.
    buffer: Transitions, each `[buffer_size, ...]`: `state`, `action`, `reward`, `base` (the part of
        the value that the network need not learn), `next` (the next state), `discount` of the next
        value, and the `round` of the transition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.rl.nn import DTYPE, Shapes, adam, init_weights, num_params, unflatten

MIN_STD = 1e-6
"""Features with a smaller standard deviation are centred, but not scaled."""


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of an agent."""

    features: int
    """Numbers in a state."""
    actions: int
    """Actions to choose from."""
    hidden: int = 64
    """Units of each of the two hidden layers."""
    lr: float = 1e-3
    gamma: float = 0.5
    """Discount of one round; a gap of k rounds is discounted by gamma^k. 0: contextual bandit."""
    batch: int = 64
    """Transitions in one update."""
    steps: int = 16
    """Updates in one call of `learn`."""
    tau: float = 0.05
    """How far the target network follows the main network in one update."""
    buffer_size: int = 5000
    """Transitions in the replay buffer."""
    max_age: int = 50
    """Ignore transitions older than this many rounds (non-stationarity)."""
    residual: float = 0.0
    """If above 0, the network starts at zero and learns the difference to `base`, with this L2
    penalty on its output."""

    @property
    def shapes(self) -> Shapes:
        """The network's layers."""
        return (self.features, self.hidden), (self.hidden, self.hidden), (self.hidden, self.actions)


def init_draws(config: Config) -> int:
    """Return how many uniform numbers `init` needs."""
    return num_params(config.shapes)


def init(config: Config, u: Tensor) -> State:
    """Initialise an agent.

    Args:
        config: Hyper-parameters.
        u: `init_draws` uniform numbers in [0, 1).

    Returns:
        An agent with an empty replay buffer.
    """
    net = init_weights(config.shapes, u)
    if config.residual:
        last = (config.hidden + 1) * config.actions
        net = torch.cat([net[:-last], net.new_zeros(last)])
    rows = config.buffer_size
    return {
        "net": net,
        "target": net,
        "adam": {"m": torch.zeros_like(net), "v": torch.zeros_like(net)},
        "num_updates": torch.zeros((), dtype=torch.int64),
        "num_stored": torch.zeros((), dtype=torch.int64),
        "normaliser": {
            "count": torch.zeros((), dtype=DTYPE),
            "mean": torch.zeros(config.features, dtype=DTYPE),
            "m2": torch.zeros(config.features, dtype=DTYPE),
        },
        "buffer": {
            "state": torch.zeros(rows, config.features, dtype=DTYPE),
            "action": torch.zeros(rows, dtype=torch.int64),
            "reward": torch.zeros(rows, dtype=DTYPE),
            "base": torch.zeros(rows, dtype=DTYPE),
            "next": torch.zeros(rows, config.features, dtype=DTYPE),
            "discount": torch.zeros(rows, dtype=DTYPE),
            "round": torch.zeros(rows, dtype=torch.int64),
        },
    }


def update_normaliser(agent: State, states: Tensor) -> State:
    """Add states `[N, features]` to the running statistics of every feature."""
    if not len(states):
        return agent
    old = agent["normaliser"]
    added = len(states)
    count = old["count"] + added
    batch_mean = states.mean(0)
    shift = batch_mean - old["mean"]
    m2 = (
        old["m2"]
        + (states - batch_mean).square().sum(0)
        + shift.square() * old["count"] * added / count
    )
    mean = old["mean"] + shift * added / count
    return {**agent, "normaliser": {"count": count, "mean": mean, "m2": m2}}


def standardise(agent: State, states: Tensor) -> Tensor:
    """Return states `[N, features]` in units of the running mean and standard deviation."""
    normaliser = agent["normaliser"]
    std: Tensor = (normaliser["m2"] / normaliser["count"].clamp(min=1.0)).sqrt()
    centred: Tensor = states - normaliser["mean"]
    return centred / torch.where(std > MIN_STD, std, torch.ones_like(std))


def values(config: Config, agent: State, states: Tensor) -> Tensor:
    """Return Q(s, .) `[N, actions]` of states `[N, features]` that are not standardised.

    Args:
        config: Hyper-parameters.
        agent: The agent.
        states: The states.
    """
    return _q(unflatten(agent["net"], config.shapes), standardise(agent, states))


def learn(config: Config, agent: State, allowed: Tensor, round: int, u: Tensor) -> State:
    """Take one update for each row of `u`.

    Args:
        config: Hyper-parameters.
        agent: The agent. Transitions older than `config.max_age` rounds are not used.
        allowed: Booleans `[actions]`: the actions that the agent may choose.
        round: The current round.
        u: Uniform numbers `[steps, batch]` that choose transitions.

    Returns:
        The agent.
    """
    buffer = agent["buffer"]
    is_stored = torch.arange(len(buffer["round"])) < agent["num_stored"]
    is_recent = buffer["round"] > round - config.max_age
    usable = (is_stored & is_recent).nonzero()[:, 0]
    if not len(usable):
        return agent
    for draws in u:
        rows = usable[(draws * len(usable)).long()]
        batch = {name: value[rows] for name, value in buffer.items()}
        agent = _update(config, agent, batch, allowed)
    return agent


def _update(config: Config, agent: State, batch: Params, allowed: Tensor) -> State:
    """Take one update of network and target network."""
    state = standardise(agent, batch["state"])
    next_state = standardise(agent, batch["next"])
    net = unflatten(agent["net"], config.shapes)
    target_net = unflatten(agent["target"], config.shapes)
    # Double DQN: the main network chooses the next action, the target network evaluates it.
    next_action = _q(net, next_state).masked_fill(~allowed, -math.inf).argmax(1)
    next_value = _q(target_net, next_state).gather(1, next_action[:, None])[:, 0]
    goal = batch["reward"] + batch["discount"] * next_value - batch["base"]
    gradient = _grad(config, net, state, batch["action"], goal)
    num_updates = agent["num_updates"] + 1
    new_net, moments = adam(agent["net"], gradient, agent["adam"], num_updates, config.lr)
    new_target = torch.lerp(agent["target"], new_net, config.tau)
    return {
        **agent,
        "net": new_net,
        "target": new_target,
        "adam": moments,
        "num_updates": num_updates,
    }


def _grad(config: Config, net: Params, state: Tensor, action: Tensor, goal: Tensor) -> Tensor:
    """Return the gradient of mean (goal - Q(s, a))^2 + residual * mean Q(s, .)^2.

    It is written by hand because autograd takes ten times as long for such a small network.
    """
    hidden1 = torch.relu(state @ net["w1"] + net["b1"])
    hidden2 = torch.relu(hidden1 @ net["w2"] + net["b2"])
    q = hidden2 @ net["w3"] + net["b3"]
    error = (q.gather(1, action[:, None]) - goal[:, None]) * (2.0 / len(goal))
    d3 = (q * (2.0 * config.residual / q.numel())).scatter_add(1, action[:, None], error)
    d2 = (d3 @ net["w3"].T) * (hidden2 > 0)
    d1 = (d2 @ net["w2"].T) * (hidden1 > 0)
    gradients = (state.T @ d1, d1.sum(0), hidden1.T @ d2, d2.sum(0), hidden2.T @ d3, d3.sum(0))
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _q(net: Params, state: Tensor) -> Tensor:
    """Return Q(s, .)."""
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(hidden @ net["w2"] + net["b2"])
    return hidden @ net["w3"] + net["b3"]
