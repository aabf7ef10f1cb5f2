"""How sure a score is, from its rows alone: the percentile bootstrap (Efron, 1979)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

REPLICATES = 500
SURE = 0.95


def interval(score: Callable[[Tensor], Tensor], rows: int, random: np.random.Generator) -> tuple[float, float]:
    """``score`` takes places of rows ``[R, n]`` and gives the score of each such draw with replacement ``[R]``.

    Draws for which the score is not defined are left out; NaN where that are all.
    """
    found = score(torch.from_numpy(random.integers(0, rows, (REPLICATES, rows)))).double()
    found = found[torch.isfinite(found)]
    if not len(found):
        return np.nan, np.nan
    outside = (1 - SURE) / 2
    low, high = np.quantile(found.numpy(), (outside, 1 - outside))
    return float(low), float(high)
