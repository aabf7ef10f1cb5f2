"""From an agent's action in [-1, 1] to what it means: every part of the range is used, none is clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def epochs_of(action: Tensor, most: int) -> Tensor:
    """1 .. ``most``, in bins of one width."""
    return (1 + ((action + 1) / 2 * most).floor().clamp(0, most - 1)).long()


def rate_of(action: Tensor, low: float, high: float) -> Tensor:
    """``low`` .. ``high`` on a log scale: -1, 0, 1 are the ends and their geometric mean."""
    return low * torch.exp((action + 1) / 2 * math.log(high / low))


def simplex(action: Tensor, span: float = 10.0) -> Tensor:
    """Weights that sum to one, all above zero: proportional to ``span ** action``."""
    return torch.softmax(action * math.log(span), -1)


def published(action: Tensor, low: float, high: float) -> Tensor:
    """The map of the authors' code: (tanh + 1)/2 *clipped* to the range of rates, so that half of it means ``high``."""
    return ((action + 1) / 2).clamp(low, high)
