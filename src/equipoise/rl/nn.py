"""What every agent here learns with: nets kept as one vector, Adam, and a memory whose oldest rows give way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.core import Params, State

LAST = 0.003  # the last layers start in U(-LAST, LAST): the first actions are near zero, the first values too
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's
Shapes = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""(inputs, outputs) of a net's three layers. A net is kept as one vector, so that an update is a few kernels."""

DTYPE = torch.float64  # an agent is tiny; with 64 bits every executor takes the same decisions


def adam(
    params: Tensor, gradient: Tensor, moments: Params, step: Tensor, lr: float | Tensor
) -> tuple[Tensor, Params]:
    """One step of Adam; of a stack ``[K, P]``, with ``step`` and perhaps ``lr`` as ``[K, 1]``."""
    first, second = BETAS
    taken = step.to(params.dtype)
    m = torch.lerp(moments["m"], gradient, 1 - first)
    v = torch.lerp(moments["v"], gradient.square(), 1 - second)
    size = (v / (1 - second**taken)).sqrt() + EPSILON
    return params - lr * (m / (1 - first**taken)) / size, {"m": m, "v": v}


def remember(agent: State, rows: Params) -> State:
    """A stack of transitions in place of the oldest ones of ``agent["replay"]``."""
    memory = agent["replay"]
    capacity = len(memory["reward"])
    rows = {name: values[-capacity:] for name, values in rows.items()}
    where = (agent["stored"] + torch.arange(len(rows["reward"]))) % capacity
    replay = {name: old.index_copy(0, where, rows[name]) for name, old in memory.items()}
    return {**agent, "replay": replay, "stored": agent["stored"] + len(where)}


def size(shapes: Shapes) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in shapes)


def fill(shapes: Shapes, u: Tensor) -> Tensor:
    """Weights and biases in U(-1/sqrt(inputs), 1/sqrt(inputs)), the last layer's in U(-LAST, LAST)."""
    bounds = [1 / math.sqrt(inputs) for inputs, _ in shapes[:-1]] + [LAST]
    sizes = torch.tensor([(inputs + 1) * outputs for inputs, outputs in shapes])
    spread = torch.repeat_interleave(torch.tensor(bounds, dtype=DTYPE), sizes)
    return (2.0 * u[: size(shapes)] - 1.0) * spread


def layers(net: Tensor, shapes: Shapes) -> Params:
    """The weights and biases in a net's one vector."""
    layers, first = {}, 0
    for layer, (inputs, outputs) in enumerate(shapes, 1):
        middle, last = first + inputs * outputs, first + (inputs + 1) * outputs
        layers[f"w{layer}"], layers[f"b{layer}"] = (
            net[first:middle].view(inputs, outputs),
            net[middle:last],
        )
        first = last
    return layers
