"""What nets are given of what an environment shows: numbered states, vectors and images, the newest ones together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional, grad

from equipoise.core import Params
from equipoise.environments.dqn_agent import LEARNERS, Learner
from equipoise.environments.heterogeneity import Floats, Seen
from equipoise.environments.q_network import Net
from equipoise.utils.errors import UsageError

BYTE = 255.0
TRIED = 1000  # random steps in an environment, from which its numbers' usual sizes are taken


@dataclass(frozen=True)
class Sight:
    """How one observation becomes ``[..., size]`` numbers, of which ``frames`` newest ones are seen at once."""

    size: int
    frames: int = 1
    kinds: int = 0
    """States that are numbered from ``first`` on: each number has a place of its own."""
    first: int = 0
    sides: tuple[int, ...] = ()
    """Of an image: height, width and, if it has colours, channels."""

    @classmethod
    def of(cls, space: Any, frames: int = 1) -> Sight:
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            return cls(int(space.n), frames, int(space.n), int(space.start))
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            return cls(int(space.shape[0]), frames)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
            return cls(math.prod(space.shape), frames, sides=space.shape)
        raise UsageError(
            f"the environment shows {space}: only a vector, the number of a state or an image of bytes can be seen here"
        )

    @property
    def observations(self) -> int:
        return self.frames * self.size

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width of all that is seen at once, if it is an image."""
        if not self.sides:
            return None
        height, width, channels = (*self.sides, 1)[:3]
        return channels * self.frames, height, width

    def numbers(self, shown: npt.NDArray[Any]) -> Seen:
        """``[..., size]``; an image in shares of the brightest, channel after channel."""
        if self.kinds:
            shown = np.eye(self.kinds)[shown - self.first]
        elif self.sides:
            lead = shown.shape[: shown.ndim - len(self.sides)]
            rows = shown if len(self.sides) == 2 else np.moveaxis(shown, -1, -3)
            shown = rows.reshape(*lead, self.size) / BYTE
        return shown.astype(np.float32)

    def begin(self, seen: Seen) -> Seen:
        """At the start of an episode there is nothing older: the first is seen in all places."""
        return np.concatenate([seen] * self.frames, -1)

    def go_on(self, held: Seen, seen: Seen) -> Seen:
        """The oldest goes, the newest comes."""
        return np.concatenate([held[..., self.size :], seen], -1)


def usual_sizes(make: Callable[..., Any], sight: Sight, seed: int) -> tuple[Floats, Floats]:
    """Mean and spread of the numbers that an environment shows while it is acted in at random."""
    env = make()
    env.action_space.seed(seed)
    shown, _ = env.reset(seed=seed)
    found = [shown]
    for _ in range(TRIED):
        shown, _, terminated, truncated, _ = env.step(env.action_space.sample())
        found.append(shown)
        if terminated or truncated:
            found.append(env.reset()[0])
    env.close()
    numbers = sight.numbers(np.stack(found)).astype(np.float64)
    spread = numbers.std(0)
    return numbers.mean(0), np.where(spread > 0, spread, 1.0)


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
        return {
            **super().fan,
            "1": self.image[0] * self.kernel**2,
            "2": FILTERS * math.prod(self.patches),
        }

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
