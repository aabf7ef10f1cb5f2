"""From an agent's action in [-1, 1] to what it means: in the whole box of the paper, or around what is configured."""

from __future__ import annotations

import math

import torch
from torch import Tensor

NEAR_EPOCHS, NEAR_RATE, NEAR_WEIGHT = 2.0, 10.0, 1.5  # the largest factor by which an action moves what is configured


def epochs_of(action: Tensor, most: int) -> Tensor:
    """1 .. ``most``, in bins of one width."""
    return (1 + ((action + 1) / 2 * most).floor().clamp(0, most - 1)).long()


def rate_of(action: Tensor, low: float, high: float) -> Tensor:
    """``low`` .. ``high`` on a log scale: -1, 0, 1 are the ends and their geometric mean."""
    return low * torch.exp((action + 1) / 2 * math.log(high / low))


def epochs_near(action: Tensor, configured: Tensor, most: int) -> Tensor:
    """Half to twice as many as configured, at most ``most`` unless more are configured."""
    most_here = configured.clamp(min=most)
    return torch.minimum((configured * NEAR_EPOCHS**action).round().clamp(min=1), most_here).long()


def rate_near(action: Tensor, configured: Tensor, low: float, high: float) -> Tensor:
    """A tenth to ten times the configured rate, kept between ``low`` and ``high`` unless it lies outside itself."""
    least, most = configured.clamp(max=low), configured.clamp(min=high)
    return torch.minimum(torch.maximum(configured * NEAR_RATE**action, least), most)


def simplex(action: Tensor, span: float = 10.0) -> Tensor:
    """Weights that sum to one, all above zero: proportional to ``span ** action``."""
    return torch.softmax(action * math.log(span), -1)


def exponent_of(action: Tensor) -> Tensor:
    """kappa in [0, 1], one half at zero."""
    return 0.5 + 0.5 * action


def published(action: Tensor, low: float, high: float) -> Tensor:
    """The map of the authors' code: (tanh + 1)/2 *clipped* to the range of rates, so that half of it means ``high``."""
    return ((action + 1) / 2).clamp(low, high)
