"""Scores of regression, from predictions and targets ``[K, n]`` in the target's unit and which rows count."""

from __future__ import annotations

import torch
from torch import Tensor


def rmse(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Root of the mean squared error."""
    return _mean((predicted.double() - y).square(), real).sqrt()


def mae(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Mean absolute error."""
    return _mean((predicted.double() - y).abs(), real)


def r2(predicted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """1 - squared error / squared deviation from the rows' own mean; NaN where all targets are equal."""
    y = y.double()
    spread = _mean((y - _mean(y, real).unsqueeze(-1)).square(), real)
    return torch.where(spread > 0, 1 - _mean((predicted - y).square(), real) / spread, torch.nan)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    return (values * real).sum(-1) / real.sum(-1)
