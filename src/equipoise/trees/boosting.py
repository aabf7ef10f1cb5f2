"""Boosting on rows in memory: sums of the open nodes, and whole ensembles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from equipoise.trees.arrays import Bytes, Flags, Floats, Floats32, Ints, Places, Targets, Units
from equipoise.trees.binning import cell_offsets
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees, category_words
from equipoise.trees.growth import Growth, split_level
from equipoise.trees.histograms import (
    add_trees,
    add_values,
    advance_rows,
    bin_rows,
    place_tables,
    sum_histograms,
)
from equipoise.trees.objectives import BoostingObjective, rows_of

SampleRows = Callable[[int], Flags | None]
"""From the number of a tree to the rows that it is grown on `[n]`; None for all."""

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


class PlacedTrees(NamedTuple):
    """Trees of G models as rows in bins and at places need them, see `histograms.place_tables`.

    Attributes:
        node_at: Node at each place `[G, C, H]`.
        columns: Feature of each node `[G, C, N]`.
        goes_left: Whether a bin goes left `[G, C, N, 256]`.
        value_at: Value at each place `[G, C, H]`.
    """

    node_at: Ints
    columns: Ints
    goes_left: Flags
    value_at: Floats

    @classmethod
    def of(
        cls, trees: Trees, edges: Floats, offsets: Ints, num_categories: Ints, depth: int
    ) -> PlacedTrees:
        """Prepare one iteration of trees, without the axis T.

        Args:
            trees: The trees `[G, C, N]`.
            edges: Ends of bins `[G, F, E]`.
            offsets: First cell of each feature `[G, F + 1]`.
            num_categories: Categories of each feature `[F]`; 0 for numbers.
            depth: Levels of the trees.
        """
        return cls(
            *place_tables(
                *trees.contiguous(),
                np.ascontiguousarray(edges),
                offsets,
                num_categories,
                2 ** (depth + 1) - 1,
            )
        )

    def advance(
        self, bins: Bytes, rows: ClientSpans, first_level: Ints, level: int, places: Places
    ) -> None:
        """Move rows of clients down to a level, in place."""
        advance_rows(bins, *rows, first_level, level, *self[:3], places)

    def add_to(self, margins: Floats, rows: ClientSpans, places: Places) -> None:
        """Add the values at the places of rows to their margins, in place."""
        add_values(*rows, places, self.value_at, margins)

    def place_of(self, nodes: Ints) -> Ints:
        """Return which of `nodes` `[G, C, P]` is at each place `[G, C, H]`; -1 for none."""
        found = np.full(self.node_at.shape, -1)
        for p in range(nodes.shape[2]):
            wanted = nodes[:, :, p : p + 1]
            found[(self.node_at == wanted) & (wanted >= 0)] = p
        return found


class ClientSpans(NamedTuple):
    """Where the rows of K clients are.

    Attributes:
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G models each client uses `[K]`.
    """

    start: Ints
    size: Ints
    model: Ints

    @classmethod
    def of_one_model(cls, start: Ints, size: Ints) -> ClientSpans:
        """Return rows that all belong to model 0."""
        return cls(start, size, np.zeros(len(start), np.int64))


@dataclass
class BoostingState:
    """Margins, gradients and places of rows while trees are grown.

    It can be thrown away at any time: everything follows from the rows and the ensemble. Arrays by
    client are indexed by the client's first row.

    Attributes:
        x: Inputs of all rows `[n, F]`.
        y: Targets of all rows.
        objective: Gradients and losses.
        num_categories: Categories of each feature `[F]`.
        max_depth: Levels of a tree.
    """

    x: Floats32
    y: Targets
    objective: BoostingObjective
    num_categories: Ints
    max_depth: int
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
        self.gradient = np.zeros((margins, rows), np.int32)
        self.hessian = np.zeros((margins, rows), np.int32)
        self.places = np.zeros((margins, rows), np.int16)
        self.applied = np.zeros(rows, np.int64)
        """Trees in the margins, -1 where the margins lack the base."""
        self.applied[:] = -1
        self.gradient_tree = np.full(rows, -1)
        """Tree that the gradients are of."""
        self.place_tree = np.full(rows, -1)
        """Tree that the places are of."""
        self.place_level = np.zeros(rows, np.int64)
        """Level that the places have reached."""

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
                self.x, start[todo], size[todo], zeros, first, num_trees, *trees, self.margins
            )
            self.applied[start[todo]] = num_trees
        return self.margins

    def _finish_tree(self, trees: Trees, num_trees: int, start: Ints, size: Ints) -> None:
        """Add the last tree to rows that are near its leaves already."""
        near = np.flatnonzero(
            (self.applied[start] == num_trees - 1)
            & (self.place_tree[start] == num_trees - 1)
            & (self.place_level[start] > 0)
        )
        if not len(near):
            return
        spans = ClientSpans.of_one_model(start[near], size[near])
        tree = self._placed(trees.iteration(num_trees - 1))
        tree.advance(self._bins, spans, self.place_level[spans.start], self.max_depth, self.places)
        self.place_level[spans.start] = self.max_depth
        tree.add_to(self.margins, spans, self.places)
        self.applied[spans.start] = num_trees

    def _placed(self, tree: Trees) -> PlacedTrees:
        """Return one tree for rows at places."""
        return PlacedTrees.of(
            tree, self._edges[None], self._offsets[None], self.num_categories, self.max_depth
        )

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
            self.place_tree[:] = -1
        self._known = trees
        self._base = base.copy()

    def histograms(
        self,
        trees: Trees,
        base: Floats,
        tree: int,
        level: int,
        asked: Ints,
        edges: Floats,
        rows: tuple[Ints, Ints],
        is_sampled: Flags | None = None,
    ) -> Floats:
        """Sum gradients and hessians per client, node, feature and bin.

        Args:
            trees: The ensemble, with the upper levels of the tree that is grown.
            base: Constant margins `[C]`.
            tree: The tree that is grown.
            level: The level.
            asked: Nodes of the level whose sums are asked for `[C, P]`; -1 for none.
            edges: Ends of bins `[F, B - 2]`.
            rows: First row and number of rows of each client `[K]`.
            is_sampled: Rows of this tree `[n]`; None for all.

        Returns:
            Sums `[K, C, P, cells, 3]`.
        """
        start, size = rows
        spans = ClientSpans.of_one_model(start, size)
        bins = self._binned(edges, start, size)
        margins = self.margins_after(trees, base, tree, start, size)
        todo = np.flatnonzero(self.gradient_tree[start] != tree)
        if len(todo):
            gradient, hessian = self.objective.gradients(self.y, margins, start[todo], size[todo])
            _copy_rows(self.gradient, gradient, start[todo], size[todo])
            _copy_rows(self.hessian, hessian, start[todo], size[todo])
            self.gradient_tree[start[todo]] = tree
        is_other = (self.place_tree[start] != tree) | (self.place_level[start] > level)
        self.place_level[start[is_other]] = 0
        self.place_tree[start] = tree
        placed = self._placed(trees.iteration(tree))
        placed.advance(bins, spans, self.place_level[start], level, self.places)
        self.place_level[start] = level
        return _sums(
            bins,
            spans,
            self._offsets[None],
            self.places,
            placed.place_of(asked[None]),
            asked.shape[1],
            np.ones(len(self.x), np.bool_) if is_sampled is None else is_sampled,
            (self.gradient, self.hessian),
        )

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


def _sums(
    bins: Bytes,
    rows: ClientSpans,
    offsets: Ints,
    places: Places,
    asked_at: Ints,
    num_asked: int,
    is_sampled: Flags,
    gradients: tuple[Units, Units],
) -> Floats:
    """Return the sums `[K, C, P, cells, 3]` of the nodes that are asked for."""
    num_cells = int(offsets[:, -1].max())
    sums = np.zeros((len(rows.start), len(places), num_asked, num_cells, 3))
    sum_histograms(bins, *rows, offsets, places, asked_at, is_sampled, *gradients, sums)
    return sums


def _copy_rows(to: Units, source: Units, start: Ints, size: Ints) -> None:
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
    trees = Trees.empty(num_models, num_trees, len(margins), options.num_nodes, words)
    offsets = np.stack([cell_offsets(own, num_categories) for own in edges])
    bins = np.zeros(train.x.shape, np.uint8)
    for k in range(len(model)):
        here = slice(train.start[k], train.start[k] + train.size[k])
        own_offsets = offsets[model[k]]
        bins[here] = bin_rows(train.x[here], edges[model[k]], num_categories, own_offsets)
    spans = ClientSpans(train.start, train.size, model)
    places = np.zeros(margins.shape, np.int16)
    losses = _LossPath(objective, num_models, num_trees, model, val)
    losses.add(0, val_margins)
    everything = np.ones(len(train.x), np.bool_)
    for tree in range(num_trees):
        grown = trees.iteration(tree)
        gradients = objective.gradients(train.y, margins, train.start, train.size)
        sampled = sample_rows(tree)
        allowed = np.ones(num_features, np.bool_) if may_split is None else may_split(tree)
        growth = Growth.root(num_models, len(margins), options.num_nodes)
        for level in range(options.tree_depth):
            placed = PlacedTrees.of(grown, edges, offsets, num_categories, options.tree_depth)
            before = np.full(len(model), max(level - 1, 0))
            placed.advance(bins, spans, before, level, places)
            own = _sums(
                bins,
                spans,
                offsets,
                places,
                placed.place_of(growth.asked),
                growth.asked.shape[2],
                everything if sampled is None else sampled,
                gradients,
            )
            sums = own
            if num_models != len(model) or (model != np.arange(num_models)).any():
                sums = np.zeros((num_models, *own.shape[1:]))
                _add_by_model(sums, model, own)
            growth = split_level(
                grown, growth, sums, edges, offsets, num_categories, allowed, options
            )
            if not growth.asked.shape[2]:
                break
        placed = PlacedTrees.of(grown, edges, offsets, num_categories, options.tree_depth)
        placed.advance(bins, spans, np.full(len(model), level), options.tree_depth, places)
        placed.add_to(margins, spans, places)
        if val is not None and val_margins is not None:
            whole = grown.map(lambda array: array[:, None]).contiguous()
            zeros = np.zeros(len(model), np.int64)
            add_trees(val.x, val.start, val.size, model, zeros, 1, *whole, val_margins)
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
