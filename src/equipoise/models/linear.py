"""Models for feature vectors."""

from __future__ import annotations

import math

from torch import nn

HIDDEN = 64


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression, started at zero."""
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer if len(shape) == 1 else nn.Sequential(nn.Flatten(), layer)


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers: 64 hidden units (backbone) and the classifier (head)."""
    flatten: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten()]
    return nn.Sequential(
        *flatten, nn.Linear(math.prod(shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )
