"""Reports of clients that no rows can have: what a server can check without seeing rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.trees.arrays import MAX_VAL_LOSS, Floats, Ints, NodeTables, Sums

TOO_MANY_ROWS = "it has more rows than any client"
REASONS = (
    "",
    "its numbers of rows are below 0",
    "its sums are larger than those of its rows can be",
    "its columns do not add up to the same rows",
)

MIN_REPORTS = 16
"""Levels of a tree that a kernel of their checks is compiled for; for more there is another."""


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
        np.ascontiguousarray(sums),
        offsets,
        int(limits.max_gradient) + 1,
        int(limits.max_hessian) + 1,
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
        from equipoise.trees.histograms import find_contradictions

        if tree != self._tree:
            self._tree = tree
            self._reports = []
        reports = self._reports
        if not reports:
            return {}
        most = max(report.places.shape[1] for report in reports)
        places = np.full((len(reports), len(asked), most), -1)
        for number, report in enumerate(reports):
            places[number, :, : report.places.shape[1]] = report.places
        rows = np.stack([_rows_in(ids, report.ids) for report in reports])
        sent = _same_size([report.sums for report in reports])
        is_wrong = find_contradictions(sent, rows, places, asked, tables, offsets, totals)
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


def _rows_in(ids: Ints, reported: Ints) -> Ints:
    """Return the rows of clients `[K]` in a report; -1 for those that are not in it."""
    if np.array_equal(ids, reported):
        return np.arange(len(ids))
    mine, theirs = np.nonzero(ids[:, None] == reported[None])
    rows = np.full(len(ids), -1)
    rows[mine] = theirs
    return rows


def _same_size(reports: list[Sums]) -> tuple[Sums, ...]:
    """Return reports as a tuple of one type and of few lengths: kernels are compiled for each."""
    kind = np.result_type(*reports)
    count = max(MIN_REPORTS, 2 ** (len(reports) - 1).bit_length())
    found: list[Sums] = [np.ascontiguousarray(sums, kind) for sums in reports]
    found += [np.zeros((0,) * 5, kind)] * (count - len(reports))
    return tuple(found)
