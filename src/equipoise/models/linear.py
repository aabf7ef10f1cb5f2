"""Linear and multilayer perceptron models for feature vectors."""

from __future__ import annotations

import math

from torch import nn

HIDDEN = 64


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a linear model (multinomial logistic regression), initialised at zero.

    Args:
        shape: Shape of a sample; images are flattened.
        classes: Number of outputs.

    Returns:
        The network.
    """
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer if len(shape) == 1 else nn.Sequential(nn.Flatten(), layer)


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a perceptron with one hidden layer of 64 units (backbone) and a linear head.

    Args:
        shape: Shape of a sample; images are flattened.
        classes: Number of outputs.

    Returns:
        The network.
    """
    flatten: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten()]
    return nn.Sequential(
        *flatten, nn.Linear(math.prod(shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
    )
