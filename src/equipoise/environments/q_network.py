"""Q-networks of K agents with stacked parameters, their gradients by hand, and Adam for them.

All parameters of K agents lie in one vector ``[K size]``: parameter after parameter, backbone
before head, and within a parameter agent after agent. So a block of all agents is contiguous, and
one fused Adam call updates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from equipoise.core import Blocks, Params, State
from equipoise.environments.heterogeneity import Bools, Ints
from equipoise.rl.nn import BETAS, EPSILON
from equipoise.utils.torch_internals import adam_step

BOTH_BLOCKS = 2  # index of backbone (0) and head (1) as one part
EVERY_STEP = -1  # value of `head_steps`: both blocks move in every gradient step


@dataclass(frozen=True)
class Net:
    """An MLP with two hidden layers. With ``embedding`` > 0 each agent has its own input e.

    Methods take stacked parameters ``[K, ...]`` and inputs ``[K, B, inputs]``.
    """

    inputs: int
    width: int
    outputs: int
    embedding: int = 0
    """Size of e, or 0."""

    @property
    def action_size(self) -> int:
        """Numbers per action in the replay buffer."""
        return 1

    @property
    def action_noise_dim(self) -> int:
        """Uniform numbers that one action consumes."""
        return 2

    @property
    def update_noise_dim(self) -> int:
        """Uniform numbers that one sampled transition consumes, besides the one that samples it."""
        return 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, in the order of the vector: backbone, then head."""
        h = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "w1": (self.inputs, h),
            "b1": (h,),
            "w2": (h, h),
            "b2": (h,),
            "w3": (self.outputs, h),  # transposed: narrow products are faster this way
            "b3": (self.outputs,),
        }
        if self.embedding:
            shapes["w0"] = (self.embedding, h)
            shapes["e"] = (self.embedding,)
        return shapes

    @property
    def fan_in(self) -> dict[str, int]:
        """Inputs of a unit of each layer."""
        first = self.inputs + self.embedding
        return {"0": first, "1": first, "2": self.width, "3": self.width}

    @property
    def blocks(self) -> Blocks:
        """Parameter names of backbone and head; with an embedding, e alone is the head."""
        names = tuple(self.shapes)
        num_backbone = -1 if self.embedding else 4
        return {"backbone": names[:num_backbone], "head": names[num_backbone:]}

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Slice of each parameter in the vector of one agent."""
        slices = {}
        first = 0
        for name, shape in self.shapes.items():
            slices[name] = slice(first, first + math.prod(shape))
            first += math.prod(shape)
        return slices

    @property
    def size(self) -> int:
        """Number of parameters of one agent."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @cached_property
    def backbone_size(self) -> int:
        """Number of backbone parameters: the head begins there."""
        return int(self.slices[self.blocks["head"][0]].start)

    def init(self, u: Tensor) -> Params:
        """Initialise one agent's parameters.

        Args:
            u: Uniform numbers ``[size]``.

        Returns:
            Parameters in U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as in PyTorch; e in U(-1, 1).
        """
        params = {}
        for name, shape in self.shapes.items():
            bound = 1.0 if name == "e" else 1 / math.sqrt(self.fan_in[name[1]])
            params[name] = ((2 * u[self.slices[name]] - 1) * bound).view(shape)
        return params

    def pack(self, tree: Params) -> Tensor:
        """Copy stacked parameters ``[K, ...]`` into one vector ``[K size]``."""
        return torch.cat([tree[name].reshape(-1) for name in self.shapes])

    def views(self, flat: Tensor) -> Params:
        """Return stacked parameters ``[K, ...]`` that share the vector's memory."""
        k = len(flat) // self.size
        return {
            name: flat[k * where.start : k * where.stop].view(k, *self.shapes[name])
            for name, where in self.slices.items()
        }

    def agent_of_entry(self, agents: int) -> Tensor:
        """Return the agent of each entry of the vector, ``[K size]``."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return torch.cat([torch.arange(agents).repeat_interleave(size) for size in sizes])

    def features(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both hidden layers ``[K, B, width]``; the second is the representation."""
        bias = net["b1"].unsqueeze(1)
        if self.embedding:
            # [x, e] W = x W1 + e W0: an input that is the same for every x is a bias.
            bias = torch.baddbmm(bias, net["e"].unsqueeze(1), net["w0"])
        return self.second_layer(net, torch.baddbmm(bias, x, net["w1"]).relu_())

    def second_layer(self, net: Params, one: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first hidden layer and the second, computed from it."""
        return one, torch.baddbmm(net["b2"].unsqueeze(1), one, net["w2"]).relu_()

    def output_layer(self, net: Params, two: Tensor) -> Tensor:
        """Compute the outputs ``[K, B, outputs]`` from the second hidden layer."""
        return torch.baddbmm(net["b3"].unsqueeze(1), two, net["w3"].mT)

    def forward_all(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute both hidden layers and the outputs."""
        one, two = self.features(net, x)
        return one, two, self.output_layer(net, two)

    def forward(self, net: Params, x: Tensor) -> Tensor:
        """Compute the outputs ``[K, B, outputs]``: Q(x, .)."""
        return self.forward_all(net, x)[2]

    def greedy(self, net: Params, x: Tensor) -> Tensor:
        """Return the best actions ``[K, B]``."""
        return self.forward(net, x).argmax(-1)

    def backward(
        self,
        net: Params,
        x: Tensor,
        one: Tensor,
        two: Tensor,
        d3: Tensor,
        out: Params,
        body: bool = True,
    ) -> None:
        """Compute the gradient of a loss by hand (faster than autograd).

        Args:
            net: Stacked parameters.
            x: Inputs ``[K, B, inputs]``.
            one: First hidden layer at x.
            two: Second hidden layer at x.
            d3: Derivative of the loss by the outputs, ``[K, B, outputs]``.
            out: Where the gradient is written.
            body: If False, only the output layer's gradient. An embedding needs the whole path.
        """
        torch.bmm(d3.mT, two, out=out["w3"])
        torch.sum(d3, 1, out=out["b3"])
        if not body and not self.embedding:
            return
        d2 = relu_backward(torch.bmm(d3, net["w3"]), two)
        torch.bmm(one.mT, d2, out=out["w2"])
        torch.sum(d2, 1, out=out["b2"])
        d1 = relu_backward(torch.bmm(d2, net["w2"].mT), one)
        self.backward_first_layer(x, d1, out)
        if self.embedding:
            out["w0"].copy_(net["e"].unsqueeze(2) * out["b1"].unsqueeze(1))
            out["e"].copy_(torch.bmm(net["w0"], out["b1"].unsqueeze(2)).squeeze(2))

    def backward_first_layer(self, x: Tensor, d1: Tensor, out: Params) -> None:
        """Write the gradient of the first layer, whose outputs have the derivative `d1`.

        Args:
            x: Inputs of the layer.
            d1: Derivative of the loss by the layer's outputs.
            out: Gradients by name, which are written in place.
        """
        torch.bmm(x.mT, d1, out=out["w1"])
        torch.sum(d1, 1, out=out["b1"])


def relu_backward(gradient: Tensor, activation: Tensor) -> Tensor:
    """Zero the gradient where the unit is inactive, in place.

    This is PyTorch's own kernel, much faster than a comparison and a product.
    """
    masked: Tensor = torch.ops.aten.threshold_backward.grad_input(
        gradient, activation, 0, grad_input=gradient
    )
    return masked


def clone_tree(views: Params) -> Params:
    """Copy each tensor into its own memory."""
    return {name: value.clone() for name, value in views.items()}


@dataclass(frozen=True)
class BlockSchedule:
    """When each block learns, and at which rate.

    With ``head_steps`` = n, cycles of n steps of the head (backbone frozen) and one step of the
    backbone (head frozen).
    """

    lr: Tensor
    """``[K, 1]``: Learning rate of the head."""
    body_lr: Tensor
    """``[K, 1]``: Learning rate of the backbone."""
    head_steps: int = EVERY_STEP
    trainable: tuple[bool, bool] = (True, True)
    """Whether (backbone, head) learn at all."""

    def trained_blocks(self, step: int) -> tuple[bool, bool]:
        """Return whether (backbone, head) learn in this gradient step of the call."""
        if self.head_steps == EVERY_STEP:
            return self.trainable
        body = step % (self.head_steps + 1) == self.head_steps
        return self.trainable[0] and body, self.trainable[1] and not body


class BatchedAdam:
    """Adam for K agents that may differ in their numbers of steps and learning rates."""

    def __init__(
        self, net: Net, schedule: BlockSchedule, params: Tensor, gradient: Tensor, state: State
    ) -> None:
        """Create an optimizer that updates `params` in place.

        Args:
            net: The architecture.
            schedule: Learning rates of the blocks.
            params: Parameters, ``[K size]``.
            gradient: Memory in which their gradient will be found, ``[K size]``.
            state: Moments ("adam") and step counts ("updates"); not changed.
        """
        self.net = net
        self.m = net.pack(state["adam"]["m"])
        self.v = net.pack(state["adam"]["v"])
        self.stacks = (params, gradient, self.m, self.v)
        self.updates: Ints = state["updates"].numpy().copy()  # of (backbone, head), [K, 2]
        self.rates = torch.cat([schedule.body_lr, schedule.lr], 1).double().numpy()
        counts = self.updates
        rates = self.rates
        self.same_agents = bool((counts == counts[:1]).all() and (rates == rates[:1]).all())
        self.same_blocks = bool(
            (counts[:, 0] == counts[:, 1]).all() and (rates[:, 0] == rates[:, 1]).all()
        )
        border = len(counts) * net.backbone_size
        block_slices = (slice(border), slice(border, None), slice(None))
        self.block_views = [[[stack[where]] for stack in self.stacks] for where in block_slices]

    @cached_property
    def agent_views(self) -> list[list[list[list[Tensor]]]]:
        """Views of each agent and block: parameters, gradient and both moments."""
        trees = [self.net.views(stack) for stack in self.stacks]
        blocks = [self.net.blocks[block] for block in ("backbone", "head")]
        return [
            [[[tree[name][k] for name in names] for tree in trees] for names in blocks]
            for k in range(len(self.updates))
        ]

    def state_dict(self) -> State:
        """Return moments and step counts."""
        moments = {"m": clone_tree(self.net.views(self.m)), "v": clone_tree(self.net.views(self.v))}
        return {"adam": moments, "updates": torch.from_numpy(self.updates)}

    def step(self, trained: tuple[bool, bool], only: Bools | None) -> None:
        """Take one step.

        Args:
            trained: Whether (backbone, head) move.
            only: ``[K]``, the agents that move; all if None.
        """
        self.same_agents = self.same_agents and only is None
        self.same_blocks = self.same_blocks and all(trained)
        blocks = [block for block in (0, 1) if trained[block]]
        for block in blocks:
            self.updates[:, block] += 1 if only is None else only
        if self.same_agents and self.same_blocks:
            self._step_block(BOTH_BLOCKS, blocks[0])
        elif self.same_agents:
            for block in blocks:
                self._step_block(block, block)
        else:
            agents = range(len(self.updates)) if only is None else np.flatnonzero(only)
            for block in blocks:
                for k in agents:
                    _adam(self.agent_views[k][block], self.updates[k, block], self.rates[k, block])

    def _step_block(self, part: int, block: int) -> None:
        """Update a part of all agents with the step count and rate of a block of agent 0."""
        _adam(self.block_views[part], self.updates[0, block], self.rates[0, block])


def _adam(views: list[list[Tensor]], step: int, rate: float) -> None:
    """Take a step of Adam on parameters, gradients and both moments."""
    adam_step(*views, step=step, lr=float(rate), betas=BETAS, eps=EPSILON)
