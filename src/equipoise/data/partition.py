"""Which client gets which rows: seeded, in NumPy, as one count per (client, class) wherever labels matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints
from equipoise.utils.errors import UsageError

Floats = NDArray[np.float64]
FITTING_STEPS = 200  # of iterative proportional fitting
WIDEST = 10.0  # of log-normal sizes: beyond, one client has all rows but the others' minimum
TINY = 1e-12  # a share that is never exactly zero, so that the fitting has a solution


@dataclass(frozen=True)
class Partition:
    """Rows of all clients one after the other: client ``k`` owns ``sizes[k]`` entries of ``rows``."""

    rows: Ints
    sizes: Ints

    def rows_of(self, client: int) -> Ints:
        first = int(self.sizes[:client].sum())
        return self.rows[first : first + int(self.sizes[client])]


def iid(
    labels: Ints, clients: int, rng: np.random.Generator, size_sigma: float = 0.0, min_rows: int = 1
) -> Partition:
    """Rows at random; sizes alike, or log-normal with ``size_sigma``."""
    _refuse_too_few(len(labels), clients, min_rows)
    sizes = _whole(_sizes(len(labels), clients, size_sigma, rng)[:, None], np.array([len(labels)]))[
        :, 0
    ]
    return Partition(rng.permutation(len(labels)), _lift(sizes[:, None], min_rows)[:, 0])


def dirichlet(
    labels: Ints,
    clients: int,
    rng: np.random.Generator,
    delta: float,
    size_sigma: float = 0.0,
    min_rows: int = 1,
) -> Partition:
    """Class ratios of each client ~ Dir(delta), sizes alike or log-normal: PAGE's partition.

    Ratios and sizes are fitted to the rows that there are (iterative proportional fitting), so every row is used once.
    """
    if not 0 < delta < np.inf:
        raise UsageError(f"delta is {delta}: must be a number above 0")
    _refuse_too_few(len(labels), clients, min_rows)
    classes, there = np.unique(labels, return_counts=True)
    gamma = rng.standard_gamma(delta, (clients, len(classes)))
    share = (gamma + TINY) / (gamma + TINY).sum(1, keepdims=True)
    counts = _fit(share, _sizes(len(labels), clients, size_sigma, rng), there)
    return _deal(labels, _lift(counts, min_rows), classes, rng)


def classes_per_client_partition(
    labels: Ints, clients: int, rng: np.random.Generator, classes_per_client: int, min_rows: int = 1
) -> Partition:
    """Exactly so many classes per client, each class shared evenly by its holders (the "pathological" partition)."""
    classes, there = np.unique(labels, return_counts=True)
    if not 1 <= classes_per_client <= len(classes):
        raise UsageError(
            f"classes_per_client is {classes_per_client}: must lie in 1..{len(classes)}"
        )
    if clients * classes_per_client < len(classes):
        raise UsageError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all {len(classes)} classes: "
            "raise clients or classes_per_client"
        )
    _refuse_too_few(len(labels), clients, min_rows)
    held = np.zeros((clients, len(classes)))
    deck: list[int] = []
    for client in range(clients):
        hand = deck[:classes_per_client]
        if len(hand) < classes_per_client:  # a new deck, whose first cards are none of this hand
            fresh = rng.permutation(len(classes)).tolist()
            deck = [c for c in fresh if c not in hand] + [c for c in fresh if c in hand]
            more = classes_per_client - len(hand)
            hand, deck = hand + deck[:more], deck[more:]
        else:
            deck = deck[classes_per_client:]
        held[client, hand] = 1.0
    held = held[rng.permutation(clients)]
    counts = _whole(held / held.sum(0) * there, there)
    if (counts.sum(1) < min_rows).any():
        raise UsageError(
            f"with {classes_per_client} classes per client, a client has fewer than {min_rows} rows"
        )
    return _deal(labels, counts, classes, rng)


def natural(owners: Ints, min_rows: int = 1) -> Partition:
    """The data's own clients, in order of their number; those with fewer than ``min_rows`` are left out."""
    _, index, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    keep = sizes >= min_rows
    if not keep.any():
        raise UsageError(f"no client has {min_rows} rows: lower min_rows")
    order = np.argsort(index, kind="stable")
    return Partition(order[keep[index[order]]].astype(np.int64), sizes[keep].astype(np.int64))


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "dirichlet": dirichlet,
    "iid": iid,
    "classes": classes_per_client_partition,
}


def _sizes(rows: int, clients: int, sigma: float, rng: np.random.Generator) -> Floats:
    if not 0 <= sigma <= WIDEST:
        raise UsageError(f"size_sigma is {sigma}: must lie in 0..{WIDEST:g}")
    scale = np.exp(sigma * rng.standard_normal(clients))
    return np.asarray(scale / scale.sum() * rows)


def _fit(share: Floats, sizes: Floats, there: Ints) -> Ints:
    """Counts with about these shares within each client, about these sizes, and exactly these totals of each class."""
    table = share * sizes[:, None]
    for _ in range(FITTING_STEPS):
        table *= (there / table.sum(0))[None, :]
        row = table.sum(1)
        if np.abs(row - sizes).max() < 0.5:
            break
        table *= (sizes / row)[:, None]
    table *= (there / table.sum(0))[None, :]
    return _whole(table, there)


def _whole(table: Floats, totals: Ints) -> Ints:
    """Whole numbers with exactly these column sums: cumulative rounding, so that no entry is off by more than one."""
    upto = np.rint(np.cumsum(table, 0))
    upto[-1] = totals
    return np.diff(upto, axis=0, prepend=0).astype(np.int64)


def _lift(counts: Ints, min_rows: int) -> Ints:
    """Clients below the minimum get rows from the largest clients, out of those clients' largest classes."""
    sizes = counts.sum(1)
    for client in np.flatnonzero(sizes < min_rows):
        while sizes[client] < min_rows:
            giver = int(np.argmax(sizes))
            label = int(np.argmax(counts[giver]))
            spare = min(min_rows - sizes[client], sizes[giver] - min_rows, counts[giver, label])
            counts[giver, label] -= spare
            counts[client, label] += spare
            sizes[giver] -= spare
            sizes[client] += spare
    return counts


def _deal(labels: Ints, counts: Ints, classes: Ints, rng: np.random.Generator) -> Partition:
    """Rows of each class, shuffled, to the clients by their counts; and each client's rows in random order."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.concatenate(
        [np.repeat(np.arange(len(counts)), counts[:, c]) for c in range(len(classes))]
    )
    mixed = rng.permutation(len(owner))
    order = mixed[np.argsort(owner[mixed], kind="stable")]
    return Partition(by_class[order], counts.sum(1))


def _refuse_too_few(rows: int, clients: int, min_rows: int) -> None:
    if clients < 1:
        raise UsageError(f"clients is {clients}: must be at least 1")
    if rows < clients * max(1, min_rows):
        raise UsageError(
            f"{rows} rows are too few for {clients} clients with at least {max(1, min_rows)} each: "
            "lower clients or min_rows"
        )
