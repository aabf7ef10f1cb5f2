"""Compiled kernels of gradient boosting: bins, routing of rows, histograms and splits.

Gradients and hessians are whole numbers of a unit (`objectives.to_units`), and so are their sums:
neither the order of rows nor the split into clients changes a bit, and the sums of a node are
exactly those of its parent minus those of its sibling.

A tree is a list of N nodes, see `ensemble.Trees`: node 0 is the root, the children of node i are
`left[i]` and `left[i] + 1`, and a node with feature -1 is a leaf. While a tree is grown a client's
rows are kept in the order of its nodes (`arrays.Segments`), as LightGBM does, so that a level costs
the rows of the nodes that were split and of those whose sums are asked for.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees.arrays import (
    CATEGORY_BITS,
    MAX_GRADIENT,
    Bytes,
    ClientSpans,
    Flags,
    Floats,
    Floats32,
    Ints,
    NodeTables,
    Segments,
    Sums,
    Units,
)

if TYPE_CHECKING:
    from equipoise.trees.ensemble import Trees

MISSING_BELOW = MISSING_INPUT / 10
"""Smaller inputs are missing."""
FEW_CATEGORIES = 4
"""Columns with more categories than this have the two rules below, as in LightGBM: the order of
many categories, which is found on the same rows, fits noise."""
CATEGORY_L2 = 100.0
"""Added to hessians in the order of many categories and in the gain of their splits."""
CATEGORY_ROWS = 100.0
"""Fewest rows of many categories from one split that is tried to the next, and after the last."""
CATEGORY_SMOOTHING = 10.0
"""Added to hessians when categories are ordered, so that rare ones do not come first."""
MIN_HESSIAN = 1e-3
"""Smallest sum of hessians of a leaf."""
BLOCK_ROWS = 2**17
"""Rows that are summed at once: 2^17 hessians of at most 2^26 units need 44 bits."""
COUNT_BIT = 44
"""Hessians and rows share an int64: the number of rows stands above this bit."""
COUNT_UNIT = 2**COUNT_BIT
LOW_BITS = 2**32 - 1
DENSE_RATIO = 1
"""From this many values per cell on, hessians and rows are summed in one word first."""
BINS = 256
"""Bins of a byte."""
SEARCHED_ROWS = 256
"""Rows whose cells are searched at once: their values stay in the cache."""


@njit(cache=True)
def _first_ends(ends, values, first):  # type: ignore[no-untyped-def]
    """Find the number of ends below each value, as `numpy.searchsorted`, in place.

    All values take the same steps, so that a processor works on several of them at once.
    """
    first[:] = 0
    count = len(ends)
    while count > 1:
        half = count // 2
        for j in range(len(values)):
            first[j] += half * (ends[first[j] + half - 1] < values[j])
        count -= half
    if count == 1:
        for j in range(len(values)):
            first[j] += ends[first[j]] < values[j]


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
    cells = np.empty(SEARCHED_ROWS, np.int64)
    for begin in range(0, len(x), SEARCHED_ROWS):
        end = min(begin + SEARCHED_ROWS, len(x))
        for f in range(num_features):
            values = x[begin:end, f].astype(np.float64)
            _first_ends(grid[f], values, cells[: end - begin])
            for j in range(end - begin):
                if values[j] > MISSING_BELOW:
                    counts[f, cells[j]] += 1.0
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
    places = np.empty(SEARCHED_ROWS, np.int64)
    for begin in range(0, n, SEARCHED_ROWS):
        end = min(begin + SEARCHED_ROWS, n)
        for f in range(num_features):
            missing = offsets[f + 1] - offsets[f] - 1
            values = x[begin:end, f].astype(np.float64)
            if num_categories[f] == 0:
                _first_ends(edges[f, : missing - 1], values, places[: end - begin])
            for j in range(end - begin):
                place = places[j]
                if num_categories[f] > 0:
                    code = int(values[j])
                    place = code if 0 <= code < num_categories[f] else missing
                bins[begin + j, f] = missing if values[j] < MISSING_BELOW else place
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
def node_tables(
    trees: Trees, edges: Floats, offsets: Ints, num_categories: Ints
) -> tuple[Ints, Ints, Ints, Flags]:
    """Prepare trees for rows that are in bins.

    Args:
        trees: One iteration of trees, without the axis T.
        edges: Ends of bins `[G, F, E]`.
        offsets: First cell of each feature `[G, F + 1]`.
        num_categories: Categories of each feature `[F]`; 0 for numbers.

    Returns:
        See `arrays.NodeTables`: the place of each node, its feature and left child as whole
        numbers `[G, C, N]`, and whether a bin goes left `[G, C, N, 256]`.
    """
    models, margins, num_nodes = trees.feature.shape
    place = np.full((models, margins, num_nodes), -1)
    column = np.full((models, margins, num_nodes), -1)
    left = np.zeros((models, margins, num_nodes), np.int64)
    goes_left = np.zeros((models, margins, num_nodes, BINS), np.bool_)
    for g in range(models):
        for c in range(margins):
            place[g, c, 0] = 0
            for node in range(num_nodes):
                f = np.int64(trees.feature[g, c, node])
                if f < 0 or place[g, c, node] < 0:
                    continue
                column[g, c, node] = f
                child = np.int64(trees.left[g, c, node])
                left[g, c, node] = child
                place[g, c, child] = 2 * place[g, c, node] + 1
                place[g, c, child + 1] = 2 * place[g, c, node] + 2
                missing = offsets[g, f + 1] - offsets[g, f] - 1
                threshold = trees.threshold[g, c, node]
                words = trees.categories[g, c, node]
                for b in range(missing):
                    if num_categories[f] > 0:
                        word = np.int64(words[b // CATEGORY_BITS])
                        goes_left[g, c, node, b] = (word >> (b % CATEGORY_BITS)) & 1 == 1
                    elif b < missing - 1:
                        goes_left[g, c, node, b] = edges[g, f, b] <= threshold
                    else:  # above all ends
                        last = edges[g, f, missing - 2] if missing >= 2 else -np.inf
                        goes_left[g, c, node, b] = threshold > last
                goes_left[g, c, node, missing] = trees.missing_left[g, c, node] > 0
    return place, column, left, goes_left


@njit(cache=True)
def partition_rows(columns: Bytes, rows: ClientSpans, tree: NodeTables, segments: Segments) -> None:
    """Divide the rows of nodes that were split since the last call, in place.

    Args:
        columns: Bins of all rows, column by column `[F, n]`, since a split reads one of them.
        rows: The clients.
        tree: One iteration of trees.
        segments: The rows of nodes.
    """
    scratch = np.empty(max(rows.size.max(), 1), np.int32)
    for k in range(len(rows.start)):
        if rows.size[k] == 0:
            continue
        g = rows.model[k]
        own = segments.number[k]
        for c in range(len(segments.order)):
            order = segments.order[c]
            begin = segments.begin[own, c]
            count = segments.length[own, c]
            if count[0] < 0:
                begin[0] = rows.start[k]
                count[0] = rows.size[k]
                for i in range(rows.start[k], rows.start[k] + rows.size[k]):
                    order[i] = i
            for node in range(tree.column.shape[2]):
                f = tree.column[g, c, node]
                if f < 0:
                    continue
                child = segments.slot[g, c, tree.left[g, c, node]]
                if count[child] >= 0:
                    continue
                table = tree.goes_left[g, c, node]
                bins = columns[f]
                first = begin[segments.slot[g, c, node]]
                last = first + count[segments.slot[g, c, node]]
                num_left = np.int64(0)
                num_right = np.int64(0)
                for j in range(first, last):
                    i = order[j]
                    is_left = np.int64(table[bins[i]])
                    order[first + num_left] = i  # not behind j: what is there has been read
                    scratch[num_right] = i
                    num_left += is_left
                    num_right += 1 - is_left
                order[first + num_left : last] = scratch[:num_right]
                other = segments.slot[g, c, tree.left[g, c, node] + 1]
                begin[child] = first
                count[child] = num_left
                begin[other] = first + num_left
                count[other] = num_right


@njit(cache=True)
def add_leaves(
    rows: ClientSpans, tree: NodeTables, value: Floats, segments: Segments, margins: Floats
) -> None:
    """Add the values of rows' leaves to their margins, in place.

    Args:
        rows: The clients.
        tree: One iteration of trees.
        value: Values of nodes `[G, C, N]`.
        segments: The rows of nodes, down to the leaves.
        margins: Sums of the leaves of all trees `[C, n]`.
    """
    for k in range(len(rows.start)):
        if rows.size[k] == 0:
            continue
        g = rows.model[k]
        own = segments.number[k]
        for c in range(len(margins)):
            for node in range(value.shape[2]):
                if tree.place[g, c, node] < 0 or tree.column[g, c, node] >= 0:
                    continue
                slot = segments.slot[g, c, node]
                first = segments.begin[own, c, slot]
                for j in range(first, first + segments.length[own, c, slot]):
                    margins[c, segments.order[c, j]] += value[g, c, node]


@njit(cache=True)
def add_trees(
    x: Floats32,
    rows: ClientSpans,
    first_tree: Ints,
    last_tree: int,
    trees: Trees,
    margins: Floats,
) -> None:
    """Add trees to the margins of rows, one after another, in place.

    Args:
        x: Inputs `[n, F]`.
        rows: The clients.
        first_tree: First tree to be added for each client `[K]`.
        last_tree: End of the trees to be added.
        trees: Trees of G models.
        margins: Margins of rows `[C, n]`.
    """
    feature = trees.feature
    for k in range(len(rows.start)):
        g = rows.model[k]
        for t in range(first_tree[k], last_tree):
            for c in range(feature.shape[2]):
                for i in range(rows.start[k], rows.start[k] + rows.size[k]):
                    node = np.int64(0)
                    while True:
                        f = np.int64(feature[g, t, c, node])
                        if f < 0:
                            break
                        is_left = _goes_left(
                            x[i, f],
                            trees.threshold[g, t, c, node],
                            trees.missing_left[g, t, c, node],
                            trees.categories[g, t, c, node],
                        )
                        node = np.int64(trees.left[g, t, c, node]) + (0 if is_left else 1)
                    margins[c, i] += trees.value[g, t, c, node]


@njit(cache=True)
def _sum_in_pairs(  # type: ignore[no-untyped-def]
    bins, rows, is_sampled, gradient, hessian, first_cell, pairs, counts, sums
):
    """Sum rows per cell where sums have 32 bits: a gradient and a hessian share a word, in place.

    Hessians are not negative, so that their sum never borrows from that of the gradients. `pairs`
    and `counts` are 0 before and after.
    """
    for j in range(len(rows)):
        i = rows[j]
        if len(is_sampled) == 0 or is_sampled[i]:
            both = (np.int64(gradient[i]) << 32) + np.int64(hessian[i])
            for f in range(bins.shape[1]):
                cell = first_cell[f] + np.uint64(bins[i, f])
                pairs[cell] += both
                counts[cell] += 1
    for cell in range(len(pairs)):
        sums[cell, 0] = pairs[cell] >> 32
        sums[cell, 1] = pairs[cell] & LOW_BITS
        sums[cell, 2] = counts[cell]
    pairs[:] = 0
    counts[:] = 0


@njit(cache=True)
def sum_histograms(
    bins: Bytes,
    rows: ClientSpans,
    offsets: Ints,
    segments: Segments,
    asked: Ints,
    is_sampled: Flags,
    gradient: Units,
    hessian: Units,
    out: Sums,
) -> None:
    """Sum gradients, hessians and rows per client, node and cell (feature and bin).

    Args:
        bins: Bins of all rows `[n, F]`.
        rows: The clients.
        offsets: First cell of each feature `[G, F + 1]`.
        segments: The rows of nodes.
        asked: Nodes whose sums are asked for `[G, C, P]`; -1 for none.
        is_sampled: Rows that the tree is grown on `[n]`; empty for all.
        gradient: Gradients in units `[C, n]`.
        hessian: Hessians in units `[C, n]`.
        out: Sums in units, and rows `[K, C, P, cells, 3]`; what they hold at the start is lost.
    """
    num_features = bins.shape[1]
    words = np.zeros((out.shape[3], 2), np.int64)
    scratch = (np.zeros(out.shape[3], np.int64), np.zeros(out.shape[3], np.int32))
    is_whole = len(is_sampled) == 0
    for k in range(len(rows.start)):
        g = rows.model[k]
        own = segments.number[k]
        first_cell = offsets[g].astype(np.uint64)
        for c in range(out.shape[1]):
            order = segments.order[c]
            for p in range(out.shape[2]):
                sums = out[k, c, p]
                sums[:] = 0
                if asked[g, c, p] < 0 or rows.size[k] == 0:
                    continue
                slot = segments.slot[g, c, asked[g, c, p]]
                first = segments.begin[own, c, slot]
                end = first + segments.length[own, c, slot]
                if (end - first) * num_features < DENSE_RATIO * len(words):
                    for j in range(first, end):
                        i = order[j]
                        if is_whole or is_sampled[i]:
                            for f in range(num_features):
                                cell = first_cell[f] + np.uint64(bins[i, f])
                                sums[cell, 0] += gradient[c, i]
                                sums[cell, 1] += hessian[c, i]
                                sums[cell, 2] += 1
                    continue
                if out.itemsize == 4:
                    own_rows = order[first:end]
                    units = (gradient[c], hessian[c])
                    _sum_in_pairs(bins, own_rows, is_sampled, *units, first_cell, *scratch, sums)
                    continue
                while first < end:
                    last = min(first + BLOCK_ROWS, end)
                    for j in range(first, last):
                        i = order[j]
                        if is_whole or is_sampled[i]:
                            g_units = np.int64(gradient[c, i])
                            h_units = np.int64(hessian[c, i]) + COUNT_UNIT
                            for f in range(num_features):
                                cell = first_cell[f] + np.uint64(bins[i, f])
                                words[cell, 0] += g_units
                                words[cell, 1] += h_units
                    for cell in range(len(words)):
                        count = words[cell, 1] >> COUNT_BIT
                        sums[cell, 0] += words[cell, 0]
                        sums[cell, 1] += words[cell, 1] - count * COUNT_UNIT
                        sums[cell, 2] += count
                    words[:] = 0
                    first = last


@njit(cache=True)
def add_clients(sums: Sums, unit: float) -> Floats:
    """Add the sums of clients in 64 bits; several times faster than `torch.sum`.

    Args:
        sums: Sums in units, and rows, of one cell after another `[K, 3 m]`.
        unit: The unit.

    Returns:
        Sums of gradients and hessians, and rows `[3 m]`.
    """
    total = np.zeros(sums.shape[1], np.int64)
    for k in range(len(sums)):
        for j in range(sums.shape[1]):
            total[j] += sums[k, j]
    found = np.empty(len(total))
    for j in range(0, len(total), 3):
        found[j] = total[j] * unit
        found[j + 1] = total[j + 1] * unit
        found[j + 2] = total[j + 2]
    return found


@njit(cache=True)
def check_histograms(
    sums: Sums, offsets: Ints, max_gradient: int, max_hessian: int
) -> tuple[Ints, Ints]:
    """Check the histograms of clients in one pass, without branches in the inner loop.

    Args:
        sums: Sums in units, and rows `[K, C, nodes, cells, 3]`.
        offsets: First cell of each feature `[F + 1]`.
        max_gradient: Largest absolute gradient of a row, in units.
        max_hessian: Largest hessian of a row, in units.

    Returns:
        Per client `[K]` the first violation (0 none, 1 counts, 2 sums, 3 totals), and totals of
        gradients, hessians and rows of each node `[K, C, nodes, 3]`.
    """
    clients, margins, num_nodes, _, _ = sums.shape
    violation = np.zeros(clients, np.int64)
    totals = np.zeros((clients, margins, num_nodes, 3), np.int64)
    for k in range(clients):
        for c in range(margins):
            for node in range(num_nodes):
                for f in range(len(offsets) - 1):
                    cells = sums[k, c, node, offsets[f] : offsets[f + 1]]
                    all_g = np.int64(0)
                    all_h = np.int64(0)
                    all_n = np.int64(0)
                    least_n = np.int64(0)
                    least_h = np.int64(0)
                    excess = np.int64(0)
                    for cell in range(len(cells)):
                        g = np.int64(cells[cell, 0])
                        h = np.int64(cells[cell, 1])
                        n = np.int64(cells[cell, 2])
                        least_n = min(least_n, n)
                        least_h = min(least_h, h)
                        excess = max(excess, abs(g) - n * max_gradient, h - n * max_hessian)
                        all_g += g
                        all_h += h
                        all_n += n
                    own = totals[k, c, node]
                    if f == 0:
                        own[0] = all_g
                        own[1] = all_h
                        own[2] = all_n
                    elif own[0] != all_g or own[1] != all_h or own[2] != all_n:
                        violation[k] = 3 if violation[k] == 0 else violation[k]
                    if least_n < 0:
                        violation[k] = 1
                    elif (excess > 0 or least_h < 0) and violation[k] != 1:
                        violation[k] = 2
    return violation, totals


@njit(cache=True)
def _add_reported(
    reports: tuple[Sums, ...],
    rows: Ints,
    places: Ints,
    client: int,
    margin: int,
    place: int,
    first_cell: int,
    takes: Flags,
    sign: int,
    sums: Ints,
) -> bool:
    """Add what a client sent last for some bins at a place, in place; return whether it did."""
    for report in range(len(rows) - 1, -1, -1):
        row = rows[report, client]
        if row < 0:
            continue
        for at in range(places.shape[2]):
            if places[report, margin, at] == place:
                cells = reports[report][row, margin, at, first_cell:]
                g = np.int64(0)
                h = np.int64(0)
                n = np.int64(0)
                for b in range(len(takes)):
                    if takes[b]:
                        g += cells[b, 0]
                        h += cells[b, 1]
                        n += cells[b, 2]
                sums[0] += sign * g
                sums[1] += sign * h
                sums[2] += sign * n
                return True
    return False


@njit(cache=True)
def find_contradictions(
    reports: tuple[Sums, ...],
    rows: Ints,
    places: Ints,
    asked: Ints,
    tree: NodeTables,
    offsets: Ints,
    totals: Ints,
) -> Flags:
    """Compare totals of nodes with the bins that their parents' splits send to them.

    The sums at a place are those that the client sent for it, or else those of its parent minus
    those of its sibling, and so on up to the root.

    Args:
        reports: Sums of earlier levels `[R, C, P, cells, 3]`, the newest last.
        rows: Row of each client in each report `[reports, K]`; -1 for none.
        places: Places of the nodes of each report `[reports, C, P]`; -1 for none.
        asked: Nodes of this level `[C, P]`; -1 for none.
        tree: The growing tree, of one model.
        offsets: First cell of each feature `[F + 1]`.
        totals: Sums that clients sent for these nodes `[K, C, P, 3]`.

    Returns:
        Clients with another total than follows from what they sent before `[K]`.
    """
    is_wrong = np.zeros(len(totals), np.bool_)
    sums = np.zeros(3, np.int64)
    for c in range(asked.shape[0]):
        for p in range(asked.shape[1]):
            if asked[c, p] <= 0:
                continue
            child = tree.place[0, c, asked[c, p]]
            node = np.int64(0)
            while tree.place[0, c, node] != (child - 1) // 2:
                node += 1
            f = tree.column[0, c, node]
            takes = tree.goes_left[0, c, node, : offsets[f + 1] - offsets[f]] == (child % 2 == 1)
            for k in range(len(totals)):
                sums[:] = 0
                place = (child - 1) // 2
                where = (k, c, place, offsets[f], takes)
                is_known = _add_reported(reports, rows, places, *where, 1, sums)
                while place > 0 and not is_known:
                    sibling = place + 1 if place % 2 == 1 else place - 1
                    where = (k, c, sibling, offsets[f], takes)
                    if not _add_reported(reports, rows, places, *where, -1, sums):
                        break
                    place = (place - 1) // 2
                    where = (k, c, place, offsets[f], takes)
                    is_known = _add_reported(reports, rows, places, *where, 1, sums)
                if is_known and (sums != totals[k, c, p]).any():
                    is_wrong[k] = True
    return is_wrong


@njit(cache=True, inline="always")
def _gain(g, h, l2):  # type: ignore[no-untyped-def]
    """Return how much a leaf lowers the loss, times two."""
    return g * g / (h + l2)


@njit(cache=True)
def copy_node_sums(sums: Floats, parents: Floats, tree: int, node: int, out: Floats) -> None:
    """Copy the sums of an open node, in place: siblings have those of their parents minus these.

    Args:
        sums: Sums of one child of each parent `[trees, P, cells, 3]`.
        parents: Sums of the parents, of the same shape; empty if there are no siblings.
        tree: The tree.
        node: The node among the open ones: the first P, or their siblings in the same order.
        out: Its sums `[cells, 3]`.
    """
    own = node % sums.shape[1]
    if node < sums.shape[1]:
        out[:] = sums[tree, own]
    else:
        out[:] = parents[tree, own] - sums[tree, own]


@njit(cache=True)
def find_splits(
    sums: Floats,
    parents: Floats,
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
    optimal for convex losses (Fisher, "On Grouping for Maximum Homogeneity", JASA 1958). Of columns
    with many categories 100 more is added to all H but that of the parent, and only prefixes that
    are 100 rows apart are tried. The first of equal gains wins.

    Args:
        sums: Sums of gradients, hessians and rows `[trees, P, cells, 3]` of open nodes.
        parents: Sums of their parents, of the same shape, if their siblings are open, too: N nodes
            are then P of a tree, their siblings, P of the next tree, and so on. Else empty.
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
    num_nodes = len(model)
    num_open = num_nodes // len(sums)
    node_sums = np.empty(sums.shape[2:])
    num_features = len(may_split)
    best_gain = np.zeros(num_nodes)
    best_feature = np.full(num_nodes, -1)
    best_bin = np.zeros(num_nodes, np.int64)
    best_missing_left = np.zeros(num_nodes, np.bool_)
    best_words = np.zeros((num_nodes, words))
    children = np.zeros((num_nodes, 2, 3))
    for n in range(num_nodes):
        copy_node_sums(sums, parents, n // num_open, n % num_open, node_sums)
        first_cell = offsets[model[n]]
        total_g = node_sums[: first_cell[1], 0].sum()
        total_h = node_sums[: first_cell[1], 1].sum()
        rows = node_sums[: first_cell[1], 2].sum()
        children[n, 0, 0] = total_g
        children[n, 0, 1] = total_h
        children[n, 0, 2] = rows
        if rows < 2 * min_rows:
            continue
        own = _gain(total_g, total_h, l2)
        for f in range(num_features):
            if not may_split[f]:
                continue
            own_sums = node_sums[first_cell[f] : first_cell[f + 1]]
            missing = len(own_sums) - 1
            has_many = num_categories[f] > FEW_CATEGORIES
            penalty = l2 + CATEGORY_L2 if has_many else l2
            if num_categories[f] > 0:
                used = np.flatnonzero(own_sums[:, 2] > 0)
                rank = own_sums[used, 0] / (own_sums[used, 1] + CATEGORY_SMOOTHING + penalty - l2)
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
                rows_since = 0.0
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
                    rows_since += own_sums[b, 2]
                    if left_rows < min_rows or left_h < MIN_HESSIAN:
                        continue
                    if rows - left_rows < min_rows or total_h - left_h < MIN_HESSIAN:
                        break
                    if has_many:
                        if min(rows_since, rows - left_rows) < CATEGORY_ROWS:
                            continue
                        rows_since = 0.0
                    gain = (
                        _gain(left_g, left_h, penalty)
                        + _gain(total_g - left_g, total_h - left_h, penalty)
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
def _best_splits(feature, left, gain, open_place, new_gain):  # type: ignore[no-untyped-def]
    """Return which nodes `[N]` are split, from the root on, the largest gain first.

    Arguments as those of `choose_splits`; `open_place` is the place of each node among the open
    ones `[N]`, or -1.
    """
    num_nodes = len(feature)
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
    return is_taken


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
    is_taken = _best_splits(feature, left, gain, open_place, new_gain)
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
def _to_units(value, unit):  # type: ignore[no-untyped-def]
    """Return a number as a whole number of units."""
    return np.int32(np.rint(min(max(value, -MAX_GRADIENT), MAX_GRADIENT) / unit))


@njit(cache=True)
def logistic_gradients(
    y: Ints,
    weight: Floats,
    start: Ints,
    size: Ints,
    margins: Floats,
    unit: float,
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
        unit: The unit.
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
                gradient[0, i] = _to_units(w * (p - y[i]), unit)
                hessian[0, i] = _to_units(w * p * (1.0 - p), unit)
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
                gradient[c, i] = _to_units(w * (p - (1.0 if y[i] == c else 0.0)), unit)
                hessian[c, i] = _to_units(w * p * (1.0 - p), unit)
