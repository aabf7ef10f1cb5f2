"""Compiled kernels of gradient boosting: bins, routing of rows, histograms and splits.

Gradients and hessians are multiples of 2^-20 (`objectives.quantise`). Their sums are exact in
float64, so that neither the order of rows nor the split into clients changes a bit.

Trees are complete binary trees in heap order: the children of node i are 2i + 1 and 2i + 2. A
model holds `feature`, `threshold`, `missing_left` `[..., 2^D - 1]` and `categories`
`[..., 2^D - 1, W]` of its inner nodes, and `value` `[..., 2^(D+1) - 1]` of all nodes. A node with
feature -1 is a leaf.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees.arrays import CATEGORY_BITS, Bytes, Flags, Floats, Floats32, Ints, Nodes

MISSING_BELOW = MISSING_INPUT / 10
"""Smaller inputs are missing."""
CATEGORY_SMOOTHING = 10.0
"""Added to hessians when categories are ordered, so that rare ones do not come first."""
MIN_HESSIAN = 1e-3
"""Smallest sum of hessians of a leaf."""


@njit(cache=True)
def bin_rows(x: Floats32, edges: Floats, num_categories: Ints, offsets: Ints) -> Bytes:
    """Replace values by their bins.

    Args:
        x: Inputs `[n, F]`.
        edges: Upper ends of the bins `[F, E]`; unused ones repeat the last end.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        offsets: First cell of each feature `[F + 1]`, see `binning.cell_offsets`.

    Returns:
        Bins `[n, F]`: the number of ends below a value, or the code of a category. The last bin of
        a feature is of missing values.
    """
    n, num_features = x.shape
    bins = np.empty((n, num_features), np.uint8)
    for f in range(num_features):
        missing = offsets[f + 1] - offsets[f] - 1
        ends = edges[f, : missing - 1]
        for i in range(n):
            value = x[i, f]
            if value < MISSING_BELOW:
                bins[i, f] = missing
            elif num_categories[f] > 0:
                code = int(value)
                bins[i, f] = code if 0 <= code < num_categories[f] else missing
            else:
                bins[i, f] = np.searchsorted(ends, value)
    return bins


@njit(cache=True, inline="always")
def _goes_left(value, threshold, missing_left, words):  # type: ignore[no-untyped-def]
    """Return whether a value goes to the left child."""
    if value < MISSING_BELOW:
        return missing_left > 0
    is_category = False
    for w in range(len(words)):
        if words[w] > 0:
            is_category = True
    if not is_category:
        return value <= threshold
    code = int(value)
    if code < 0 or code >= CATEGORY_BITS * len(words):
        return missing_left > 0
    return (np.int64(words[code // CATEGORY_BITS]) >> (code % CATEGORY_BITS)) & 1 == 1


@njit(cache=True)
def advance_nodes(
    x: Floats32,
    start: Ints,
    size: Ints,
    model: Ints,
    feature: Floats32,
    threshold: Floats32,
    missing_left: Floats32,
    categories: Floats,
    first_level: Ints,
    level: int,
    nodes: Nodes,
) -> None:
    """Move rows down from one level of a tree to a deeper one, in place.

    Args:
        x: Inputs `[n, F]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G trees each client uses `[K]`.
        feature: Features of inner nodes `[G, C, M]`, -1 at leaves.
        threshold: Largest values that go left `[G, C, M]`.
        missing_left: 1 where missing values go left `[G, C, M]`.
        categories: Categories that go left, as bits `[G, C, M, W]`.
        first_level: Level down to which rows of each client were moved before `[K]`.
        level: The level to reach.
        nodes: Node of each row `[C, n]`.
    """
    for k in range(len(start)):
        g = model[k]
        for c in range(feature.shape[1]):
            for i in range(start[k], start[k] + size[k]):
                node = np.int64(0) if first_level[k] == 0 else np.int64(nodes[c, i])
                for _ in range(first_level[k], level):
                    f = np.int64(feature[g, c, node])
                    if f < 0:
                        break
                    left = _goes_left(
                        x[i, f],
                        threshold[g, c, node],
                        missing_left[g, c, node],
                        categories[g, c, node],
                    )
                    node = 2 * node + 1 if left else 2 * node + 2
                nodes[c, i] = node


@njit(cache=True)
def add_leaf_values(
    start: Ints, size: Ints, model: Ints, nodes: Nodes, value: Floats, margins: Floats
) -> None:
    """Add the values of rows' leaves to their margins, in place.

    Args:
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G trees each client uses `[K]`.
        nodes: Leaf of each row `[C, n]`.
        value: Values of nodes `[G, C, 2^(D+1) - 1]`.
        margins: Sums of the leaves of all trees `[C, n]`.
    """
    for k in range(len(start)):
        for c in range(value.shape[1]):
            for i in range(start[k], start[k] + size[k]):
                margins[c, i] += value[model[k], c, nodes[c, i]]


@njit(cache=True)
def add_trees(
    x: Floats32,
    start: Ints,
    size: Ints,
    model: Ints,
    first_tree: Ints,
    last_tree: int,
    feature: Floats32,
    threshold: Floats32,
    missing_left: Floats32,
    categories: Floats,
    value: Floats,
    margins: Floats,
) -> None:
    """Add trees to the margins of rows, one after another, in place.

    Args:
        x: Inputs `[n, F]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G ensembles each client uses `[K]`.
        first_tree: First tree to be added for each client `[K]`.
        last_tree: End of the trees to be added.
        feature: Features `[G, T, C, M]`, -1 at leaves.
        threshold: Largest values that go left `[G, T, C, M]`.
        missing_left: 1 where missing values go left `[G, T, C, M]`.
        categories: Categories that go left, as bits `[G, T, C, M, W]`.
        value: Values of nodes `[G, T, C, 2^(D+1) - 1]`.
        margins: Margins of rows `[C, n]`.
    """
    inner = feature.shape[3]
    for k in range(len(start)):
        g = model[k]
        for t in range(first_tree[k], last_tree):
            for c in range(feature.shape[2]):
                for i in range(start[k], start[k] + size[k]):
                    node = np.int64(0)
                    while node < inner:
                        f = np.int64(feature[g, t, c, node])
                        if f < 0:
                            break
                        left = _goes_left(
                            x[i, f],
                            threshold[g, t, c, node],
                            missing_left[g, t, c, node],
                            categories[g, t, c, node],
                        )
                        node = 2 * node + 1 if left else 2 * node + 2
                    margins[c, i] += value[g, t, c, node]


@njit(cache=True)
def sum_histograms(
    bins: Bytes,
    start: Ints,
    size: Ints,
    model: Ints,
    offsets: Ints,
    nodes: Nodes,
    is_sampled: Flags,
    gradient: Floats,
    hessian: Floats,
    level: int,
    out: Floats,
) -> None:
    """Sum gradients, hessians and rows per client, node of a level and cell (feature and bin).

    Args:
        bins: Bins of all rows `[n, F]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G models each client trains `[K]`.
        offsets: First cell of each feature `[G, F + 1]`.
        nodes: Node of each row `[C, n]`; rows above the level are in leaves, and left out.
        is_sampled: Rows that the tree is grown on `[n]`.
        gradient: Gradients `[C, n]`.
        hessian: Hessians `[C, n]`.
        level: Level of the open nodes.
        out: Sums `[K, C, 2^level, cells, 3]`, 0 at the start.
    """
    first_node = 2**level - 1
    num_features = bins.shape[1]
    for k in range(len(start)):
        first_cell = offsets[model[k]]
        for c in range(nodes.shape[0]):
            for i in range(start[k], start[k] + size[k]):
                node = nodes[c, i] - first_node
                if node < 0 or not is_sampled[i]:
                    continue
                g = gradient[c, i]
                h = hessian[c, i]
                sums = out[k, c, node]
                for f in range(num_features):
                    cell = sums[first_cell[f] + bins[i, f]]
                    cell[0] += g
                    cell[1] += h
                    cell[2] += 1.0


@njit(cache=True)
def check_histograms(
    sums: Floats, offsets: Ints, max_gradient: float, max_hessian: float, slack: float
) -> tuple[Ints, Floats]:
    """Check the histograms of clients in one pass.

    Args:
        sums: Sums `[K, C, nodes, cells, 3]`.
        offsets: First cell of each feature `[F + 1]`.
        max_gradient: Largest absolute gradient of a row.
        max_hessian: Largest hessian of a row.
        slack: Tolerance per row.

    Returns:
        Per client `[K]` the first violation (0 none, 1 counts, 2 sums, 3 totals), and the rows of
        the level.
    """
    clients, margins, num_nodes, _, _ = sums.shape
    violation = np.zeros(clients, np.int64)
    rows = np.zeros(clients)
    for k in range(clients):
        for c in range(margins):
            in_level = 0.0
            for node in range(num_nodes):
                first = np.zeros(3)
                for f in range(len(offsets) - 1):
                    total = np.zeros(3)
                    for cell in range(offsets[f], offsets[f + 1]):
                        g = sums[k, c, node, cell, 0]
                        h = sums[k, c, node, cell, 1]
                        n = sums[k, c, node, cell, 2]
                        if not (n >= 0 and n == np.rint(n)):
                            violation[k] = 1
                        most = n * (max_gradient + slack)
                        if not (abs(g) <= most and 0 <= h <= n * (max_hessian + slack)):
                            violation[k] = max(violation[k], 2) if violation[k] != 1 else 1
                        total[0] += g
                        total[1] += h
                        total[2] += n
                    if f == 0:
                        first[:] = total
                        in_level += total[2]
                    elif violation[k] == 0 and (total != first).any():
                        violation[k] = 3
            rows[k] = max(rows[k], in_level)
    return violation, rows


@njit(cache=True, inline="always")
def _gain(g, h, l2):  # type: ignore[no-untyped-def]
    """Return how much a leaf lowers the loss, times two."""
    return g * g / (h + l2)


@njit(cache=True)
def find_splits(
    sums: Floats,
    model: Ints,
    offsets: Ints,
    may_split: Flags,
    num_categories: Ints,
    min_rows: float,
    l2: float,
    words: int,
) -> tuple[Floats, Ints, Ints, Flags, Floats, Floats]:
    """Find the best split of each node.

    The gain is G_l^2 / (H_l + l2) + G_r^2 / (H_r + l2) - G^2 / (H + l2). Missing values are tried
    on both sides. Categories are ordered by G / (H + 10), and the best prefix goes left; this is
    optimal for convex losses (Fisher, "On Grouping for Maximum Homogeneity", JASA 1958). The first
    of equal gains wins.

    Args:
        sums: Sums `[N, cells, 3]` of gradients, hessians and rows.
        model: Which of the G models each node belongs to `[N]`.
        offsets: First cell of each feature `[G, F + 1]`; its last cell is of missing values.
        may_split: Features that may be used `[F]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        min_rows: Fewest rows of a child.
        l2: Penalty of leaf values.
        words: Words of the bits of categories.

    Returns:
        Gain `[N]` (0 if there is no split), feature `[N]` (-1 if there is none), last bin that goes
        left `[N]`, whether missing values go left `[N]`, categories that go left `[N, W]`, and sums
        `[N, 2, 3]` of both children (the node's own first if there is no split).
    """
    num_nodes = len(sums)
    num_features = len(may_split)
    best_gain = np.zeros(num_nodes)
    best_feature = np.full(num_nodes, -1)
    best_bin = np.zeros(num_nodes, np.int64)
    best_missing_left = np.zeros(num_nodes, np.bool_)
    best_words = np.zeros((num_nodes, words))
    children = np.zeros((num_nodes, 2, 3))
    for n in range(num_nodes):
        first_cell = offsets[model[n]]
        total_g = sums[n, : first_cell[1], 0].sum()
        total_h = sums[n, : first_cell[1], 1].sum()
        rows = sums[n, : first_cell[1], 2].sum()
        children[n, 0, 0] = total_g
        children[n, 0, 1] = total_h
        children[n, 0, 2] = rows
        if rows < 2 * min_rows:
            continue
        own = _gain(total_g, total_h, l2)
        for f in range(num_features):
            if not may_split[f]:
                continue
            own_sums = sums[n, first_cell[f] : first_cell[f + 1]]
            missing = len(own_sums) - 1
            if num_categories[f] > 0:
                used = np.flatnonzero(own_sums[:, 2] > 0)
                rank = own_sums[used, 0] / (own_sums[used, 1] + CATEGORY_SMOOTHING)
                order = used[np.argsort(rank, kind="mergesort")]
                last = len(order) - 1
                tries = 1
            else:
                order = np.arange(missing)
                last = missing - 1
                # Only where values are missing does their side matter.
                tries = 2 if own_sums[missing, 2] > 0 else 1
            for side in range(tries):
                left_g = 0.0
                left_h = 0.0
                left_rows = 0.0
                if side == 1:
                    left_g = own_sums[missing, 0]
                    left_h = own_sums[missing, 1]
                    left_rows = own_sums[missing, 2]
                end = last
                if num_categories[f] == 0 and tries == 2 and side == 0:
                    end = missing  # all values left, missing ones right, is a split, too
                for place in range(end):
                    b = order[place]
                    left_g += own_sums[b, 0]
                    left_h += own_sums[b, 1]
                    left_rows += own_sums[b, 2]
                    if left_rows < min_rows or left_h < MIN_HESSIAN:
                        continue
                    if rows - left_rows < min_rows or total_h - left_h < MIN_HESSIAN:
                        break
                    gain = (
                        _gain(left_g, left_h, l2)
                        + _gain(total_g - left_g, total_h - left_h, l2)
                        - own
                    )
                    if gain <= best_gain[n]:
                        continue
                    best_gain[n] = gain
                    best_feature[n] = f
                    best_bin[n] = b
                    best_missing_left[n] = side == 1
                    if tries == 1:  # no value is missing here: the larger child takes new ones
                        best_missing_left[n] = 2 * left_rows > rows
                    best_words[n] = 0.0
                    if num_categories[f] > 0:
                        best_missing_left[n] = False
                        for j in range(place + 1):
                            if order[j] == missing:
                                best_missing_left[n] = True
                            else:
                                best_words[n, order[j] // CATEGORY_BITS] += 2.0 ** (
                                    order[j] % CATEGORY_BITS
                                )
                    children[n, 0, 0] = left_g
                    children[n, 0, 1] = left_h
                    children[n, 0, 2] = left_rows
                    children[n, 1, 0] = total_g - left_g
                    children[n, 1, 1] = total_h - left_h
                    children[n, 1, 2] = rows - left_rows
    return best_gain, best_feature, best_bin, best_missing_left, best_words, children


@njit(cache=True)
def logistic_gradients(
    y: Ints, weight: Floats, rows: Ints, margins: Floats, gradient: Floats, hessian: Floats
) -> None:
    """Compute gradients and hessians of the cross-entropy, in place.

    Args:
        y: Classes `[n]`.
        weight: Weight of each class `[number of classes]`.
        rows: The rows to compute `[m]`.
        margins: Margins `[C, n]`: one for two classes, else one per class.
        gradient: Gradients `[C, n]`.
        hessian: Hessians `[C, n]`.
    """
    outputs = margins.shape[0]
    shares = np.empty(outputs)
    for i in rows:
        w = weight[y[i]]
        if outputs == 1:
            p = 1.0 / (1.0 + np.exp(-margins[0, i]))
            gradient[0, i] = w * (p - y[i])
            hessian[0, i] = w * p * (1.0 - p)
            continue
        highest = margins[0, i]
        for c in range(1, outputs):
            highest = max(highest, margins[c, i])
        total = 0.0
        for c in range(outputs):
            shares[c] = np.exp(margins[c, i] - highest)
            total += shares[c]
        for c in range(outputs):
            p = shares[c] / total
            gradient[c, i] = w * (p - (1.0 if y[i] == c else 0.0))
            hessian[c, i] = w * p * (1.0 - p)
