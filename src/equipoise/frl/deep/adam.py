"""Adam of K agents where their parameters lie, and the rhythm in which body and head move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import State, Tree
from equipoise.control.learning import BETAS, EPSILON
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.physics import Flags, Floats, Ints

BOTH = 2  # backbone (0) and head (1) as one
TOGETHER = -1  # no rhythm: both blocks move in every gradient step


@dataclass(frozen=True)
class Rhythm:
    """Which block moves when, and how fast: K steps of the head under a frozen body, one of the body under it."""

    lr: Tensor
    """``[K, 1]``: of the head, or of everything."""
    body_lr: Tensor
    head_steps: int = TOGETHER
    moves: tuple[bool, bool] = (True, True)
    """Whether backbone and head may move at all."""

    def blocks(self, step: int) -> tuple[bool, bool]:
        """Whether (backbone, head) move in this gradient step of the call."""
        if self.head_steps == TOGETHER:
            return self.moves
        body = step % (self.head_steps + 1) == self.head_steps
        return self.moves[0] and body, self.moves[1] and not body


class StackedAdam:
    """Working copies of the moments; agents may have taken different numbers of steps, at different rates."""

    def __init__(self, net: Net, rhythm: Rhythm, params: Tensor, slope: Tensor, kept: State) -> None:
        """``slope``: where the gradient of ``params`` will lie."""
        self.net, self.dtype = net, params.dtype
        self.m, self.v = (net.pack(kept["adam"][name]) for name in ("m", "v"))
        self.updates: Ints = kept["updates"].numpy().copy()  # of backbone and head, [K, 2]
        self.rates = [rate[:, 0].double().numpy() for rate in (rhythm.body_lr, rhythm.lr)]
        agents, counts = len(self.updates), self.updates
        self.owners, border = net.owners(agents), agents * net.border
        self.agents_alike = bool((counts == counts[:1]).all()) and all((rate == rate[0]).all() for rate in self.rates)
        self.blocks_alike = torch.equal(rhythm.body_lr, rhythm.lr) and bool((counts[:, 0] == counts[:, 1]).all())
        size = torch.empty_like(params)
        self.parts = [
            tuple(stack[where] for stack in (params, slope, self.m, self.v, size, self.owners))
            for where in (slice(border), slice(border, None), slice(None))
        ]

    def state(self) -> State:
        moments = {"m": copies_of(self.net.views(self.m)), "v": copies_of(self.net.views(self.v))}
        return {"adam": moments, "updates": torch.from_numpy(self.updates)}

    def of_each(self, values: Floats | Flags, owners: Tensor) -> Tensor:
        """One value an agent, at each of its numbers."""
        return torch.from_numpy(values).to(self.dtype)[owners]

    def move(self, moving: tuple[bool, bool], only: Flags | None) -> None:
        """A step of (backbone, head), of all agents or of ``only`` some."""
        self.agents_alike = self.agents_alike and only is None
        self.blocks_alike = self.blocks_alike and all(moving)
        for block in (0, 1):
            if moving[block]:
                self.updates[:, block] += 1 if only is None else only
                if not self.blocks_alike:
                    self._move(block, block, only)
        if self.blocks_alike:  # blocks that always moved together are one
            self._move(0, BOTH, only)

    def _move(self, block: int, part: int, only: Flags | None) -> None:
        """p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps sqrt(1 - b2^t)): corrections by number, not by net."""
        first, second = BETAS
        params, slope, m, v, size, owners = self.parts[part]
        before = [stack.clone() for stack in (params, m, v)] if only is not None else []
        m.lerp_(slope, 1 - first)
        v.mul_(second).addcmul_(slope, slope, value=1 - second)
        np.sqrt(v.numpy(), out=size.numpy())  # where units are dead v has zeros, and PyTorch's own is slow at them
        if self.agents_alike:
            steps = int(self.updates[0, block])
            root = math.sqrt(1 - second**steps)
            rate = float(self.rates[block][0]) * root / (1 - first**steps)
            params.addcdiv_(m, size.add_(EPSILON * root), value=-rate)
        else:
            counts = np.maximum(self.updates[:, block], 1)
            roots = np.sqrt(1 - second**counts)
            rates = self.rates[block] * roots / (1 - first**counts)
            params.addcdiv_(m * self.of_each(-rates, owners), size.add_(self.of_each(EPSILON * roots, owners)))
        if only is not None:
            moved = torch.from_numpy(only)[owners]
            for stack, old in zip((params, m, v), before, strict=True):
                stack.copy_(torch.where(moved, stack, old))


def copies_of(views: Tree) -> Tree:
    """Stacks of their own memory."""
    return {name: value.clone() for name, value in views.items()}
