"""Histograms that no rows can have: what a server can check without seeing rows."""

from __future__ import annotations

import numpy as np

from equipoise.trees.arrays import QUANTUM, Floats, Ints

REASONS = (
    "",
    "its numbers of rows are not whole, or below 0",
    "its sums are larger than those of its rows can be",
    "its columns do not add up to the same rows",
)


def impossible_sums(
    sums: Floats, offsets: Ints, max_gradient: float, max_hessian: float, max_rows: float
) -> dict[int, str]:
    """Find clients whose sums belong to no rows.

    Every column divides the same rows into bins, so that its sums add up to the same totals. Sums
    of n gradients lie within n times the largest gradient. A client that lies within these bounds
    moves a split no more than a client with other rows could.

    Args:
        sums: Sums `[K, C, nodes, cells, 3]` of gradients, hessians and rows.
        offsets: First cell of each feature `[F + 1]`.
        max_gradient: Largest absolute gradient of a row.
        max_hessian: Largest hessian of a row.
        max_rows: Training rows of the largest client; 0 if it is not known.

    Returns:
        The reason by place of a client.
    """
    from equipoise.trees.histograms import check_histograms

    violation, rows = check_histograms(
        np.ascontiguousarray(sums), offsets, max_gradient, max_hessian, QUANTUM
    )
    found = {int(place): REASONS[violation[place]] for place in np.flatnonzero(violation)}
    if max_rows:
        for place in np.flatnonzero(rows > max_rows).tolist():
            found.setdefault(place, "it has more rows than any client")
    return found
