"""Boosting: splits of a level from histograms, and whole ensembles from rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from equipoise.trees.arrays import Bytes, Flags, Floats, Floats32, Ints, Targets
from equipoise.trees.binning import cell_offsets
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees, category_words
from equipoise.trees.histograms import (
    add_leaf_values,
    add_trees,
    advance_nodes,
    bin_rows,
    find_splits,
    sum_histograms,
)
from equipoise.trees.objectives import BoostingObjective, rows_of

SampleRows = Callable[[int], Flags | None]
"""From the number of a tree to the rows that it is grown on `[n]`; None for all."""

NO_THRESHOLD = 1e10
"""Threshold of a split that sends all numbers left, and missing values right."""
MODELS_AT_ONCE = 16
"""Models that are grown side by side. Bounds the memory of their histograms."""


class Rows(NamedTuple):
    """Rows of K clients, in flat arrays.

    Attributes:
        x: Inputs `[n, F]`.
        y: Targets `[n, ...]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
    """

    x: Floats32
    y: Targets
    start: Ints
    size: Ints


def split_level(
    trees: Trees,
    level: int,
    sums: Floats,
    edges: Floats,
    offsets: Ints,
    num_categories: Ints,
    may_split: Flags,
    options: TreeOptions,
) -> int:
    """Split the open nodes of a level where that lowers the loss, in place.

    Args:
        trees: One iteration of G models, without the axis T.
        level: The level.
        sums: Sums `[G, C, 2^level, cells, 3]`.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        may_split: Features that the trees may use `[F]`.
        options: Regularisation.

    Returns:
        The number of nodes that were split.
    """
    models, margins, num_nodes, num_cells, _ = sums.shape
    flat = np.ascontiguousarray(sums).reshape(-1, num_cells, 3)
    model, margin, place = np.unravel_index(np.arange(len(flat)), (models, margins, num_nodes))
    gain, feature, last_bin, missing_left, categories, children = find_splits(
        flat,
        model,
        offsets,
        may_split,
        num_categories,
        float(options.leaf_rows),
        options.leaf_l2,
        trees.categories.shape[-1],
    )
    values = -options.shrinkage * children[..., 0] / (children[..., 1] + options.leaf_l2 + 1e-16)
    node = place + num_nodes - 1
    if level == 0:
        # Without a split the first of `children` is the node itself; with one they add up to it.
        trees.value[model, margin, 0] = _value_of(children.sum(1), options)
    split = np.flatnonzero(gain > 0)
    where = model[split], margin[split], node[split]
    is_category = num_categories[feature[split]] > 0
    cut = edges[model[split], feature[split], np.minimum(last_bin[split], edges.shape[2] - 1)]
    # A split of missing values alone has all numbers on its left.
    num_bins = offsets[model[split], feature[split] + 1] - offsets[model[split], feature[split]]
    is_after_last = last_bin[split] >= num_bins - 2
    trees.feature[where] = feature[split]
    trees.threshold[where] = np.where(is_category, 0.0, np.where(is_after_last, NO_THRESHOLD, cut))
    trees.missing_left[where] = missing_left[split]
    trees.categories[where] = categories[split]
    for side in (0, 1):
        child = 2 * node[split] + 1 + side
        trees.value[model[split], margin[split], child] = values[split, side]
    return len(split)


def _value_of(sums: Floats, options: TreeOptions) -> Floats:
    """Return the value of leaves with these sums `[N, 3]`."""
    return np.asarray(-options.shrinkage * sums[:, 0] / (sums[:, 1] + options.leaf_l2 + 1e-16))


@dataclass
class BoostingState:
    """Margins, gradients and nodes of rows while trees are grown.

    It can be thrown away at any time: everything follows from the rows and the ensemble. Arrays by
    client are indexed by the client's first row.

    Attributes:
        x: Inputs of all rows `[n, F]`.
        y: Targets of all rows.
        objective: Gradients and losses.
        num_categories: Categories of each feature `[F]`.
    """

    x: Floats32
    y: Targets
    objective: BoostingObjective
    num_categories: Ints
    _known: Trees | None = None
    _base: Floats | None = None
    _edges: Floats = field(default_factory=lambda: np.zeros(0))
    _bins: Bytes = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    _offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _is_binned: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        """Allocate the arrays."""
        rows = len(self.x)
        margins = self.objective.num_margins
        self.margins = np.zeros((margins, rows))
        self.gradient = np.zeros((margins, rows))
        self.hessian = np.zeros((margins, rows))
        self.nodes = np.zeros((margins, rows), np.int16)
        self.applied = np.zeros(rows, np.int64)
        """Trees in the margins, -1 where the margins lack the base."""
        self.applied[:] = -1
        self.gradient_tree = np.full(rows, -1)
        """Tree that the gradients are of."""
        self.node_tree = np.full(rows, -1)
        """Tree that the nodes are of."""
        self.node_level = np.zeros(rows, np.int64)
        """Level that the nodes have reached."""

    def margins_after(
        self, trees: Trees, base: Floats, num_trees: int, start: Ints, size: Ints
    ) -> Floats:
        """Return margins `[C, n]` of one ensemble; only rows of these clients are up to date.

        Args:
            trees: The ensemble, of one model.
            base: Constant margins `[C]`.
            num_trees: Trees to be added.
            start: First row of each client `[K]`.
            size: Rows of each client `[K]`.
        """
        self._check_known(trees, base, num_trees)
        behind = np.flatnonzero(self.applied[start] > num_trees)
        self.applied[start[behind]] = -1
        new = np.flatnonzero(self.applied[start] < 0)
        for k in new.tolist():
            self.margins[:, start[k] : start[k] + size[k]] = base[:, None]
            self.applied[start[k]] = 0
        self._finish_tree(trees, num_trees, start, size)
        todo = np.flatnonzero(self.applied[start] < num_trees)
        if len(todo):
            zeros = np.zeros(len(todo), np.int64)
            first = self.applied[start[todo]]
            add_trees(
                self.x,
                start[todo],
                size[todo],
                zeros,
                first,
                num_trees,
                trees.feature,
                trees.threshold,
                trees.missing_left,
                trees.categories,
                trees.value,
                self.margins,
            )
            self.applied[start[todo]] = num_trees
        return self.margins

    def _finish_tree(self, trees: Trees, num_trees: int, start: Ints, size: Ints) -> None:
        """Add the last tree to rows that are one level above its leaves already."""
        depth = trees.depth
        near = np.flatnonzero(
            (self.applied[start] == num_trees - 1)
            & (self.node_tree[start] == num_trees - 1)
            & (self.node_level[start] > 0)
        )
        if not len(near):
            return
        start = start[near]
        size = size[near]
        zeros = np.zeros(len(near), np.int64)
        tree = trees.iteration(num_trees - 1)
        splits = tree.contiguous()
        advance_nodes(
            self.x,
            start,
            size,
            zeros,
            splits.feature,
            splits.threshold,
            splits.missing_left,
            splits.categories,
            self.node_level[start],
            depth,
            self.nodes,
        )
        self.node_level[start] = depth
        value = np.ascontiguousarray(tree.value)
        add_leaf_values(start, size, zeros, self.nodes, value, self.margins)
        self.applied[start] = num_trees

    def _check_known(self, trees: Trees, base: Floats, num_trees: int) -> None:
        """Forget everything if the ensemble is not the known one with more trees."""
        known = self._known
        same = known is not None and known.feature.shape == trees.feature.shape
        if same and known is not None and self._base is not None:
            most = int(self.applied.max(initial=0))
            same = np.array_equal(self._base, base) and trees.has_prefix(known, most)
        if not same:
            self.applied[:] = -1
            self.gradient_tree[:] = -1
            self.node_tree[:] = -1
        self._known = trees
        self._base = base.copy()

    def histograms(
        self,
        trees: Trees,
        base: Floats,
        tree: int,
        level: int,
        edges: Floats,
        rows: tuple[Ints, Ints],
        is_sampled: Flags | None = None,
    ) -> Floats:
        """Sum gradients and hessians per client, open node of a level, feature and bin.

        Args:
            trees: The ensemble, with the upper levels of the tree that is grown.
            base: Constant margins `[C]`.
            tree: The tree that is grown.
            level: The level.
            edges: Ends of bins `[F, B - 2]`.
            rows: First row and number of rows of each client `[K]`.
            is_sampled: Rows of this tree `[n]`; None for all.

        Returns:
            Sums `[K, C, 2^level, cells, 3]`.
        """
        start, size = rows
        margins = self.margins_after(trees, base, tree, start, size)
        todo = np.flatnonzero(self.gradient_tree[start] != tree)
        if len(todo):
            gradient, hessian = self.objective.gradients(self.y, margins, start[todo], size[todo])
            _copy_rows(self.gradient, gradient, start[todo], size[todo])
            _copy_rows(self.hessian, hessian, start[todo], size[todo])
            self.gradient_tree[start[todo]] = tree
        is_other = (self.node_tree[start] != tree) | (self.node_level[start] > level)
        self.node_level[start[is_other]] = 0
        self.node_tree[start] = tree
        splits = trees.iteration(tree).contiguous()
        zeros = np.zeros(len(start), np.int64)
        advance_nodes(
            self.x,
            start,
            size,
            zeros,
            splits.feature,
            splits.threshold,
            splits.missing_left,
            splits.categories,
            self.node_level[start],
            level,
            self.nodes,
        )
        self.node_level[start] = level
        bins = self._binned(edges, start, size)
        if is_sampled is None:
            is_sampled = np.ones(len(self.x), np.bool_)
        sums = np.zeros((len(start), len(base), 2**level, self._offsets[-1], 3))
        sum_histograms(
            bins,
            start,
            size,
            zeros,
            self._offsets[None],
            self.nodes,
            is_sampled,
            self.gradient,
            self.hessian,
            level,
            sums,
        )
        return sums

    def _binned(self, edges: Floats, start: Ints, size: Ints) -> Bytes:
        """Return the bins of all rows; those of these clients are up to date."""
        if not np.array_equal(self._edges, edges):
            self._edges = edges.copy()
            self._offsets = cell_offsets(edges, self.num_categories)
            self._bins = np.zeros(self.x.shape, np.uint8)
            self._is_binned = np.zeros(len(self.x), np.bool_)
        for k in np.flatnonzero(~self._is_binned[start]).tolist():
            rows = slice(start[k], start[k] + size[k])
            self._bins[rows] = bin_rows(self.x[rows], edges, self.num_categories, self._offsets)
            self._is_binned[start[k]] = True
        return self._bins


def trees_of_one_iteration(grown: Trees) -> Trees:
    """Return an iteration `[G, C, ...]` as ensembles of one tree `[G, 1, C, ...]`."""
    return grown.map(lambda array: array[:, None]).contiguous()


def _copy_rows(to: Floats, source: Floats, start: Ints, size: Ints) -> None:
    """Copy the rows of clients."""
    for first, count in zip(start.tolist(), size.tolist(), strict=True):
        to[:, first : first + count] = source[:, first : first + count]


class BoostedTrees(NamedTuple):
    """Trees of G models that were grown on rows, and what they do for validation rows.

    Attributes:
        trees: The trees, G models.
        loss: Mean validation loss of each model after 0, 1, ... trees `[G, T + 1]`.
        gain: Mean fall of the validation loss since tree 0 `[G, T + 1]`.
        gain_error: Standard error of `gain` `[G, T + 1]`, from the differences of single rows.
    """

    trees: Trees
    loss: Floats
    gain: Floats
    gain_error: Floats


def boost(
    objective: BoostingObjective,
    options: TreeOptions,
    num_trees: int,
    num_categories: Ints,
    edges: Floats,
    model: Ints,
    train: Rows,
    margins: Floats,
    val: Rows | None = None,
    val_margins: Floats | None = None,
    sample_rows: SampleRows = lambda tree: None,
    may_split: Callable[[int], Flags] | None = None,
) -> BoostedTrees:
    """Grow trees on rows in memory: one model of all clients, or several models side by side.

    Args:
        objective: Gradients and losses.
        options: Options of boosting.
        num_trees: Trees of each model.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        edges: Ends of bins of each model `[G, F, B - 2]`.
        model: The model that the rows of each client train `[K]`.
        train: Training rows of the clients.
        margins: Margins of training rows before the first tree `[C, n]`; they change in place.
        val: Validation rows of the clients.
        val_margins: Margins of validation rows; they change in place.
        sample_rows: Rows of each tree.
        may_split: Features of each tree `[F]`; None for all.

    Returns:
        The trees and their validation losses.
    """
    num_models = len(edges)
    num_features = train.x.shape[1]
    words = category_words(num_categories)
    trees = Trees.empty(num_models, num_trees, len(margins), options.tree_depth, words)
    offsets = np.stack([cell_offsets(own, num_categories) for own in edges])
    bins = np.zeros(train.x.shape, np.uint8)
    for k in range(len(model)):
        here = slice(train.start[k], train.start[k] + train.size[k])
        own_offsets = offsets[model[k]]
        bins[here] = bin_rows(train.x[here], edges[model[k]], num_categories, own_offsets)
    nodes = np.zeros(margins.shape, np.int16)
    losses = _LossPath(objective, num_models, num_trees, model, val)
    losses.add(0, val_margins)
    everything = np.ones(len(train.x), np.bool_)
    for tree in range(num_trees):
        grown = trees.iteration(tree)
        gradient, hessian = objective.gradients(train.y, margins, train.start, train.size)
        sampled = sample_rows(tree)
        allowed = np.ones(num_features, np.bool_) if may_split is None else may_split(tree)
        for level in range(options.tree_depth):
            splits = grown.contiguous()
            before = np.full(len(model), max(level - 1, 0))
            advance_nodes(
                train.x,
                train.start,
                train.size,
                model,
                splits.feature,
                splits.threshold,
                splits.missing_left,
                splits.categories,
                before,
                level,
                nodes,
            )
            shape = (len(margins), 2**level, int(offsets[:, -1].max()), 3)
            own = np.zeros((len(model), *shape))
            sum_histograms(
                bins,
                train.start,
                train.size,
                model,
                offsets,
                nodes,
                everything if sampled is None else sampled,
                gradient,
                hessian,
                level,
                own,
            )
            sums = own
            if num_models != len(model) or (model != np.arange(num_models)).any():
                sums = np.zeros((num_models, *shape))
                _add_by_model(sums, model, own)
            split_level(grown, level, sums, edges, offsets, num_categories, allowed, options)
        for rows, their_margins in ((train, margins), (val, val_margins)):
            if rows is not None and their_margins is not None:
                whole = trees_of_one_iteration(grown)
                zeros = np.zeros(len(model), np.int64)
                add_trees(
                    rows.x,
                    rows.start,
                    rows.size,
                    model,
                    zeros,
                    1,
                    whole.feature,
                    whole.threshold,
                    whole.missing_left,
                    whole.categories,
                    whole.value,
                    their_margins,
                )
        losses.add(tree + 1, val_margins)
    return BoostedTrees(trees, losses.loss, losses.gain, losses.gain_error)


class _LossPath:
    """Validation losses of models, tree by tree."""

    def __init__(
        self,
        objective: BoostingObjective,
        num_models: int,
        num_trees: int,
        model: Ints,
        val: Rows | None,
    ) -> None:
        self.objective = objective
        self.model = model
        self.val = val
        self.loss = np.zeros((num_models, num_trees + 1))
        self.gain = np.zeros((num_models, num_trees + 1))
        self.gain_error = np.zeros((num_models, num_trees + 1))
        self._first: Floats = np.zeros(0)

    def add(self, tree: int, margins: Floats | None) -> None:
        """Compute the losses after some trees."""
        val = self.val
        if val is None or margins is None:
            return
        losses = self.objective.losses(val.y, margins, val.start, val.size)
        if tree == 0:
            self._first = losses
        for model in range(len(self.loss)):
            mine = np.flatnonzero(self.model == model)
            rows = rows_of(val.start[mine], val.size[mine])
            fall = self._first[rows] - losses[rows]
            self.loss[model, tree] = losses[rows].mean()
            self.gain[model, tree] = fall.mean()
            self.gain_error[model, tree] = fall.std() / np.sqrt(max(len(rows) - 1, 1))


def _add_by_model(sums: Floats, model: Ints, own: Floats) -> None:
    """Add the sums of clients `[K, ...]` to those of their models `[G, ...]`, in place."""
    for k, number in enumerate(model.tolist()):
        sums[number] += own[k]
