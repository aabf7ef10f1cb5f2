"""One double DQN (van Hasselt et al., 2016) for all clients: it knows them by their features, not by their names.

As everywhere in this package an agent is a nested dictionary of tensors and random numbers come in as uniform draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.rl.nn import DTYPE, Shapes, adam, fill, layers, size

SPREAD = 1e-6  # a feature that varies less is left as it is


@dataclass(frozen=True)
class Config:
    """What an agent is: sizes, rates and memory."""

    features: int
    actions: int
    hidden: int = 64
    lr: float = 1e-3
    gamma: float = 0.5
    """Discount of one round; a gap of several rounds is discounted by as many powers. 0 is a contextual bandit."""
    batch: int = 64
    steps: int = 16
    """Updates in one call of :func:`learn`."""
    target_rate: float = 0.05
    capacity: int = 5000
    window: int = 50
    """Rounds after which a transition is forgotten: the federation that it tells of is no more."""
    residual: float = 0.0
    """Above 0 the net starts at zero, learns what ``base`` lacks, and pays this for the square of its output."""

    @property
    def shapes(self) -> Shapes:
        return (self.features, self.hidden), (self.hidden, self.hidden), (self.hidden, self.actions)


def init_draws(config: Config) -> int:
    return size(config.shapes)


def init(config: Config, u: Tensor) -> State:
    """A new agent from ``init_draws`` uniform numbers in [0, 1)."""
    net = fill(config.shapes, u)
    if config.residual:
        last = (config.hidden + 1) * config.actions
        net = torch.cat([net[:-last], net.new_zeros(last)])
    rows = config.capacity
    return {
        "net": net,
        "target": net,
        "adam": {"m": torch.zeros_like(net), "v": torch.zeros_like(net)},
        "updates": torch.zeros((), dtype=torch.int64),
        "stored": torch.zeros((), dtype=torch.int64),
        "seen": {
            "count": torch.zeros((), dtype=DTYPE),
            "mean": torch.zeros(config.features, dtype=DTYPE),
            "square": torch.zeros(config.features, dtype=DTYPE),
        },
        "replay": {
            "state": torch.zeros(rows, config.features, dtype=DTYPE),
            "action": torch.zeros(rows, dtype=torch.int64),
            "reward": torch.zeros(rows, dtype=DTYPE),
            "base": torch.zeros(rows, dtype=DTYPE),
            "next": torch.zeros(rows, config.features, dtype=DTYPE),
            "discount": torch.zeros(rows, dtype=DTYPE),
            "round": torch.zeros(rows, dtype=torch.int64),
        },
    }


def watch(agent: State, states: Tensor) -> State:
    """Running mean and spread of every feature, over all that was ever seen."""
    if not len(states):
        return agent
    old, more = agent["seen"], len(states)
    count = old["count"] + more
    shift = states.mean(0) - old["mean"]
    square = (
        old["square"]
        + (states - states.mean(0)).square().sum(0)
        + shift.square() * old["count"] * more / count
    )
    return {
        **agent,
        "seen": {"count": count, "mean": old["mean"] + shift * more / count, "square": square},
    }


def standardise(agent: State, states: Tensor) -> Tensor:
    seen = agent["seen"]
    spread: Tensor = (seen["square"] / seen["count"].clamp(min=1.0)).sqrt()
    centred: Tensor = states - seen["mean"]
    return centred / torch.where(spread > SPREAD, spread, torch.ones_like(spread))


def values(config: Config, agent: State, states: Tensor) -> Tensor:
    """Q(s, .) of raw features ``[K, features]``."""
    return _q(layers(agent["net"], config.shapes), standardise(agent, states))


def learn(config: Config, agent: State, allowed: Tensor, round: int, u: Tensor) -> State:
    """``steps`` updates on transitions of the last ``window`` rounds; ``u``: uniform numbers ``[steps, batch]``."""
    memory = agent["replay"]
    filled = torch.arange(len(memory["round"])) < agent["stored"]
    fresh = (filled & (memory["round"] > round - config.window)).nonzero()[:, 0]
    if not len(fresh):
        return agent
    for draws in u:
        rows = fresh[(draws * len(fresh)).long()]
        agent = _update(
            config, agent, {name: value[rows] for name, value in memory.items()}, allowed
        )
    return agent


def _update(config: Config, agent: State, batch: Params, allowed: Tensor) -> State:
    state, following = standardise(agent, batch["state"]), standardise(agent, batch["next"])
    # Double DQN: the main net chooses the next action, the target net judges it.
    ahead = (
        _q(layers(agent["net"], config.shapes), following)
        .masked_fill(~allowed, -math.inf)
        .argmax(1)
    )
    judged = _q(layers(agent["target"], config.shapes), following).gather(1, ahead[:, None])[:, 0]
    goal = batch["reward"] + batch["discount"] * judged - batch["base"]
    slope = _slope(config, layers(agent["net"], config.shapes), state, batch["action"], goal)
    updates = agent["updates"] + 1
    net, moments = adam(agent["net"], slope, agent["adam"], updates, config.lr)
    target = torch.lerp(agent["target"], net, config.target_rate)
    return {**agent, "net": net, "target": target, "adam": moments, "updates": updates}


def _slope(config: Config, net: Params, state: Tensor, action: Tensor, goal: Tensor) -> Tensor:
    """Gradient of mean (goal - Q(s, a))^2 + residual * mean Q(s, .)^2, by hand: autograd costs ten times as much."""
    one = torch.relu(state @ net["w1"] + net["b1"])
    two = torch.relu(one @ net["w2"] + net["b2"])
    q = two @ net["w3"] + net["b3"]
    error = (q.gather(1, action[:, None]) - goal[:, None]) * (2.0 / len(goal))
    d3 = (q * (2.0 * config.residual / q.numel())).scatter_add(1, action[:, None], error)
    d2 = (d3 @ net["w3"].T) * (two > 0)
    d1 = (d2 @ net["w2"].T) * (one > 0)
    slopes = (state.T @ d1, d1.sum(0), one.T @ d2, d2.sum(0), two.T @ d3, d3.sum(0))
    return torch.cat([slope.reshape(-1) for slope in slopes])


def _q(net: Params, state: Tensor) -> Tensor:
    hidden = torch.relu(state @ net["w1"] + net["b1"])
    hidden = torch.relu(hidden @ net["w2"] + net["b2"])
    return hidden @ net["w3"] + net["b3"]
