"""Scores of survival, from risks ``[K, n]``, times and events ``[K, n, 2]`` and which rows count."""

from __future__ import annotations

import torch
from torch import Tensor

PAIRS_AT_ONCE = 2**22  # bounds the memory


def concordance(risk: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """Harrell's C: the share of comparable pairs in which who had the event earlier has the higher risk; ties half.

    Comparable: one had the event, and the other was still without it then (also if censored at that very moment).
    NaN where no pair is comparable.
    """
    time, event = y[..., 0], (y[..., 1] > 0) & real
    models, n = risk.shape
    better, comparable = risk.new_zeros(2, models, dtype=torch.float64)
    for rows in torch.arange(n).split(max(1, PAIRS_AT_ONCE // (models * n))):
        here, later = time[:, rows, None], time[:, None, :]
        pair = (here < later) | ((here == later) & ~event[:, None, :])
        pair &= event[:, rows, None] & real[:, None, :]
        ahead = risk[:, rows, None] - risk[:, None, :]
        won = (ahead > 0).double() + (ahead == 0).double() / 2
        better += (won * pair).sum((1, 2))
        comparable += pair.sum((1, 2))
    return torch.where(comparable > 0, better / comparable, torch.nan)
