"""Adam of K agents where their parameters lie, and the rhythm in which body and head move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import State, Params
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.traits import Flags, Ints
from equipoise.learners.learning import BETAS, EPSILON

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
        self.net = net
        self.m, self.v = (net.pack(kept["adam"][name]) for name in ("m", "v"))
        self.stacks = (params, slope, self.m, self.v)
        self.updates: Ints = kept["updates"].numpy().copy()  # of backbone and head, [K, 2]
        self.rates = torch.cat([rhythm.body_lr, rhythm.lr], 1).double().numpy()
        counts, rates = self.updates, self.rates
        self.agents_alike = bool((counts == counts[:1]).all() and (rates == rates[:1]).all())
        self.blocks_alike = bool((counts[:, 0] == counts[:, 1]).all() and (rates[:, 0] == rates[:, 1]).all())
        border = len(counts) * net.border
        self.parts = [
            [[stack[where]] for stack in self.stacks] for where in (slice(border), slice(border, None), slice(None))
        ]

    @cached_property
    def own_parts(self) -> list[list[list[list[Tensor]]]]:
        """Of each agent alone: (backbone, head), each as parameters, slopes and moments."""
        trees = [self.net.views(stack) for stack in self.stacks]
        blocks = [self.net.blocks[block] for block in ("backbone", "head")]
        return [
            [[[tree[name][k] for name in names] for tree in trees] for names in blocks]
            for k in range(len(self.updates))
        ]

    def state(self) -> State:
        moments = {"m": copies_of(self.net.views(self.m)), "v": copies_of(self.net.views(self.v))}
        return {"adam": moments, "updates": torch.from_numpy(self.updates)}

    def move(self, moving: tuple[bool, bool], only: Flags | None) -> None:
        """A step of (backbone, head), of all agents or of ``only`` some."""
        self.agents_alike = self.agents_alike and only is None
        self.blocks_alike = self.blocks_alike and all(moving)
        blocks = [block for block in (0, 1) if moving[block]]
        for block in blocks:
            self.updates[:, block] += 1 if only is None else only
        if self.agents_alike:  # what always moved together is one
            for block in (blocks[0],) if self.blocks_alike else blocks:
                part = self.parts[BOTH if self.blocks_alike else block]
                _adam(part, self.updates[0, block], self.rates[0, block])
            return
        for block in blocks:
            for k in range(len(self.updates)) if only is None else np.flatnonzero(only):
                _adam(self.own_parts[k][block], self.updates[k, block], self.rates[k, block])


def _adam(part: list[list[Tensor]], step: int, rate: float) -> None:
    """The kernel of ``torch.optim.Adam(fused=True)``: one pass over memory takes a third of the time of seven."""
    params, slopes, m, v = part
    steps = [torch.tensor(float(step))] * len(params)
    options = {"lr": float(rate), "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPSILON, "weight_decay": 0.0}
    torch.ops.aten._fused_adam_(params, slopes, m, v, [], steps, **options, amsgrad=False, maximize=False)


def copies_of(views: Params) -> Params:
    """Stacks of their own memory."""
    return {name: value.clone() for name, value in views.items()}
