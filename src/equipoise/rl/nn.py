"""Building blocks of the agents in this package: small networks, Adam and a replay buffer.

A network has three layers and is stored as one flat vector, so that an update of all its
parameters takes a few kernels, and a stack of agents is a matrix `[K, P]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from equipoise.core import Params

DTYPE = torch.float64
"""Agents are tiny. In double precision every executor takes the same decisions."""
LAST_LAYER_BOUND = 0.003
"""The last layer starts in U(-0.003, 0.003) (DDPG paper): first actions and values are near 0."""
BETAS = (0.9, 0.999)
"""Decay rates of Adam's two moments."""
EPSILON = 1e-8
"""Adam's epsilon."""
Shapes = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""(inputs, outputs) of each of a network's three layers."""
Agent = TypeVar("Agent", bound=Mapping[str, Any])


def num_params(shapes: Shapes) -> int:
    """Return the number of weights and biases of a network."""
    return sum((inputs + 1) * outputs for inputs, outputs in shapes)


def init_weights(shapes: Shapes, u: Tensor) -> Tensor:
    """Initialise a network from uniform random numbers.

    Args:
        shapes: The network's layers.
        u: At least `num_params(shapes)` numbers in [0, 1); the rest is ignored.

    Returns:
        Weights and biases `[P]` in U(-1/sqrt(inputs), 1/sqrt(inputs)), those of the last layer in
        U(-LAST_LAYER_BOUND, LAST_LAYER_BOUND).
    """
    bounds = [1 / math.sqrt(inputs) for inputs, _ in shapes[:-1]] + [LAST_LAYER_BOUND]
    sizes = torch.tensor([(inputs + 1) * outputs for inputs, outputs in shapes])
    bound = torch.repeat_interleave(torch.tensor(bounds, dtype=DTYPE), sizes)
    return (2.0 * u[: num_params(shapes)] - 1.0) * bound


def unflatten(net: Tensor, shapes: Shapes) -> Params:
    """Return views of a network `[P]`: `w1` `[inputs, outputs]`, `b1` `[outputs]`, and so on."""
    layers: Params = {}
    first = 0
    for layer, (inputs, outputs) in enumerate(shapes, 1):
        middle = first + inputs * outputs
        last = middle + outputs
        layers[f"w{layer}"] = net[first:middle].view(inputs, outputs)
        layers[f"b{layer}"] = net[middle:last]
        first = last
    return layers


def adam(
    params: Tensor, gradient: Tensor, moments: Params, step: Tensor, lr: float | Tensor
) -> tuple[Tensor, Params]:
    """Take one step of Adam.

    Args:
        params: Parameters `[P]`, or of a stack of networks `[K, P]`.
        gradient: The gradient, in the same shape.
        moments: First and second moment, `m` and `v`, in the same shape.
        step: The number of this step, from 1; `[K, 1]` for a stack.
        lr: The learning rate; a number, or `[K, 1]` for a stack.

    Returns:
        The new parameters and the new moments.
    """
    beta1, beta2 = BETAS
    step = step.to(params.dtype)
    m = torch.lerp(moments["m"], gradient, 1 - beta1)
    v = torch.lerp(moments["v"], gradient.square(), 1 - beta2)
    scale = (v / (1 - beta2**step)).sqrt() + EPSILON
    return params - lr * (m / (1 - beta1**step)) / scale, {"m": m, "v": v}


def add_to_buffer(agent: Agent, rows: Params) -> Agent:
    """Store transitions in an agent's replay buffer, in place of the oldest ones.

    Args:
        agent: An agent with `buffer`, tensors `[buffer_size, ...]`, and `num_stored`, the number of
            transitions stored since the start.
        rows: Transitions `[N, ...]` under the names of the buffer.

    Returns:
        The agent with the new buffer.
    """
    buffer = agent["buffer"]
    buffer_size = len(buffer["reward"])
    rows = {name: values[-buffer_size:] for name, values in rows.items()}
    positions = (agent["num_stored"] + torch.arange(len(rows["reward"]))) % buffer_size
    new_buffer = {name: old.index_copy(0, positions, rows[name]) for name, old in buffer.items()}
    num_stored = agent["num_stored"] + len(positions)
    return cast(Agent, {**agent, "buffer": new_buffer, "num_stored": num_stored})
