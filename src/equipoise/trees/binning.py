"""Common bins of all clients, from counts of values in cells.

Stage 0 counts values in the cells of a fixed grid that is dense around 0, where standardised
values are. Stage 1 counts them again in a grid that divides the cells with many rows. Counts are
sums, so that bins do not depend on who holds which rows.
"""

from __future__ import annotations

import numpy as np

from equipoise.trees.arrays import Floats, Floats32, Ints

NUM_CUTS = 1023
"""Cuts of a grid: they make 1024 cells."""
GRID_LIMIT = 1e6
"""Largest absolute cut. Larger values share the outermost cells."""
LINEAR_RANGE = 0.5
"""Below this absolute value the cells of the fixed grid have nearly equal widths."""
NUM_STAGES = 2


def fixed_grid(num_features: int) -> Floats:
    """Return the cuts `[F, 1023]` of stage 0, equally spaced in asinh(x / 0.5)."""
    limit = np.arcsinh(GRID_LIMIT / LINEAR_RANGE)
    cuts = LINEAR_RANGE * np.sinh(np.linspace(-limit, limit, NUM_CUTS))
    return np.tile(cuts, (num_features, 1))


def count_cells(x: Floats32, grid: Floats) -> Floats:
    """Count values per cell; missing values are left out.

    Args:
        x: Inputs `[n, F]`.
        grid: Cuts `[F, 1023]`; cell j holds the values in (cut j - 1, cut j].

    Returns:
        Counts `[F, 1024]`.
    """
    from equipoise.trees.histograms import count_in_cells

    return count_in_cells(x, grid)


def refined_grid(grid: Floats, counts: Floats) -> Floats:
    """Divide cells in proportion to their counts; empty cells are merged.

    Args:
        grid: Cuts of the counts `[F, 1023]`.
        counts: Counts over all clients `[F, 1024]`.

    Returns:
        Cuts `[F, 1023]`, ascending.
    """
    return np.stack([_refined(cuts, own) for cuts, own in zip(grid, counts, strict=True)])


def _refined(cuts: Floats, counts: Floats) -> Floats:
    """Return the refined cuts of one feature."""
    total = counts.sum()
    if total <= 0:
        return cuts
    inner = counts[1:-1]  # the outermost cells have no width
    # Every cell that is not empty keeps its upper cut; the rest of the cuts goes where rows are.
    used = np.flatnonzero(inner > 0)
    kept = np.union1d(used, used + 1)
    kept = kept[kept <= NUM_CUTS - 1]
    spare = NUM_CUTS - len(kept)
    pieces = np.floor(spare * inner[used] / max(inner.sum(), 1.0)).astype(np.int64)
    points = [cuts[kept]]
    for cell, more in zip(used.tolist(), pieces.tolist(), strict=True):
        points.append(np.linspace(cuts[cell], cuts[cell + 1], more + 2)[1:-1])
    found = np.unique(np.concatenate(points))
    return np.concatenate([found, np.full(NUM_CUTS - len(found), found[-1])])


def bin_edges(grid: Floats, counts: Floats, num_bins: int) -> Floats:
    """Choose the ends of bins with nearly equal numbers of rows.

    A cell with many rows is a bin of its own. Empty cells make no bins.

    Args:
        grid: Cuts of the counts `[F, 1023]`.
        counts: Counts over all clients `[F, 1024]`.
        num_bins: Largest number of bins of a feature.

    Returns:
        Upper ends of all bins but the last `[F, num_bins - 1]`; unused ones repeat the last end.
    """
    edges = np.empty((len(grid), num_bins - 1))
    for f, (cuts, own) in enumerate(zip(grid, counts, strict=True)):
        ends = _ends(cuts, own, num_bins)
        edges[f] = ends[-1] if ends else 0.0
        edges[f, : len(ends)] = ends
    # Splits are stored in single precision, and must divide rows exactly as bins do.
    return edges.astype(np.float32).astype(np.float64)


def _ends(cuts: Floats, counts: Floats, num_bins: int) -> list[float]:
    """Return the ends of the bins of one feature."""
    used = np.flatnonzero(counts > 0)
    if len(used) <= 1:
        return []
    if len(used) <= num_bins:
        return [float(cuts[cell]) for cell in used[:-1]]
    ends: list[float] = []
    rows_left = float(counts.sum())
    held = 0.0
    for place, cell in enumerate(used[:-1].tolist()):
        held += float(counts[cell])
        bins_left = num_bins - len(ends)
        if bins_left == 1:
            break
        quota = rows_left / bins_left
        following = float(counts[used[place + 1]])
        # Close the bin where it is full, and before a cell that fills a bin by itself.
        if held >= quota or following >= quota or held + following / 2 > quota:
            ends.append(float(cuts[cell]))
            rows_left -= held
            held = 0.0
    return ends


def cell_offsets(edges: Floats, num_categories: Ints) -> Ints:
    """Assign numbers to the bins of all features, one after another.

    A number has a bin below each distinct end, one above all ends and one of missing values; a
    category has a bin for each code and one of missing values.

    Args:
        edges: Ends of bins `[F, E]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.

    Returns:
        The first cell of each feature, and the number of all cells `[F + 1]`.
    """
    # Ends ascend, unused ones repeat the last.
    num_ends = 1 + np.count_nonzero(edges[:, 1:] > edges[:, :-1], axis=1)
    sizes = np.where(num_categories > 0, num_categories + 1, num_ends + 2)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
