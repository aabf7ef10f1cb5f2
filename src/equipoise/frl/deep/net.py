"""Q-networks of K agents as one computation: two hidden layers (the representation) and a linear head.

A stack's parameters lie in one vector, block after block and in it name after name, each with its K agents together:
an update is a few kernels, and every product reads and writes memory in one piece. Gradients are written out: with nets
of this size autograd costs more than the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equipoise.contract import Blocks, Params


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
        head = {"w3": (self.outputs, h), "b3": (self.outputs,)}  # this way round its narrow products are fast
        return {**body, **head, **({"w0": (self.embedding, h), "e": (self.embedding,)} if self.embedding else {})}

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
        bound = {name: 1 / math.sqrt(self.fan[name[1]]) if name != "e" else 1.0 for name in self.shapes}
        return {n: ((2 * u[self.places[n]] - 1) * bound[n]).view(shape) for n, shape in self.shapes.items()}

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
        if self.embedding:  # [x, e] W = x W1 + e W0: an input that is the same for every x is a bias
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

    def slope(self, net: Params, x: Tensor, one: Tensor, two: Tensor, d3: Tensor, out: Params, body: bool = True) -> None:
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
    back: Tensor = torch.ops.aten.threshold_backward.grad_input(slope, activation, 0, grad_input=slope)
    return back
