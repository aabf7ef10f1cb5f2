"""Reports of clients that no rows can have: what a server can check without seeing rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.trees.arrays import MAX_VAL_LOSS, Flags, Floats, Ints, NodeTables, Sums

TOO_MANY_ROWS = "it has more rows than any client"
REASONS = (
    "",
    "its numbers of rows are below 0",
    "its sums are larger than those of its rows can be",
    "its columns do not add up to the same rows",
)


class Limits(NamedTuple):
    """What no row, and no client, can exceed.

    Attributes:
        max_gradient: Largest absolute gradient of a row, in units of the sums.
        max_hessian: Largest hessian of a row, in units of the sums.
        max_rows: Training rows of the largest client; 0 if it is not known.
    """

    max_gradient: float
    max_hessian: float
    max_rows: float


def impossible_sums(sums: Sums, offsets: Ints, limits: Limits) -> tuple[dict[int, str], Ints]:
    """Find clients whose sums belong to no rows.

    Every column divides the same rows into bins, so that its sums add up to the same totals. Sums
    of n gradients lie within n times the largest gradient.

    Args:
        sums: Sums in units, and rows `[K, C, nodes, cells, 3]`.
        offsets: First cell of each feature `[F + 1]`.
        limits: Bounds of a row and of a client.

    Returns:
        The reason by place of a client, and the totals of all nodes `[K, C, nodes, 3]`.
    """
    from equipoise.trees.histograms import check_histograms

    violation, totals = check_histograms(
        np.ascontiguousarray(sums), offsets, limits.max_gradient + 1, limits.max_hessian + 1
    )
    found = {int(place): REASONS[violation[place]] for place in np.flatnonzero(violation)}
    if limits.max_rows:
        rows = totals[..., 2].sum(2).max(1)
        for place in np.flatnonzero(rows > limits.max_rows).tolist():
            found.setdefault(place, TOO_MANY_ROWS)
    return found, totals


def impossible_counts(cells: Floats, max_rows: float) -> dict[int, str]:
    """Find clients whose counts of values in cells belong to no rows.

    Args:
        cells: Counts `[K, F, cells]`.
        max_rows: Training rows of the largest client; 0 if it is not known.

    Returns:
        The reason by place of a client.
    """
    found: dict[int, str] = {}
    is_count = ((cells >= 0) & (cells == np.rint(cells))).all((1, 2))  # NaN is none, too
    for place in np.flatnonzero(~is_count).tolist():
        found[place] = "its numbers of values are not whole, or below 0"
    if max_rows:
        for place in np.flatnonzero(cells.sum(2).max(1) > max_rows).tolist():
            found.setdefault(place, TOO_MANY_ROWS)
    return found


def impossible_losses(val: Floats, max_rows: float) -> dict[int, str]:
    """Find clients whose validation losses belong to no rows.

    Args:
        val: Sums of losses and numbers of rows `[K, 2]`.
        max_rows: Training rows of the largest client.

    Returns:
        The reason by place of a client.
    """
    loss, rows = val.T
    is_wrong = ~((loss <= rows * MAX_VAL_LOSS) & (rows <= max_rows))
    reason = "its validation losses are larger than those of its rows can be"
    return dict.fromkeys(np.flatnonzero(is_wrong).tolist(), reason)


class _Report(NamedTuple):
    """Sums of one level of the growing tree.

    Attributes:
        ids: Clients `[K]`.
        places: Places of the nodes `[C, P]`, see `arrays.NodeTables`; -1 for none.
        sums: Sums in units, and rows `[K, C, P, cells, 3]`.
    """

    ids: Ints
    places: Ints
    sums: Sums


class SumsHistory:
    """Sums of the growing tree, client by client: those of a child must follow from its parent's.

    A split sends some bins of one column to a child. The sums of these bins in the parent's
    histogram, which the same client sent before, are the totals of the child. So a client cannot
    move rows, or invent some, from one level to the next. What is not known, because a client was
    away or a run was resumed, is not checked; nothing else depends on it.
    """

    def __init__(self) -> None:
        """Start without any reports."""
        self._tree = -1
        self._reports: list[_Report] = []

    def contradictions(
        self, ids: Ints, tree: int, asked: Ints, tables: NodeTables, offsets: Ints, totals: Ints
    ) -> dict[int, str]:
        """Find clients whose sums do not follow from those of the levels above.

        Args:
            ids: Clients `[K]`.
            tree: The tree that is grown.
            asked: Nodes whose sums were asked for `[C, P]`; -1 for none.
            tables: The tree, of one model.
            offsets: First cell of each feature `[F + 1]`.
            totals: Sums of each node `[K, C, P, 3]`.

        Returns:
            The reason by place of a client.
        """
        if tree != self._tree:
            self._tree = tree
            self._reports = []
        is_wrong = np.zeros(len(ids), np.bool_)
        for c, p in zip(*np.nonzero(asked > 0), strict=True):
            place = int(tables.place[0, c, asked[c, p]])
            parent = (place - 1) // 2
            node = int(np.flatnonzero(tables.place[0, c] == parent)[0])
            feature = int(tables.column[0, c, node])
            cells = slice(int(offsets[feature]), int(offsets[feature + 1]))
            found, is_known = self._sums_at(ids, int(c), parent, cells)
            if not is_known.any():
                continue
            is_left = tables.goes_left[0, c, node, : cells.stop - cells.start]
            takes = is_left if place % 2 == 1 else ~is_left
            expected = found[:, takes].sum(1, dtype=np.int64)
            is_wrong |= is_known & (expected != totals[:, c, p]).any(1)
        reason = "its sums do not follow from those of the level above"
        return dict.fromkeys(np.flatnonzero(is_wrong).tolist(), reason)

    def add(self, ids: Ints, asked: Ints, tables: NodeTables, sums: Sums) -> None:
        """Remember the sums of a level.

        Args:
            ids: Clients `[K]`.
            asked: Nodes whose sums were asked for `[C, P]`.
            tables: The tree, of one model.
            sums: Sums in units, and rows `[K, C, P, cells, 3]`.
        """
        places = np.take_along_axis(tables.place[0], np.maximum(asked, 0), 1)
        self._reports.append(_Report(ids, np.where(asked < 0, -1, places), sums))

    def _sums_at(
        self, ids: Ints, margin: int, place: int, cells: slice
    ) -> tuple[NDArray[np.int64], Flags]:
        """Return sums `[K, bins, 3]` of one column at a place, and for whom they are known."""
        found, is_known = self._reported(ids, margin, place, cells)
        if is_known.all() or place == 0:
            return found, is_known
        sibling = place + 1 if place % 2 == 1 else place - 1
        other, has_other = self._reported(ids, margin, sibling, cells)
        if not has_other.any():
            return found, is_known
        whole, has_whole = self._sums_at(ids, margin, (place - 1) // 2, cells)
        follows = ~is_known & has_other & has_whole
        found[follows] = whole[follows] - other[follows]
        return found, is_known | follows

    def _reported(
        self, ids: Ints, margin: int, place: int, cells: slice
    ) -> tuple[NDArray[np.int64], Flags]:
        """Return sums `[K, bins, 3]` that clients sent for a place, and who did."""
        found = np.zeros((len(ids), cells.stop - cells.start, 3), np.int64)
        is_known = np.zeros(len(ids), np.bool_)
        for report in reversed(self._reports):
            at = np.flatnonzero(report.places[margin] == place)
            if not len(at):
                continue
            if not is_known.any() and np.array_equal(ids, report.ids):
                return report.sums[:, margin, at[0], cells].astype(np.int64), ~is_known
            mine, theirs = np.nonzero(ids[:, None] == report.ids[None])
            new = ~is_known[mine]
            found[mine[new]] = report.sums[theirs[new], margin, at[0], cells]
            is_known[mine[new]] = True
        return found, is_known
