"""Histograms that no rows can have: what a server can check without seeing rows."""

from __future__ import annotations

import numpy as np

from equipoise.trees.arrays import Flags, Floats
from equipoise.trees.objectives import QUANTUM


def impossible_sums(
    sums: Floats, is_used: Flags, max_gradient: float, max_hessian: float, max_rows: float
) -> dict[int, str]:
    """Find clients whose sums belong to no rows.

    Every column divides the same rows into bins, so that its sums add up to the same totals. Sums
    of n gradients lie within n times the largest gradient. A client that lies within these bounds
    moves a split no more than a client with other rows could.

    Args:
        sums: Sums `[K, C, nodes, used bins, 3]` of gradients, hessians and rows.
        is_used: Bins that can hold rows `[F, B]`.
        max_gradient: Largest absolute gradient of a row.
        max_hessian: Largest hessian of a row.
        max_rows: Training rows of the largest client; 0 if it is not known.

    Returns:
        The reason by place of a client.
    """
    gradient, hessian, rows = np.moveaxis(sums, -1, 0)
    slack = QUANTUM * np.maximum(rows, 0)
    starts = np.cumsum(is_used.sum(1)) - is_used.sum(1)
    totals = np.add.reduceat(sums, starts, axis=3)
    problems = {
        "its numbers of rows are not whole, or below 0": (rows < 0) | (rows != np.rint(rows)),
        "its sums are larger than those of its rows can be": (
            (np.abs(gradient) > max_gradient * rows + slack)
            | (hessian < 0)
            | (hessian > max_hessian * rows + slack)
        ),
        "its columns do not add up to the same rows": totals != totals[:, :, :, :1],
    }
    if max_rows:
        in_level = rows[:, :, :, : is_used[0].sum()].sum((2, 3))
        problems["it has more rows than any client"] = in_level > max_rows
    found: dict[int, str] = {}
    for reason, is_wrong in problems.items():
        wrong = is_wrong.reshape(len(sums), -1).any(1)
        for place in np.flatnonzero(wrong).tolist():
            found.setdefault(place, reason)
    return found
