"""Types of the arrays of gradient boosting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Units = NDArray[np.int32]
Sums = NDArray[np.signedinteger[Any]]
"""Sums of gradients and hessians in units, and numbers of rows `[K, C, P, cells, 3]`."""
SumsType = type[np.int32] | type[np.int64]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Targets = NDArray[Any]
"""Targets as a federation holds them: classes `[n]`, numbers `[n]`, or time and event `[n, 2]`."""

CATEGORY_BITS = 32
"""Bits of a word of `categories`: a word is exact in any float64."""

QUANTUM = 2.0**-20
"""Gradients and hessians are whole numbers of a unit, and this is the usual one."""
COARSEST_UNIT = 2.0**-16
"""Largest unit that is used to make a client's sums fit into 32 bits."""
MAX_GRADIENT = 64.0
"""Largest absolute gradient and hessian of a row. In standard deviations of a regression."""
MAX_VAL_LOSS = 8.0
"""Largest loss of a validation row that early stopping counts."""
MAX_INT32 = 2.0**31 - 1


class ClientSpans(NamedTuple):
    """Where the rows of K clients are.

    Attributes:
        start: First row of each client `[K]`.
        size: Rows of each client `[K]`.
        model: Which of the G models each client trains `[K]`.
    """

    start: Ints
    size: Ints
    model: Ints

    @classmethod
    def of_one_model(cls, start: Ints, size: Ints) -> ClientSpans:
        """Return the rows of clients that train one model."""
        return cls(start, size, np.zeros(len(start), np.int64))


class NodeTables(NamedTuple):
    """One iteration of trees of G models, as rows in bins need it.

    Attributes:
        place: Place of each node in a complete tree `[G, C, N]`, where the children of place i are
            2i + 1 and 2i + 2; -1 for nodes that are not used. It stays the same when nodes are
            numbered anew.
        column: Feature of each node, -1 at leaves `[G, C, N]`.
        left: Left child of each node `[G, C, N]`; the right child is the next node.
        goes_left: Whether a bin goes left `[G, C, N, 256]`.
    """

    place: Ints
    column: Ints
    left: Ints
    goes_left: Flags


class Segments(NamedTuple):
    """Rows of clients in the order of the nodes of the growing trees.

    Attributes:
        slot: Number of each node among the segments of its tree `[G, C, N]`; -1 for nodes that are
            not used. Slot 0 is the root.
        number: Place of each client in the next two arrays `[K]`.
        begin: First place in `order` of a client's rows in each slot `[clients, C, S]`.
        length: Rows of a client in each slot `[clients, C, S]`; -1 before its parent is divided.
        order: Rows, client by client and node by node `[C, n]`.
    """

    slot: Ints
    number: Ints
    begin: Ints
    length: Ints
    order: Units
