"""Encode an environment's observations as network inputs, and a convolutional network for images.

Supported are discrete states (one-hot), vectors and byte images; the newest ones can be stacked.
"""

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
from equipoise.environments.heterogeneity import Floats, Obs
from equipoise.environments.q_network import Net
from equipoise.utils.errors import UsageError

MAX_PIXEL = 255.0
NORMALISATION_STEPS = 1000  # random steps from which mean and standard deviation are estimated
NUM_FILTERS = 16
CONV_SIDE = 20  # approximate side of the convolution's output; larger images get a larger stride


@dataclass(frozen=True)
class ObsEncoder:
    """Encode one observation as ``[..., size]`` numbers, and stack the newest `frames`."""

    size: int
    frames: int = 1
    num_states: int = 0
    """Number of discrete states, for one-hot encoding; 0 for other observations."""
    first_state: int = 0
    """The smallest number of a discrete state."""
    image_sides: tuple[int, ...] = ()
    """Height, width and, for colour images, channels; empty for other observations."""

    @classmethod
    def from_space(cls, space: Any, frames: int = 1) -> ObsEncoder:
        """Create the encoder of a Gymnasium observation space.

        Raises:
            UsageError: If the space is neither a vector, discrete, nor a byte image.
        """
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            return cls(int(space.n), frames, int(space.n), int(space.start))
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            return cls(int(space.shape[0]), frames)
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
            return cls(math.prod(space.shape), frames, image_sides=space.shape)
        raise UsageError(
            f"the environment shows {space}: "
            "only a vector, the number of a state or an image of bytes can be seen here"
        )

    @property
    def obs_dim(self) -> int:
        """Size of the stacked observation."""
        return self.frames * self.size

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the stacked images; None for other observations."""
        if not self.image_sides:
            return None
        height, width, channels = (*self.image_sides, 1)[:3]
        return channels * self.frames, height, width

    def encode(self, obs: npt.NDArray[Any]) -> Obs:
        """Encode observations as ``[..., size]``; pixels in [0, 1], channels first."""
        if self.num_states:
            obs = np.eye(self.num_states)[obs - self.first_state]
        elif self.image_sides:
            batch_shape = obs.shape[: obs.ndim - len(self.image_sides)]
            channels_first = obs if len(self.image_sides) == 2 else np.moveaxis(obs, -1, -3)
            obs = channels_first.reshape(*batch_shape, self.size) / MAX_PIXEL
        return obs.astype(np.float32)

    def first_stack(self, encoded: Obs) -> Obs:
        """Return the stack at the start of an episode: the first observation, repeated."""
        return np.concatenate([encoded] * self.frames, -1)

    def push(self, stack: Obs, encoded: Obs) -> Obs:
        """Drop the oldest observation of a stack and append the newest."""
        return np.concatenate([stack[..., self.size :], encoded], -1)


def obs_mean_std(make: Callable[..., Any], encoder: ObsEncoder, seed: int) -> tuple[Floats, Floats]:
    """Estimate mean and standard deviation of encoded observations under random actions.

    Args:
        make: Factory of the environment.
        encoder: Encoder of its observations.
        seed: Seed of the environment and the actions.

    Returns:
        Mean and standard deviation ``[size]``; the latter is 1 for constant numbers.
    """
    env = make()
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    observations = [obs]
    for _ in range(NORMALISATION_STEPS):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(obs)
        if terminated or truncated:
            observations.append(env.reset()[0])
    env.close()
    encoded = encoder.encode(np.stack(observations)).astype(np.float64)
    std = encoded.std(0)
    return encoded.mean(0), np.where(std > 0, std, 1.0)


@dataclass(frozen=True)
class ConvNet(Net):
    """A convolution, a hidden layer (the representation) and a linear head."""

    image_shape: tuple[int, int, int] = (1, 1, 1)
    """Channels, height and width."""

    @property
    def stride(self) -> int:
        """Stride of the convolution."""
        return max(1, min(self.image_shape[1:]) // CONV_SIDE)

    @property
    def kernel(self) -> int:
        """Side of a patch: twice the stride, so that patches overlap by half; 3 at stride 1."""
        side = 3 if self.stride == 1 else 2 * self.stride
        return min(side, *self.image_shape[1:])

    @property
    def patches(self) -> tuple[int, int]:
        """Height and width of the convolution's output."""
        height, width = ((side - self.kernel) // self.stride + 1 for side in self.image_shape[1:])
        return height, width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters; "w1" and "b1" are the convolution."""
        return {
            **super().shapes,
            "w1": (NUM_FILTERS, self.image_shape[0], self.kernel, self.kernel),
            "b1": (NUM_FILTERS,),
            "w2": (NUM_FILTERS * math.prod(self.patches), self.width),
        }

    @property
    def fan_in(self) -> dict[str, int]:
        """Inputs of a unit of each layer."""
        return {
            **super().fan_in,
            "1": self.image_shape[0] * self.kernel**2,
            "2": NUM_FILTERS * math.prod(self.patches),
        }

    def features(self, net: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both hidden layers at inputs ``[K, B, inputs]``."""
        k, batch = x.shape[:2]
        weights = net["w1"].flatten(0, 1)
        bias = net["b1"].flatten()
        conv = functional.conv2d(self._images(x), weights, bias, self.stride, groups=k)
        one = conv.view(batch, k, -1).transpose(0, 1).contiguous().relu_()
        return self.second_layer(net, one)

    def backward_first_layer(self, x: Tensor, d1: Tensor, out: Params) -> None:
        """Write the gradient of the convolution, whose outputs have the derivative `d1`."""
        k, batch = x.shape[:2]
        d_conv = d1.transpose(0, 1).reshape(batch, k * NUM_FILTERS, *self.patches)
        shape = (k * NUM_FILTERS, self.image_shape[0], self.kernel, self.kernel)
        d_weight = grad.conv2d_weight(self._images(x), shape, d_conv, self.stride, groups=k)
        out["w1"].copy_(d_weight.view_as(out["w1"]))
        out["b1"].copy_(d_conv.sum((0, 2, 3)).view_as(out["b1"]))

    def _images(self, x: Tensor) -> Tensor:
        """Return ``[B, K channels, height, width]``: the agents' images as channel groups."""
        k, batch = x.shape[:2]
        return x.transpose(0, 1).reshape(batch, k * self.image_shape[0], *self.image_shape[1:])


LEARNERS[ConvNet] = Learner
