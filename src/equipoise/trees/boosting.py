"""Boosting on rows in memory: sums of the open nodes, and whole ensembles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from equipoise.trees.arrays import (
    QUANTUM,
    Bytes,
    ClientSpans,
    Flags,
    Floats,
    Floats32,
    Ints,
    NodeTables,
    Segments,
    Sums,
    SumsType,
    Targets,
    Units,
)
from equipoise.trees.binning import cell_offsets
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees, category_words
from equipoise.trees.growth import Growth, split_level
from equipoise.trees.histograms import (
    add_leaves,
    add_trees,
    bin_rows,
    node_tables,
    partition_rows,
    sum_histograms,
)
from equipoise.trees.objectives import BoostingObjective, rows_of, sums_type, sums_unit

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


class RowPartition:
    """Rows of clients in the order of the nodes of the growing trees, see `arrays.Segments`."""

    def __init__(self, models: int, margins: int, num_rows: int, max_depth: int) -> None:
        """Create the partition of G models.

        Args:
            models: Models G that are grown side by side.
            margins: Trees of an iteration.
            num_rows: Rows of all clients.
            max_depth: Levels of a tree.
        """
        num_places = 2 ** (max_depth + 1) - 1
        self._slot_at = np.full((models, margins, num_places), -1, np.int64)
        self._begin = np.zeros((0, margins, 1), np.int64)
        self._count = np.full((0, margins, 1), -1, np.int64)
        self.order = np.zeros((margins, num_rows), np.int32)

    def clear(self) -> None:
        """Forget all nodes: new trees begin."""
        self._slot_at[:] = -1
        self._count[:] = -1

    def forget(self, numbers: Ints) -> None:
        """Forget the nodes of some clients."""
        self._count[numbers[numbers < len(self._count)]] = -1

    def divide(
        self, columns: Bytes, rows: ClientSpans, numbers: Ints, tree: NodeTables
    ) -> Segments:
        """Divide the rows of clients down to all nodes of the trees.

        Args:
            columns: Bins of all rows, column by column `[F, n]`.
            rows: The clients.
            numbers: A number of each client that stays the same `[K]`.
            tree: One iteration of trees.

        Returns:
            The rows of nodes.
        """
        slots = self._slots(tree.place)
        self._reserve(int(numbers.max(initial=-1)) + 1, int(self._slot_at.max()) + 1)
        segments = Segments(slots, numbers, self._begin, self._count, self.order)
        partition_rows(columns, rows, tree, segments)
        return segments

    def _slots(self, place: Ints) -> Ints:
        """Return the slots of nodes at places `[G, C, N]`; new places get new slots."""
        at = np.maximum(place, 0)
        slots = np.take_along_axis(self._slot_at, at, 2)
        is_new = (place >= 0) & (slots < 0)
        if is_new.any():
            # The root comes first: node 0 is the first new one.
            first = self._slot_at.max(axis=2, keepdims=True) + 1
            slots = np.where(is_new, first - 1 + np.cumsum(is_new, axis=2), slots)
            used = np.nonzero(is_new)
            self._slot_at[used[0], used[1], place[used]] = slots[used]
        return np.asarray(np.where(place >= 0, slots, -1))

    def _reserve(self, clients: int, slots: int) -> None:
        """Make room for clients and slots."""
        old_clients, margins, old_slots = self._count.shape
        if clients <= old_clients and slots <= old_slots:
            return
        shape = (max(clients, old_clients), margins, max(2 * slots, old_slots))
        begin = np.zeros(shape, np.int64)
        count = np.full(shape, -1, np.int64)
        begin[:old_clients, :, :old_slots] = self._begin
        count[:old_clients, :, :old_slots] = self._count
        self._begin = begin
        self._count = count


@dataclass
class BoostingState:
    """Margins, gradients and nodes of rows while trees are grown.

    It can be thrown away at any time: everything follows from the rows and the ensemble. Clients
    are numbered as they come, and arrays by client are indexed by these numbers; clients without
    rows have none.

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
    _columns: Bytes = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    _offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _is_binned: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        """Allocate the arrays."""
        rows = len(self.x)
        margins = self.objective.num_margins
        self.margins = np.zeros((margins, rows))
        self.gradient = np.zeros((margins, rows), np.int32)
        self.hessian = np.zeros((margins, rows), np.int32)
        self.applied = np.full(rows, -1)
        """Trees in the margins, -1 where the margins lack the base."""
        self.gradient_tree = np.full(rows, -1)
        """Tree that the gradients are of."""
        self.node_tree = np.full(rows, -1)
        """Tree whose nodes the rows are divided by."""
        self.node_level = np.zeros(rows, np.int64)
        """Level down to which they are."""
        self._partition = RowPartition(1, margins, rows, self.max_depth)
        self._numbers = np.full(rows, -1)
        """Number of each client, at its first row."""
        self._num_clients = 0

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
        start, size = _with_rows(start, size)
        numbers = self._number(start)
        self._check_known(trees, base)
        applied = self.applied[numbers]
        if (applied == num_trees).all():
            return self.margins
        for k in np.flatnonzero((applied < 0) | (applied > num_trees)).tolist():
            self.margins[:, start[k] : start[k] + size[k]] = base[:, None]
            self.applied[numbers[k]] = 0
        self._finish_tree(trees, num_trees, start, size)
        todo = np.flatnonzero(self.applied[numbers] < num_trees)
        if len(todo):
            spans = ClientSpans.of_one_model(start[todo], size[todo])
            own = numbers[todo]
            add_trees(self.x, spans, self.applied[own], num_trees, trees, self.margins)
            self.applied[own] = num_trees
        return self.margins

    def _number(self, start: Ints) -> Ints:
        """Return the numbers of clients that have rows, by their first rows `[K]`."""
        numbers = self._numbers[start]
        new = np.flatnonzero(numbers < 0)
        if len(new):
            numbers[new] = self._num_clients + np.arange(len(new))
            self._numbers[start[new]] = numbers[new]
            self._num_clients += len(new)
        return numbers

    def _finish_tree(self, trees: Trees, num_trees: int, start: Ints, size: Ints) -> None:
        """Add the last tree to rows that are near its leaves already."""
        numbers = self._numbers[start]
        near = np.flatnonzero(
            (self.applied[numbers] == num_trees - 1)
            & (self.node_tree[numbers] == num_trees - 1)
            & (self.node_level[numbers] > 0)
        )
        if not len(near):
            return
        spans = ClientSpans.of_one_model(start[near], size[near])
        last = trees.iteration(num_trees - 1)
        tree = self._tables(last)
        segments = self._divided(spans, tree)
        self.node_level[numbers[near]] = self.max_depth
        add_leaves(spans, tree, last.value, segments, self.margins)
        self.applied[numbers[near]] = num_trees

    def _tables(self, tree: Trees) -> NodeTables:
        """Return one tree for rows in bins."""
        return tables_of(tree, self._edges[None], self._offsets[None], self.num_categories)

    def _divided(self, spans: ClientSpans, tree: NodeTables) -> Segments:
        """Return the rows of clients, divided down to the nodes of a tree."""
        return self._partition.divide(self._columns, spans, self._numbers[spans.start], tree)

    def _check_known(self, trees: Trees, base: Floats) -> None:
        """Forget everything if the ensemble is not the known one with more trees."""
        known = self._known
        same = known is not None and known.feature.shape == trees.feature.shape
        if same and known is not None and self._base is not None:
            most = int(self.applied[: self._num_clients].max(initial=0))
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
        asked: Ints,
        edges: Floats,
        rows: tuple[Ints, Ints],
        is_sampled: Flags | None = None,
        max_sum: float = 0.0,
    ) -> Sums:
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
            max_sum: Bound of a client's sums; 0 if it is not known.

        Returns:
            Sums in units, and rows `[K, C, P, cells, 3]`.
        """
        everybody = ClientSpans.of_one_model(*rows)
        start, size = _with_rows(*rows)
        bins = self._binned(edges, start, size)
        margins = self.margins_after(trees, base, tree, start, size)
        numbers = self._numbers[start]
        todo = np.flatnonzero(self.gradient_tree[numbers] != tree)
        if len(todo):
            gradient, hessian = self.objective.gradients(
                self.y, margins, start[todo], size[todo], sums_unit(max_sum)
            )
            _copy_rows(self.gradient, gradient, start[todo], size[todo])
            _copy_rows(self.hessian, hessian, start[todo], size[todo])
            self.gradient_tree[numbers[todo]] = tree
        if (self.node_tree[: self._num_clients] != tree).all():
            self._partition.clear()
        is_other = (self.node_tree[numbers] != tree) | (self.node_level[numbers] > level)
        self._partition.forget(numbers[is_other])
        self.node_tree[numbers] = tree
        self.node_level[numbers] = level
        segments = self._divided(everybody, self._tables(trees.iteration(tree)))
        return _sums(
            bins,
            everybody,
            self._offsets[None],
            segments,
            asked[None],
            is_sampled,
            (self.gradient, self.hessian),
            sums_type(max_sum),
        )

    def _binned(self, edges: Floats, start: Ints, size: Ints) -> Bytes:
        """Return the bins of all rows; those of these clients are up to date."""
        if not np.array_equal(self._edges, edges):
            self._edges = edges.copy()
            self._offsets = cell_offsets(edges, self.num_categories)
            self._bins = np.zeros(self.x.shape, np.uint8)
            self._columns = np.zeros(self.x.shape[::-1], np.uint8)
            self._is_binned = np.zeros(len(self.x), np.bool_)
        for k in np.flatnonzero(~self._is_binned[start]).tolist():
            rows = slice(start[k], start[k] + size[k])
            self._bins[rows] = bin_rows(self.x[rows], edges, self.num_categories, self._offsets)
            self._columns[:, rows] = self._bins[rows].T
            self._is_binned[start[k]] = True
        return self._bins


def tables_of(tree: Trees, edges: Floats, offsets: Ints, num_categories: Ints) -> NodeTables:
    """Prepare one iteration of trees, without the axis T, for rows in bins.

    Args:
        tree: The trees `[G, C, N]`.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
    """
    tables = node_tables(tree.contiguous(), np.ascontiguousarray(edges), offsets, num_categories)
    return NodeTables(*tables)


def _with_rows(start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the clients that have rows: others share their first row with the next client."""
    has_rows = size > 0
    return (start, size) if has_rows.all() else (start[has_rows], size[has_rows])


def _sums(
    bins: Bytes,
    rows: ClientSpans,
    offsets: Ints,
    segments: Segments,
    asked: Ints,
    is_sampled: Flags | None,
    gradients: tuple[Units, Units],
    type: SumsType,
) -> Sums:
    """Return the sums `[K, C, P, cells, 3]` of the nodes that are asked for."""
    num_cells = int(offsets[:, -1].max())
    shape = (len(rows.start), asked.shape[1], asked.shape[2], num_cells, 3)
    sums = np.empty(shape, type)
    sampled = np.zeros(0, np.bool_) if is_sampled is None else is_sampled
    sum_histograms(bins, rows, offsets, segments, asked, sampled, *gradients, sums)
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
    unit: float = QUANTUM,
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
        unit: Unit of gradients and hessians, see `objectives.sums_unit`.

    Returns:
        The trees and their validation losses.
    """
    num_models = len(edges)
    num_features = train.x.shape[1]
    words = category_words(num_categories)
    trees = Trees.empty(num_models, num_trees, len(margins), options.num_nodes, words)
    offsets = np.stack([cell_offsets(own, num_categories) for own in edges])
    bins = _bin_clients(train, model, edges, offsets, num_categories)
    columns = np.ascontiguousarray(bins.T)
    spans = ClientSpans(train.start, train.size, model)
    numbers = np.arange(len(model))
    partition = RowPartition(num_models, len(margins), len(train.x), options.tree_depth)
    losses = _LossPath(objective, num_models, num_trees, model, val)
    losses.add(0, val_margins)
    for tree in range(num_trees):
        grown = trees.iteration(tree)
        gradients = objective.gradients(train.y, margins, train.start, train.size, unit)
        sampled = sample_rows(tree)
        allowed = np.ones(num_features, np.bool_) if may_split is None else may_split(tree)
        growth = Growth.root(num_models, len(margins), options.num_nodes)
        partition.clear()
        for _ in range(options.tree_depth):
            tables = tables_of(grown, edges, offsets, num_categories)
            segments = partition.divide(columns, spans, numbers, tables)
            sums = _sums(bins, spans, offsets, segments, growth.asked, sampled, gradients, np.int64)
            if num_models != len(model) or (model != numbers).any():
                by_client = sums
                sums = np.zeros((num_models, *by_client.shape[1:]), np.int64)
                _add_by_model(sums, model, by_client)
            growth = split_level(
                grown,
                growth,
                sums * np.array([unit, unit, 1.0]),
                edges,
                offsets,
                num_categories,
                allowed,
                options,
            )
            if not growth.asked.shape[2]:
                break
        tables = tables_of(grown, edges, offsets, num_categories)
        segments = partition.divide(columns, spans, numbers, tables)
        add_leaves(spans, tables, grown.contiguous().value, segments, margins)
        if val is not None and val_margins is not None:
            whole = grown.map(lambda array: array[:, None]).contiguous()
            val_spans = ClientSpans(val.start, val.size, model)
            add_trees(val.x, val_spans, np.zeros(len(model), np.int64), 1, whole, val_margins)
        losses.add(tree + 1, val_margins)
    return BoostedTrees(trees, losses.loss, losses.gain, losses.gain_error)


def _bin_clients(
    train: Rows, model: Ints, edges: Floats, offsets: Ints, num_categories: Ints
) -> Bytes:
    """Return the bins `[n, F]` of the clients' rows, each client's by the edges of its model."""
    bins = np.zeros(train.x.shape, np.uint8)
    for k in range(len(model)):
        here = slice(train.start[k], train.start[k] + train.size[k])
        own_offsets = offsets[model[k]]
        bins[here] = bin_rows(train.x[here], edges[model[k]], num_categories, own_offsets)
    return bins


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


def _add_by_model(sums: Sums, model: Ints, own: Sums) -> None:
    """Add the sums of clients `[K, ...]` to those of their models `[G, ...]`, in place."""
    for k, number in enumerate(model.tolist()):
        sums[number] += own[k]
