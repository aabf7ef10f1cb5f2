"""Growth of trees level by level, from the sums of their open nodes.

Clients send the sums of one child of each new split, the one with fewer rows. Those of the other
child are the sums of the parent minus these, exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.trees.arrays import Flags, Floats, Ints
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import Trees
from equipoise.trees.histograms import choose_splits, copy_node_sums, find_splits

NO_THRESHOLD = 1e10
"""Threshold of a split that sends all numbers left, and missing values right."""
NO_CODE = -1.0
"""Threshold of a split of categories: no code is as small."""


class Growth(NamedTuple):
    """What the next level of the trees of G models is grown from.

    Attributes:
        asked: Nodes whose sums are asked for `[G, C, P]`; -1 for none.
        parents: Sums of their parents `[G, C, P, cells, 3]`, from which those of their siblings
            follow; None if the sums of all open nodes are asked for.
        gain: Gains of the splits of the trees `[G, C, N]`.
    """

    asked: Ints
    parents: Floats | None
    gain: Floats

    @classmethod
    def root(cls, models: int, margins: int, nodes: int) -> Growth:
        """Return the start of new trees: the sums of their roots are asked for."""
        return cls(
            np.zeros((models, margins, 1), np.int64), None, np.zeros((models, margins, nodes))
        )

    def without_parents(self) -> Growth:
        """Return the same level with the sums of both children asked for."""
        if self.parents is None:
            return self
        return self._replace(
            asked=np.concatenate([self.asked, siblings(self.asked)], axis=2), parents=None
        )


def siblings(nodes: Ints) -> Ints:
    """Return the other child of the same parent: left children have odd numbers; -1 for -1."""
    other = np.where(nodes % 2 == 1, nodes + 1, nodes - 1)
    return np.asarray(np.where(nodes < 0, -1, other))


def split_level(
    trees: Trees,
    growth: Growth,
    sums: Floats,
    edges: Floats,
    offsets: Ints,
    num_categories: Ints,
    may_split: Flags,
    options: TreeOptions,
) -> Growth:
    """Split the open nodes of trees where that lowers the loss most, in place.

    Args:
        trees: One iteration of G models, without the axis T.
        growth: What the level is grown from.
        sums: Sums of the nodes that were asked for `[G, C, P, cells, 3]`.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        may_split: Features that the trees may use `[F]`.
        options: Regularisation.

    Returns:
        What the next level is grown from; nothing is asked for if no node was split.
    """
    nodes = growth.asked
    parent_sums = np.zeros((0, 0, 0, 0))
    by_tree = (-1, *sums.shape[2:])
    if growth.parents is not None:
        nodes = np.concatenate([nodes, siblings(nodes)], axis=2)
        parent_sums = np.ascontiguousarray(growth.parents).reshape(by_tree)
    models, margins, num_open = nodes.shape
    sums = np.ascontiguousarray(sums).reshape(by_tree)
    model = np.repeat(np.arange(models), margins * num_open)
    gain, feature, last_bin, missing_left, categories, children = find_splits(
        sums,
        parent_sums,
        model,
        offsets,
        may_split,
        num_categories,
        float(options.leaf_rows),
        options.leaf_l2,
        trees.categories.shape[-1],
    )
    values = _leaf_values(children, options)
    if nodes.shape[2] == 1 and not nodes.any():
        # Without a split the first of `children` is the root itself; with one they add up to it.
        trees.value[:, :, 0] = _leaf_values(children.sum(1), options).reshape(models, margins)
    threshold = _thresholds(feature, last_bin, model, edges, offsets, num_categories)
    new_gain = growth.gain.copy()
    taken = []
    for g in range(models):
        for c in range(margins):
            first = (g * margins + c) * num_open
            own = slice(first, first + num_open)
            parents, smaller = choose_splits(
                *trees.tree(g, c),
                new_gain[g, c],
                nodes[g, c],
                gain[own],
                feature[own],
                threshold[own],
                missing_left[own],
                categories[own],
                values[own],
                children[own, :, 2],
            )
            taken.append((parents, smaller))
    asked, kept = _next_level(taken, sums, parent_sums)
    shape = (models, margins, asked.shape[1])
    return Growth(asked.reshape(shape), kept.reshape(*shape, *sums.shape[2:]), new_gain)


def _next_level(
    taken: list[tuple[Ints, Ints]], sums: Floats, parent_sums: Floats
) -> tuple[Ints, Floats]:
    """Return which nodes are asked for next, and the sums of their parents.

    Args:
        taken: For each tree the open nodes that were split, and the smaller child of each.
        sums: Sums of open nodes `[trees, P, cells, 3]`.
        parent_sums: Sums of their parents, of the same shape; empty at the root.

    Returns:
        The smaller children `[trees, most]`, -1 where a tree has fewer, and the sums of the nodes
        that were split `[trees, most, cells, 3]`.
    """
    most = max(len(parents) for parents, _ in taken)
    asked = np.full((len(taken), most), -1, np.int64)
    kept = np.zeros((len(taken), most, *sums.shape[2:]))
    for tree, (parents, smaller) in enumerate(taken):
        asked[tree, : len(smaller)] = smaller
        for place, parent in enumerate(parents.tolist()):
            copy_node_sums(sums, parent_sums, tree, parent, kept[tree, place])
    return asked, kept


def _leaf_values(sums: Floats, options: TreeOptions) -> Floats:
    """Return the values of leaves with these sums of gradients and hessians `[..., 3]`."""
    values: Floats = -options.shrinkage * sums[..., 0] / (sums[..., 1] + options.leaf_l2 + 1e-16)
    return values


def _thresholds(
    feature: Ints,
    last_bin: Ints,
    model: Ints,
    edges: Floats,
    offsets: Ints,
    num_categories: Ints,
) -> Floats:
    """Return the largest number that goes left at each split.

    Args:
        feature: Features of the splits `[N]`; -1 without a split.
        last_bin: Last bins that go left `[N]`.
        model: Which of the G models each split belongs to `[N]`.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.

    Returns:
        Thresholds `[N]`.
    """
    used = np.maximum(feature, 0)
    cut = edges[model, used, np.minimum(last_bin, edges.shape[2] - 1)]
    num_bins = offsets[model, used + 1] - offsets[model, used]
    # A split of missing values alone has all numbers on its left.
    cut = np.where(last_bin >= num_bins - 2, NO_THRESHOLD, cut)
    return np.where(num_categories[used] > 0, NO_CODE, cut)
