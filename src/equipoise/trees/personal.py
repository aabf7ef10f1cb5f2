"""Trees of single clients: grown on a client's own rows, chosen on its own validation rows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from equipoise.trees import binning
from equipoise.trees.arrays import Floats, Floats32, Ints
from equipoise.trees.boosting import MODELS_AT_ONCE, BoostedTrees, Rows, SampleRows, boost
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees, category_words
from equipoise.trees.objectives import BoostingObjective

CONFIDENCE = 3.0
"""Standard errors by which validation must improve, since the best of many numbers is chosen."""
MIN_VAL_ROWS = 50
"""Clients with fewer validation rows keep the common model: their errors say too little."""
SHRINKAGE_FACTORS = (1.0, 0.3)
"""Own trees are tried with these factors of the shrinkage."""


class ClientRows(NamedTuple):
    """Training and validation rows of K clients, with the margins of the model so far.

    Attributes:
        train: Training rows.
        margins: Their margins `[C, n]`.
        val: Validation rows; None without.
        val_margins: Their margins `[C, m]`; None without.
    """

    train: Rows
    margins: Floats
    val: Rows | None
    val_margins: Floats | None

    def chunk(self, here: slice) -> ClientRows:
        """Return some of the clients."""
        train = self.train._replace(start=self.train.start[here], size=self.train.size[here])
        val = self.val
        if val is not None:
            val = val._replace(start=val.start[here], size=val.size[here])
        return self._replace(train=train, val=val)

    def copy(self) -> ClientRows:
        """Return the same rows with margins that may change."""
        val_margins = None if self.val_margins is None else self.val_margins.copy()
        return self._replace(margins=self.margins.copy(), val_margins=val_margins)


def own_trees(
    objective: BoostingObjective,
    options: TreeOptions,
    num_categories: Ints,
    edges: Floats,
    rows: ClientRows,
    max_trees: int,
    asked: int,
) -> tuple[Trees, Ints]:
    """Grow trees for each client on top of a common model.

    With `asked` -1 number and shrinkage are those with the largest lower bound of the gain on the
    client's validation rows. Where no bound is above 0, the client has no trees of its own.

    Args:
        objective: Gradients and losses.
        options: Options of boosting.
        num_categories: Categories of each feature `[F]`.
        edges: Ends of bins `[F, B - 2]`.
        rows: Rows of the clients, with the margins of the common model.
        max_trees: Size of the result.
        asked: Trees of each client, or -1 to choose.

    Returns:
        Trees of K models, and the number of trees of each `[K]`.
    """
    count = len(rows.train.start)
    words = category_words(num_categories)
    chosen = Trees.empty(count, max_trees, len(rows.margins), options.num_nodes, words)
    num_trees = np.zeros(count, np.int64)
    if asked == 0 or (asked < 0 and rows.val is None):
        return chosen, num_trees
    best = np.zeros(count)
    for first in range(0, count, MODELS_AT_ONCE):
        here = slice(first, min(first + MODELS_AT_ONCE, count))
        size = here.stop - first
        for factor in SHRINKAGE_FACTORS if asked < 0 else (1.0,):
            own = rows.chunk(here).copy()
            grown = boost(
                objective,
                replace(options, shrinkage=factor * options.shrinkage),
                max_trees if asked < 0 else asked,
                num_categories,
                np.broadcast_to(edges, (size, *edges.shape)),
                np.arange(size),
                *own,
            )
            for k in range(size):
                bound = grown.gain[k] - CONFIDENCE * grown.gain_error[k]
                wanted = asked if asked >= 0 else int(bound.argmax())
                is_too_small = own.val is not None and own.val.size[k] < MIN_VAL_ROWS
                if asked < 0 and (is_too_small or bound[wanted] <= best[first + k]):
                    continue
                best[first + k] = bound[wanted]
                num_trees[first + k] = wanted
                _take(chosen, first + k, grown, k, wanted)
    return chosen, num_trees


def _take(chosen: Trees, place: int, grown: BoostedTrees, model: int, wanted: int) -> None:
    """Copy the first trees of a model; the others stay empty."""
    for to, source in zip(chosen.arrays, grown.trees.arrays, strict=True):
        to[place, :wanted] = source[model, :wanted]
    chosen.feature[place, wanted:] = -1.0
    for array in chosen.arrays[1:]:
        array[place, wanted:] = 0.0


def local_edges(rows: Rows, num_bins: int) -> Floats:
    """Return the ends of bins `[K, F, num_bins - 1]` of each client's own rows."""
    return np.stack(
        [
            common_edges(
                rows._replace(start=rows.start[k : k + 1], size=rows.size[k : k + 1]), num_bins
            )
            for k in range(len(rows.start))
        ]
    )


def common_edges(rows: Rows, num_bins: int) -> Floats:
    """Return the ends of bins `[F, num_bins - 1]` of all rows of some clients together."""
    x = [
        rows.x[first : first + count]
        for first, count in zip(rows.start.tolist(), rows.size.tolist(), strict=True)
    ]
    grid = binning.fixed_grid(rows.x.shape[1])
    grid = binning.refined_grid(grid, _counts(x, grid))
    return binning.bin_edges(grid, _counts(x, grid), num_bins)


def _counts(x: list[Floats32], grid: Floats) -> Floats:
    """Return the counts in the cells of a grid over all clients."""
    return np.asarray(sum(binning.count_cells(part, grid) for part in x))


def local_ensembles(
    objective: BoostingObjective,
    options: TreeOptions,
    num_categories: Ints,
    rows: ClientRows,
    sample_rows: SampleRows,
) -> tuple[Trees, Floats, Floats, Ints]:
    """Grow one ensemble for each client, on its own rows alone.

    Args:
        objective: Gradients and losses.
        options: Options of boosting. With `tree_patience` the number of trees is the one with the
            lowest validation loss.
        num_categories: Categories of each feature `[F]`.
        rows: Rows of the clients. Their margins are ignored.
        sample_rows: Rows of each tree.

    Returns:
        Trees of K models, their bases `[K, C]`, ends of bins `[K, F, B - 2]` and numbers of trees.
    """
    count = len(rows.train.start)
    edges = local_edges(rows.train, options.tree_bins)
    base = np.stack(
        [
            objective.base_margins(objective.target_sums(rows.train.y[first : first + size]))
            for first, size in zip(rows.train.start.tolist(), rows.train.size.tolist(), strict=True)
        ]
    )
    rows = rows.copy()
    for part, margins in ((rows.train, rows.margins), (rows.val, rows.val_margins)):
        if part is not None and margins is not None:
            for k in range(count):
                margins[:, part.start[k] : part.start[k] + part.size[k]] = base[k][:, None]
    parts = []
    num_trees = np.full(count, options.trees)
    for first in range(0, count, MODELS_AT_ONCE):
        here = slice(first, min(first + MODELS_AT_ONCE, count))
        own = rows.chunk(here)
        grown = boost(
            objective,
            options,
            options.trees,
            num_categories,
            edges[here],
            np.arange(here.stop - first),
            *own,
            sample_rows=sample_rows,
        )
        if rows.val is not None and options.tree_patience:
            num_trees[here] = grown.loss.argmin(1)
        parts.append(grown.trees)
    trees = Trees(
        *(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True))
    )
    return trees.cleared_after(num_trees), base, edges, num_trees
