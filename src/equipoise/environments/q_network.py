"""Stacked Q-networks of many agents, and Adam for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from equipoise.core import Blocks, Params, State
from equipoise.environments.heterogeneity import Flags, Ints
from equipoise.rl.nn import BETAS, EPSILON

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

    def __init__(
        self, net: Net, rhythm: Rhythm, params: Tensor, slope: Tensor, kept: State
    ) -> None:
        """``slope``: where the gradient of ``params`` will lie."""
        self.net = net
        self.m, self.v = (net.pack(kept["adam"][name]) for name in ("m", "v"))
        self.stacks = (params, slope, self.m, self.v)
        self.updates: Ints = kept["updates"].numpy().copy()  # of backbone and head, [K, 2]
        self.rates = torch.cat([rhythm.body_lr, rhythm.lr], 1).double().numpy()
        counts, rates = self.updates, self.rates
        self.agents_alike = bool((counts == counts[:1]).all() and (rates == rates[:1]).all())
        self.blocks_alike = bool(
            (counts[:, 0] == counts[:, 1]).all() and (rates[:, 0] == rates[:, 1]).all()
        )
        border = len(counts) * net.border
        self.parts = [
            [[stack[where]] for stack in self.stacks]
            for where in (slice(border), slice(border, None), slice(None))
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
    options = {
        "lr": float(rate),
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "eps": EPSILON,
        "weight_decay": 0.0,
    }
    torch.ops.aten._fused_adam_(
        params, slopes, m, v, [], steps, **options, amsgrad=False, maximize=False
    )


def copies_of(views: Params) -> Params:
    """Stacks of their own memory."""
    return {name: value.clone() for name, value in views.items()}


@dataclass(frozen=True)
class Net:
    """Sizes of a net, and where its parameters lie. With ``embedding`` > 0 each agent has an input e of its own."""

    inputs: int
    width: int
    outputs: int
    embedding: int = 0

    @property
    def action_size(self) -> int:
        """Numbers of an action in the memory."""
        return 1

    @property
    def action_draws(self) -> int:
        """Uniform numbers that an action uses."""
        return 2

    @property
    def learning_draws(self) -> int:
        """Uniform numbers that learning from one remembered transition uses, beside the one that chose it."""
        return 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """In the order in which parameters lie in the vector: backbone, then head."""
        h = self.width
        body = {"w1": (self.inputs, h), "b1": (h,), "w2": (h, h), "b2": (h,)}
        head = {
            "w3": (self.outputs, h),
            "b3": (self.outputs,),
        }  # this way round its narrow products are fast
        return {
            **body,
            **head,
            **({"w0": (self.embedding, h), "e": (self.embedding,)} if self.embedding else {}),
        }

    @property
    def fan(self) -> dict[str, int]:
        """Inputs of a unit of each layer."""
        first = self.inputs + self.embedding
        return {"0": first, "1": first, "2": self.width, "3": self.width}

    @property
    def blocks(self) -> Blocks:
        """What is personal stands under ``head``: the last layer, or with an embedding that alone."""
        names, body = tuple(self.shapes), -1 if self.embedding else 4
        return {"backbone": names[:body], "head": names[body:]}

    @cached_property
    def places(self) -> dict[str, slice]:
        places, first = {}, 0
        for name, shape in self.shapes.items():
            places[name] = slice(first, first + math.prod(shape))
            first += math.prod(shape)
        return places

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @cached_property
    def border(self) -> int:
        """Where the backbone ends and the head begins."""
        return int(self.places[self.blocks["head"][0]].start)

    def init(self, u: Tensor) -> Params:
        """From ``size`` uniform numbers: PyTorch's own ranges, U(-1/sqrt(inputs), 1/sqrt(inputs)); e in U(-1, 1)."""
        bound = {
            name: 1 / math.sqrt(self.fan[name[1]]) if name != "e" else 1.0 for name in self.shapes
        }
        return {
            n: ((2 * u[self.places[n]] - 1) * bound[n]).view(shape)
            for n, shape in self.shapes.items()
        }

    def pack(self, tree: Params) -> Tensor:
        """The one vector ``[K size]`` of a tree of stacks, as a copy."""
        return torch.cat([tree[name].reshape(-1) for name in self.shapes])

    def views(self, flat: Tensor) -> Params:
        """A tree of stacks that shares its memory with the vector."""
        k = len(flat) // self.size
        return {
            name: flat[k * place.start : k * place.stop].view(k, *self.shapes[name])
            for name, place in self.places.items()
        }

    def owners(self, agents: int) -> Tensor:
        """Whose each number of the vector is."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return torch.cat([torch.arange(agents).repeat_interleave(size) for size in sizes])

    def features(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both hidden layers at inputs ``[K, B, inputs]``; the second is the representation."""
        bias = net["b1"].unsqueeze(1)
        if (
            self.embedding
        ):  # [x, e] W = x W1 + e W0: an input that is the same for every x is a bias
            bias = torch.baddbmm(bias, net["e"].unsqueeze(1), net["w0"])
        return self.second(net, torch.baddbmm(bias, x, net["w1"]).relu_())

    def second(self, net: Params, one: Tensor) -> tuple[Tensor, Tensor]:
        """The first hidden layer, and the second that follows from it."""
        return one, torch.baddbmm(net["b2"].unsqueeze(1), one, net["w2"]).relu_()

    def look(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both hidden layers, and the values that the head reads from the second."""
        one, two = self.features(net, x)
        return one, two, self.head(net, two)

    def values(self, net: Params, x: Tensor) -> Tensor:
        """Q(x, .) ``[K, B, outputs]``."""
        return self.look(net, x)[2]

    def head(self, net: Params, two: Tensor) -> Tensor:
        return torch.baddbmm(net["b3"].unsqueeze(1), two, net["w3"].mT)

    def greedy(self, net: Params, x: Tensor) -> Tensor:
        """The best actions ``[K, B]``."""
        return self.values(net, x).argmax(-1)

    def slope(
        self,
        net: Params,
        x: Tensor,
        one: Tensor,
        two: Tensor,
        d3: Tensor,
        out: Params,
        body: bool = True,
    ) -> None:
        """Into ``out``: gradient of a loss with derivative ``d3`` by the outputs; of the head alone without ``body``.

        The way to an embedding, which is the head of such a net, leads through the body.
        """
        torch.bmm(d3.mT, two, out=out["w3"])
        torch.sum(d3, 1, out=out["b3"])
        if not body and not self.embedding:
            return
        d2 = through_relu(torch.bmm(d3, net["w3"]), two)
        torch.bmm(one.mT, d2, out=out["w2"])
        torch.sum(d2, 1, out=out["b2"])
        d1 = through_relu(torch.bmm(d2, net["w2"].mT), one)
        self.first_slope(x, d1, out)
        if self.embedding:
            out["w0"].copy_(net["e"].unsqueeze(2) * out["b1"].unsqueeze(1))
            out["e"].copy_(torch.bmm(net["w0"], out["b1"].unsqueeze(2)).squeeze(2))

    def first_slope(self, x: Tensor, d1: Tensor, out: Params) -> None:
        """Of the first layer, whose outputs have the derivative ``d1``."""
        torch.bmm(x.mT, d1, out=out["w1"])
        torch.sum(d1, 1, out=out["b1"])


def through_relu(slope: Tensor, activation: Tensor) -> Tensor:
    """The slope where the unit is active, else 0, in its place: PyTorch's own kernel, much faster than comparing."""
    back: Tensor = torch.ops.aten.threshold_backward.grad_input(
        slope, activation, 0, grad_input=slope
    )
    return back
