"""Compiled kernels of gradient boosting: bins, routing of rows, histograms and splits.

Gradients and hessians are whole numbers of 2^-20 (`objectives.to_units`). Their sums are exact in
int64 and in float64, so that neither the order of rows nor the split into clients changes a bit,
and the sums of a node are exactly those of its parent minus those of its sibling.

A tree is a list of N nodes, see `ensemble.Trees`: node 0 is the root, the children of node i are
`left[i]` and `left[i] + 1`, and a node with feature -1 is a leaf. While a tree is grown rows are at
places of a complete tree (`RowPlaces`): the children of place i are 2i + 1 and 2i + 2. Places
stay the same when nodes are numbered anew.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees.arrays import (
    CATEGORY_BITS,
    MAX_GRADIENT,
    QUANTUM,
    Bytes,
    Flags,
    Floats,
    Floats32,
    Ints,
    Places,
    Units,
)

MISSING_BELOW = MISSING_INPUT / 10
"""Smaller inputs are missing."""
CATEGORY_SMOOTHING = 10.0
"""Added to hessians when categories are ordered, so that rare ones do not come first."""
MIN_HESSIAN = 1e-3
"""Smallest sum of hessians of a leaf."""
BLOCK_ROWS = 2**17
"""Rows that are summed at once: 2^17 hessians below 2^27 units need 44 bits."""
COUNT_BIT = 44
"""Hessians and rows share an int64: the number of rows stands above this bit."""
COUNT_UNIT = 2**COUNT_BIT
MAX_UNITS = MAX_GRADIENT / QUANTUM
"""Largest absolute gradient and hessian in units."""
DENSE_RATIO = 8
"""From this many values per cell on, whole numbers are summed first."""
BINS = 256
"""Bins of a byte."""


@njit(cache=True, inline="always")
def _first_end(ends, value):  # type: ignore[no-untyped-def]
    """Return the number of ends below a value, as `numpy.searchsorted`, without branches."""
    first = 0
    count = len(ends)
    while count > 1:
        half = count // 2
        first += half if ends[first + half - 1] < value else 0
        count -= half
    if count == 1 and ends[first] < value:
        first += 1
    return first


@njit(cache=True)
def count_in_cells(x: Floats32, grid: Floats) -> Floats:
    """Count values per cell; missing values are left out.

    Args:
        x: Inputs `[n, F]`.
        grid: Cuts `[F, 1023]`; cell j holds the values in (cut j - 1, cut j].

    Returns:
        Counts `[F, 1024]`.
    """
    num_features, num_cuts = grid.shape
    counts = np.zeros((num_features, num_cuts + 1))
    for f in range(num_features):
        cuts = grid[f]
        for i in range(len(x)):
            if x[i, f] > MISSING_BELOW:
                counts[f, _first_end(cuts, np.float64(x[i, f]))] += 1.0
    return counts


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
                bins[i, f] = _first_end(ends, np.float64(value))
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
def place_tables(
    feature: Floats32,
    threshold: Floats32,
    missing_left: Floats32,
    left: Floats32,
    categories: Floats,
    value: Floats,
    edges: Floats,
    offsets: Ints,
    num_categories: Ints,
    num_places: int,
) -> tuple[Ints, Ints, Flags, Floats]:
    """Prepare trees for rows that are in bins and at places.

    Args:
        feature: Features of nodes `[G, C, N]`, -1 at leaves.
        threshold: Largest values that go left `[G, C, N]`.
        missing_left: 1 where missing values go left `[G, C, N]`.
        left: Left children `[G, C, N]`.
        categories: Categories that go left, as bits `[G, C, N, W]`.
        value: Values of nodes `[G, C, N]`.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.
        num_places: Places of a tree H, 2^(depth + 1) - 1.

    Returns:
        The node at each place `[G, C, H]`, -1 without; the feature of each node as a whole number
        `[G, C, N]`; whether a bin goes left `[G, C, N, 256]`; the value at each place `[G, C, H]`,
        below a leaf that of the leaf.
    """
    models, margins, num_nodes = feature.shape
    node_at = np.full((models, margins, num_places), -1)
    columns = np.full((models, margins, num_nodes), -1)
    goes_left = np.zeros((models, margins, num_nodes, BINS), np.bool_)
    value_at = np.zeros((models, margins, num_places))
    for g in range(models):
        for c in range(margins):
            node_at[g, c, 0] = 0
            for place in range(num_places):
                node = node_at[g, c, place]
                if node < 0:
                    if place > 0:
                        value_at[g, c, place] = value_at[g, c, (place - 1) // 2]
                    continue
                value_at[g, c, place] = value[g, c, node]
                f = np.int64(feature[g, c, node])
                if f < 0 or 2 * place + 2 >= num_places:
                    continue
                columns[g, c, node] = f
                node_at[g, c, 2 * place + 1] = np.int64(left[g, c, node])
                node_at[g, c, 2 * place + 2] = np.int64(left[g, c, node]) + 1
                missing = offsets[g, f + 1] - offsets[g, f] - 1
                words = categories[g, c, node]
                for b in range(missing):
                    if num_categories[f] > 0:
                        word = np.int64(words[b // CATEGORY_BITS])
                        goes_left[g, c, node, b] = (word >> (b % CATEGORY_BITS)) & 1 == 1
                    elif b < missing - 1:
                        goes_left[g, c, node, b] = edges[g, f, b] <= threshold[g, c, node]
                    else:  # above all ends
                        last = edges[g, f, missing - 2] if missing >= 2 else -np.inf
                        goes_left[g, c, node, b] = threshold[g, c, node] > last
                goes_left[g, c, node, missing] = missing_left[g, c, node] > 0
    return node_at, columns, goes_left, value_at


@njit(cache=True)
def advance_rows(
    bins: Bytes,
    start: Ints,
    size: Ints,
    model: Ints,
    first_level: Ints,
    level: int,
    node_at: Ints,
    columns: Ints,
    goes_left: Flags,
    places: Places,
) -> None:
    """Move rows down from one level of a tree to a deeper one, in place.

    Args:
        bins: Bins of all rows `[n, F]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G trees each client uses `[K]`.
        first_level: Level down to which rows of each client were moved before `[K]`.
        level: The level to reach.
        node_at: Node at each place `[G, C, H]`.
        columns: Feature of each node `[G, C, N]`.
        goes_left: Whether a bin goes left `[G, C, N, 256]`.
        places: Place of each row `[C, n]`.
    """
    for k in range(len(start)):
        g = model[k]
        for c in range(places.shape[0]):
            nodes = node_at[g, c]
            for i in range(start[k], start[k] + size[k]):
                place = np.int64(0) if first_level[k] == 0 else np.int64(places[c, i])
                for _ in range(first_level[k], level):
                    node = nodes[place]
                    if node < 0 or columns[g, c, node] < 0:
                        break
                    is_left = goes_left[g, c, node, bins[i, columns[g, c, node]]]
                    place = 2 * place + 2 - is_left
                places[c, i] = place


@njit(cache=True)
def add_values(
    start: Ints, size: Ints, model: Ints, places: Places, value_at: Floats, margins: Floats
) -> None:
    """Add the values of rows' leaves to their margins, in place.

    Args:
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G trees each client uses `[K]`.
        places: Place of each row `[C, n]`.
        value_at: Values of places `[G, C, H]`.
        margins: Sums of the leaves of all trees `[C, n]`.
    """
    for k in range(len(start)):
        for c in range(value_at.shape[1]):
            values = value_at[model[k], c]
            for i in range(start[k], start[k] + size[k]):
                margins[c, i] += values[places[c, i]]


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
    left: Floats32,
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
        feature: Features `[G, T, C, N]`, -1 at leaves.
        threshold: Largest values that go left `[G, T, C, N]`.
        missing_left: 1 where missing values go left `[G, T, C, N]`.
        left: Left children `[G, T, C, N]`.
        categories: Categories that go left, as bits `[G, T, C, N, W]`.
        value: Values of nodes `[G, T, C, N]`.
        margins: Margins of rows `[C, n]`.
    """
    for k in range(len(start)):
        g = model[k]
        for t in range(first_tree[k], last_tree):
            for c in range(feature.shape[2]):
                for i in range(start[k], start[k] + size[k]):
                    node = np.int64(0)
                    while True:
                        f = np.int64(feature[g, t, c, node])
                        if f < 0:
                            break
                        is_left = _goes_left(
                            x[i, f],
                            threshold[g, t, c, node],
                            missing_left[g, t, c, node],
                            categories[g, t, c, node],
                        )
                        node = np.int64(left[g, t, c, node]) + (0 if is_left else 1)
                    margins[c, i] += value[g, t, c, node]


@njit(cache=True)
def sum_histograms(
    bins: Bytes,
    start: Ints,
    size: Ints,
    model: Ints,
    offsets: Ints,
    places: Places,
    asked_at: Ints,
    is_sampled: Flags,
    gradient: Units,
    hessian: Units,
    out: Floats,
) -> None:
    """Sum gradients, hessians and rows per client, node and cell (feature and bin).

    Rows are taken node by node, so that the sums of a node stay in the processor's cache.

    Args:
        bins: Bins of all rows `[n, F]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G models each client trains `[K]`.
        offsets: First cell of each feature `[G, F + 1]`.
        places: Place of each row `[C, n]`.
        asked_at: Which of the P sums the rows at a place belong to `[G, C, H]`; -1 for none.
        is_sampled: Rows that the tree is grown on `[n]`.
        gradient: Gradients in units `[C, n]`.
        hessian: Hessians in units `[C, n]`.
        out: Sums `[K, C, P, cells, 3]`, 0 at the start.
    """
    num_features = bins.shape[1]
    num_asked = out.shape[2]
    order = np.empty(max(size.max(), 1), np.int64)
    asked = np.empty(max(size.max(), 1), np.int64)
    own = np.zeros((out.shape[3], 2), np.int64)
    ends = np.empty(num_asked + 1, np.int64)
    for k in range(len(start)):
        first_cell = offsets[model[k]].astype(np.uint64)
        for c in range(places.shape[0]):
            where = asked_at[model[k], c]
            ends[:] = 0
            for j in range(size[k]):
                i = start[k] + j
                place = where[places[c, i]] if is_sampled[i] else -1
                asked[j] = place
                if place >= 0:
                    ends[place + 1] += 1
            for p in range(num_asked):
                ends[p + 1] += ends[p]
            for j in range(size[k]):
                if asked[j] >= 0:
                    order[ends[asked[j]]] = start[k] + j
                    ends[asked[j]] += 1
            first = 0
            for p in range(num_asked):
                # After the pass above ends[p] is the end of p.
                sums = out[k, c, p]
                if (ends[p] - first) * num_features < DENSE_RATIO * len(own):
                    for j in range(first, ends[p]):
                        i = order[j]
                        g_value = gradient[c, i] * QUANTUM
                        h_value = hessian[c, i] * QUANTUM
                        for f in range(num_features):
                            cell = first_cell[f] + np.uint64(bins[i, f])
                            sums[cell, 0] += g_value
                            sums[cell, 1] += h_value
                            sums[cell, 2] += 1.0
                    first = ends[p]
                while first < ends[p]:
                    last = min(first + BLOCK_ROWS, ends[p])
                    for j in range(first, last):
                        i = order[j]
                        g = np.int64(gradient[c, i])
                        h = np.int64(hessian[c, i]) + COUNT_UNIT
                        for f in range(num_features):
                            cell = first_cell[f] + np.uint64(bins[i, f])
                            own[cell, 0] += g
                            own[cell, 1] += h
                    for cell in range(own.shape[0]):
                        count = own[cell, 1] >> COUNT_BIT
                        sums[cell, 0] += own[cell, 0] * QUANTUM
                        sums[cell, 1] += (own[cell, 1] - count * COUNT_UNIT) * QUANTUM
                        sums[cell, 2] += count
                    own[:] = 0
                    first = last


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
def choose_splits(
    feature: Floats32,
    threshold: Floats32,
    missing_left: Floats32,
    left: Floats32,
    categories: Floats,
    value: Floats,
    gain: Floats,
    open_nodes: Ints,
    new_gain: Floats,
    new_feature: Ints,
    new_threshold: Floats,
    new_missing_left: Flags,
    new_categories: Floats,
    child_values: Floats,
    child_rows: Floats,
) -> tuple[Ints, Ints]:
    """Keep the best splits of one tree, those of its open nodes included, in place.

    Splits are taken from the root on, the largest gain first, until the tree has as many leaves as
    there are nodes for. A split that is not among them can never be later on, because every level
    only adds candidates: it is removed with all nodes below it. So a tree that grows level by level
    ends as the one that is grown leaf by leaf. Nodes are numbered anew, level by level.

    Args:
        feature: Features of nodes `[N]`, -1 at leaves.
        threshold: Largest values that go left `[N]`.
        missing_left: 1 where missing values go left `[N]`.
        left: Left children `[N]`.
        categories: Categories that go left, as bits `[N, W]`.
        value: Values of nodes `[N]`.
        gain: Gains of the splits of nodes `[N]`.
        open_nodes: Nodes whose splits are new `[M]`; -1 for none.
        new_gain: Their gains `[M]`, 0 without a split.
        new_feature: Their features `[M]`.
        new_threshold: Their thresholds `[M]`.
        new_missing_left: Where missing values go `[M]`.
        new_categories: Their categories `[M, W]`.
        child_values: Values of both children `[M, 2]`.
        child_rows: Rows of both children `[M, 2]`.

    Returns:
        Of each new split that was taken: its place among the open nodes, and its smaller child.
    """
    num_nodes = len(feature)
    open_place = np.full(num_nodes, -1)
    for m in range(len(open_nodes)):
        if open_nodes[m] >= 0:
            open_place[open_nodes[m]] = m
    is_candidate = np.zeros(num_nodes, np.bool_)
    is_taken = np.zeros(num_nodes, np.bool_)
    is_candidate[0] = True
    for _ in range((num_nodes - 1) // 2):
        best = -1
        best_gain = 0.0
        for node in range(num_nodes):
            if not is_candidate[node]:
                continue
            own = gain[node]
            if open_place[node] >= 0:
                own = new_gain[open_place[node]]
            if own > best_gain:
                best = node
                best_gain = own
        if best < 0:
            break
        is_candidate[best] = False
        is_taken[best] = True
        if feature[best] >= 0:
            is_candidate[np.int64(left[best])] = True
            is_candidate[np.int64(left[best]) + 1] = True
    old_feature = feature.copy()
    old_threshold = threshold.copy()
    old_missing_left = missing_left.copy()
    old_left = left.copy()
    old_categories = categories.copy()
    old_value = value.copy()
    old_gain = gain.copy()
    feature[:] = -1.0
    threshold[:] = 0.0
    missing_left[:] = 0.0
    left[:] = 0.0
    categories[:] = 0.0
    value[:] = 0.0
    gain[:] = 0.0
    old_node = np.full(num_nodes, -1)
    old_node[0] = 0
    value[0] = old_value[0]
    count = 1
    parents = np.empty(num_nodes, np.int64)
    smaller = np.empty(num_nodes, np.int64)
    num_new = 0
    for node in range(num_nodes):
        old = old_node[node]
        if old < 0 or not is_taken[old]:
            continue
        left[node] = count
        m = open_place[old]
        if m < 0:
            feature[node] = old_feature[old]
            threshold[node] = old_threshold[old]
            missing_left[node] = old_missing_left[old]
            categories[node] = old_categories[old]
            gain[node] = old_gain[old]
            for side in range(2):
                old_node[count + side] = np.int64(old_left[old]) + side
                value[count + side] = old_value[old_node[count + side]]
        else:
            feature[node] = new_feature[m]
            threshold[node] = new_threshold[m]
            missing_left[node] = new_missing_left[m]
            categories[node] = new_categories[m]
            gain[node] = new_gain[m]
            for side in range(2):
                value[count + side] = child_values[m, side]
            parents[num_new] = m
            smaller[num_new] = count if child_rows[m, 0] <= child_rows[m, 1] else count + 1
            num_new += 1
        count += 2
    return parents[:num_new], smaller[:num_new]


@njit(cache=True, inline="always")
def _to_units(value):  # type: ignore[no-untyped-def]
    """Return a number as a whole number of units."""
    return np.int32(np.rint(min(max(value / QUANTUM, -MAX_UNITS), MAX_UNITS)))


@njit(cache=True)
def logistic_gradients(
    y: Ints,
    weight: Floats,
    start: Ints,
    size: Ints,
    margins: Floats,
    gradient: Units,
    hessian: Units,
) -> None:
    """Compute gradients and hessians of the cross-entropy in units, in place.

    Args:
        y: Classes `[n]`.
        weight: Weight of each class `[number of classes]`.
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        margins: Margins `[C, n]`: one for two classes, else one per class.
        gradient: Gradients `[C, n]`.
        hessian: Hessians `[C, n]`.
    """
    outputs = margins.shape[0]
    shares = np.empty(outputs)
    for k in range(len(start)):
        for i in range(start[k], start[k] + size[k]):
            w = weight[y[i]]
            if outputs == 1:
                p = 1.0 / (1.0 + np.exp(-margins[0, i]))
                gradient[0, i] = _to_units(w * (p - y[i]))
                hessian[0, i] = _to_units(w * p * (1.0 - p))
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
                gradient[c, i] = _to_units(w * (p - (1.0 if y[i] == c else 0.0)))
                hessian[c, i] = _to_units(w * p * (1.0 - p))
