"""Transforms from stored rows to a model's input.

Images and tokens stay small integers in memory; each batch is converted when it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.data.federated_dataset import InputTransform

MISSING_INPUT = -1e30
"""Input of trees where a value is missing. A finite number: rows of a federation must be finite."""


class PixelTransform(InputTransform, frozen=True):
    """Normalise images that are stored as bytes ``[H, W, C]``.

    The result is ``[C, H, W]``, with channels last in memory.

    Attributes:
        mean: Mean of each channel, for pixel values in [0, 1].
        std: Standard deviation of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def output_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Move the channels to the front."""
        return (stored[2], *stored[:2])

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise bytes ``[..., H, W, C]`` to floats ``[..., C, H, W]``."""
        values = x.to(dtype)
        mean = torch.tensor(self.mean, dtype=dtype).to(x.device) * 255.0
        std = torch.tensor(self.std, dtype=dtype).to(x.device) * 255.0
        values.sub_(mean).mul_(1.0 / std)
        return values.movedim(-1, -3)


class TokenTransform(InputTransform, frozen=True):
    """Convert stored token indices to int64."""

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert to int64; ``dtype`` does not matter for indices."""
        return x.long()
