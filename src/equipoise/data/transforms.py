"""How stored rows become a model's input: small integers stay small in memory and are prepared batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputTransform:
    """Numbers, used as they are."""

    def output_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a prepared sample, from that of a stored one."""
        return stored

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows ``[..., *stored]`` as the model takes them."""
        return x.to(dtype)


@dataclass(frozen=True)
class PixelTransform(InputTransform):
    """Images stored as bytes ``[H, W, C]``; prepared as ``[C, H, W]`` (channels last in memory), normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def output_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return (stored[2], *stored[:2])

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        values = x.to(dtype)
        mean, std = (
            torch.tensor(v, dtype=dtype).to(x.device) * 255.0 for v in (self.mean, self.std)
        )
        values.sub_(mean).mul_(1.0 / std)
        return values.movedim(-1, -3)


@dataclass(frozen=True)
class TokenTransform(InputTransform):
    """Positions in an alphabet."""

    def prepare(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.long()
