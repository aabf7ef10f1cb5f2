"""Runs of equal values in sorted rows: what ranks, risk sets and precision at a threshold are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def runs_of_equals(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """For every value of sorted rows ``[..., n]``: the places of the first and of the last one that equals it."""
    n = ordered.shape[-1]
    place = torch.arange(n, device=ordered.device).expand(ordered.shape)
    changes = torch.ones_like(ordered, dtype=torch.bool)
    changes[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = torch.ones_like(changes)
    ends[..., :-1] = changes[..., 1:]
    first = torch.where(changes, place, 0).cummax(-1).values
    last = torch.where(ends, place, n).flip(-1).cummin(-1).values.flip(-1)
    return first, last
