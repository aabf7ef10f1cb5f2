"""Q-networks that see images: the first layer is a convolution, one for each of K agents in one grouped call."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional, grad

from equipoise.contract import Params
from equipoise.frl.deep.learner import LEARNERS, Learner
from equipoise.frl.deep.net import Net

FILTERS = 16
COARSEST = 20  # places to a side that a convolution leaves, about: larger images are looked at in larger strides


@dataclass(frozen=True)
class ImageNet(Net):
    """A convolution, a hidden layer (the representation) and a linear head."""

    image: tuple[int, int, int] = (1, 1, 1)
    """Channels, height and width."""

    @property
    def stride(self) -> int:
        return max(1, min(self.image[1:]) // COARSEST)

    @property
    def kernel(self) -> int:
        """Neighbouring patches overlap by half, and small images are seen in patches of 3."""
        return min(3 if self.stride == 1 else 2 * self.stride, *self.image[1:])

    @property
    def patches(self) -> tuple[int, int]:
        """Places of the convolution, down and across."""
        down, across = ((side - self.kernel) // self.stride + 1 for side in self.image[1:])
        return down, across

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        first = {"w1": (FILTERS, self.image[0], self.kernel, self.kernel), "b1": (FILTERS,)}
        return {**super().shapes, **first, "w2": (FILTERS * math.prod(self.patches), self.width)}

    @property
    def fan(self) -> dict[str, int]:
        return {**super().fan, "1": self.image[0] * self.kernel**2, "2": FILTERS * math.prod(self.patches)}

    def features(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        k, batch = x.shape[:2]
        weights, bias = net["w1"].flatten(0, 1), net["b1"].flatten()
        seen = functional.conv2d(self._pictures(x), weights, bias, self.stride, groups=k)
        return self.second(net, seen.view(batch, k, -1).transpose(0, 1).contiguous().relu_())

    def first_slope(self, x: Tensor, d1: Tensor, out: Params) -> None:
        k, batch = x.shape[:2]
        slope = d1.transpose(0, 1).reshape(batch, k * FILTERS, *self.patches)
        shape = (k * FILTERS, self.image[0], self.kernel, self.kernel)
        found = grad.conv2d_weight(self._pictures(x), shape, slope, self.stride, groups=k)
        out["w1"].copy_(found.view_as(out["w1"]))
        out["b1"].copy_(slope.sum((0, 2, 3)).view_as(out["b1"]))

    def _pictures(self, x: Tensor) -> Tensor:
        """``[B, K channels, height, width]``: the agents' images side by side."""
        k, batch = x.shape[:2]
        return x.transpose(0, 1).reshape(batch, k * self.image[0], *self.image[1:])


LEARNERS[ImageNet] = Learner
