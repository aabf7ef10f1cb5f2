"""Partition the rows of one data set among clients: IID, Dirichlet label skew, few classes each.

All partitions are seeded. Where labels matter, a table of counts ``[clients, classes]`` is made
first, and rows are assigned by these counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints
from equipoise.utils.errors import UsageError

Floats = NDArray[np.float64]

FITTING_STEPS = 200  # at most, of iterative proportional fitting
MAX_SIZE_SIGMA = 10.0  # beyond, one client has all rows but the others' minimum
MIN_CLASS_SHARE = 1e-12  # no share is exactly zero, so that the fitting has a solution


@dataclass(frozen=True)
class Partition:
    """Rows of all clients, one client after the other.

    Attributes:
        rows: Row numbers; client ``k`` owns ``sizes[k]`` consecutive entries.
        sizes: Number of rows of each client ``[K]``.
    """

    rows: Ints
    sizes: Ints

    def rows_of(self, client: int) -> Ints:
        """Return the row numbers of one client."""
        first = int(self.sizes[:client].sum())
        return self.rows[first : first + int(self.sizes[client])]


def iid(
    labels: Ints, clients: int, rng: np.random.Generator, size_sigma: float = 0.0, min_rows: int = 1
) -> Partition:
    """Assign rows at random.

    Args:
        labels: Label of each row; only their number matters.
        clients: Number of clients.
        rng: Source of randomness.
        size_sigma: Client sizes are log-normal with this sigma; equal if 0.
        min_rows: Rows that every client gets at least.

    Returns:
        The partition.
    """
    _check_enough_rows(len(labels), clients, min_rows)
    expected = _draw_sizes(len(labels), clients, size_sigma, rng)
    counts = _round_columns(expected[:, None], np.array([len(labels)]))
    return Partition(rng.permutation(len(labels)), _raise_to_minimum(counts, min_rows)[:, 0])


def dirichlet(
    labels: Ints,
    clients: int,
    rng: np.random.Generator,
    delta: float,
    size_sigma: float = 0.0,
    min_rows: int = 1,
) -> Partition:
    """Draw the class ratios of each client from Dir(delta), as PAGE does.

    Ratios and sizes are fitted to the rows that exist (iterative proportional fitting), so that
    every row is used once.

    Args:
        labels: Label of each row.
        clients: Number of clients.
        rng: Source of randomness.
        delta: Concentration; smaller is more skewed.
        size_sigma: Client sizes are log-normal with this sigma; equal if 0.
        min_rows: Rows that every client gets at least.

    Returns:
        The partition.

    Raises:
        UsageError: If ``delta`` is not a positive number, or there are too few rows.
    """
    if not 0 < delta < np.inf:
        raise UsageError(f"delta is {delta}: must be a number above 0")
    _check_enough_rows(len(labels), clients, min_rows)
    classes, totals = np.unique(labels, return_counts=True)
    gamma = rng.standard_gamma(delta, (clients, len(classes))) + MIN_CLASS_SHARE
    share = gamma / gamma.sum(1, keepdims=True)
    counts = _fit_counts(share, _draw_sizes(len(labels), clients, size_sigma, rng), totals)
    return _assign_rows(labels, _raise_to_minimum(counts, min_rows), classes, rng)


def classes_per_client_partition(
    labels: Ints, clients: int, rng: np.random.Generator, classes_per_client: int, min_rows: int = 1
) -> Partition:
    """Give every client the same number of classes (the "pathological" partition).

    Each class is shared evenly by the clients that hold it.

    Args:
        labels: Label of each row.
        clients: Number of clients.
        rng: Source of randomness.
        classes_per_client: Number of classes that each client holds.
        min_rows: Rows that every client must get.

    Returns:
        The partition.

    Raises:
        UsageError: If the clients cannot hold all classes, or a client gets too few rows.
    """
    classes, totals = np.unique(labels, return_counts=True)
    if not 1 <= classes_per_client <= len(classes):
        raise UsageError(
            f"classes_per_client is {classes_per_client}: must lie in 1..{len(classes)}"
        )
    if clients * classes_per_client < len(classes):
        raise UsageError(
            f"{clients} clients with {classes_per_client} classes each cannot hold all "
            f"{len(classes)} classes: raise clients or classes_per_client"
        )
    _check_enough_rows(len(labels), clients, min_rows)
    # Classes are dealt from a shuffled deck, so that all classes get about as many holders.
    holds = np.zeros((clients, len(classes)))
    deck: list[int] = []
    for client in range(clients):
        hand = deck[:classes_per_client]
        deck = deck[classes_per_client:]
        missing = classes_per_client - len(hand)
        if missing:
            # A new deck. Classes of this hand go last, so that no hand has a class twice.
            shuffled = rng.permutation(len(classes)).tolist()
            deck = [c for c in shuffled if c not in hand] + [c for c in shuffled if c in hand]
            hand = hand + deck[:missing]
            deck = deck[missing:]
        holds[client, hand] = 1.0
    holds = holds[rng.permutation(clients)]
    counts = _round_columns(holds / holds.sum(0) * totals, totals)
    if (counts.sum(1) < min_rows).any():
        raise UsageError(
            f"with {classes_per_client} classes per client, a client has fewer than {min_rows} rows"
        )
    return _assign_rows(labels, counts, classes, rng)


def natural(owners: Ints, min_rows: int = 1) -> Partition:
    """Use the clients that the data names, in order of their number.

    Args:
        owners: Client number of each row.
        min_rows: Clients with fewer rows are left out.

    Returns:
        The partition.

    Raises:
        UsageError: If no client has enough rows.
    """
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


def _draw_sizes(rows: int, clients: int, sigma: float, rng: np.random.Generator) -> Floats:
    """Draw log-normal client sizes ``[clients]`` that add up to ``rows``."""
    if not 0 <= sigma <= MAX_SIZE_SIGMA:
        raise UsageError(f"size_sigma is {sigma}: must lie in 0..{MAX_SIZE_SIGMA:g}")
    scale = np.exp(sigma * rng.standard_normal(clients))
    return np.asarray(scale / scale.sum() * rows)


def _fit_counts(share: Floats, sizes: Floats, totals: Ints) -> Ints:
    """Fit counts ``[clients, classes]`` by iterative proportional fitting.

    Args:
        share: Wanted class shares within each client ``[clients, classes]``.
        sizes: Wanted client sizes ``[clients]``.
        totals: Rows of each class ``[classes]``, which are met exactly.
    """
    table = share * sizes[:, None]
    for _ in range(FITTING_STEPS):
        table *= (totals / table.sum(0))[None, :]
        row = table.sum(1)
        if np.abs(row - sizes).max() < 0.5:
            break
        table *= (sizes / row)[:, None]
    table *= (totals / table.sum(0))[None, :]
    return _round_columns(table, totals)


def _round_columns(table: Floats, totals: Ints) -> Ints:
    """Round to integers with exact column sums; no entry changes by more than one."""
    cumulative = np.rint(np.cumsum(table, 0))
    cumulative[-1] = totals
    return np.diff(cumulative, axis=0, prepend=0).astype(np.int64)


def _raise_to_minimum(counts: Ints, min_rows: int) -> Ints:
    """Move rows to clients below the minimum, from the largest class of the largest client."""
    sizes = counts.sum(1)
    for client in np.flatnonzero(sizes < min_rows):
        while sizes[client] < min_rows:
            donor = int(np.argmax(sizes))
            label = int(np.argmax(counts[donor]))
            moved = min(min_rows - sizes[client], sizes[donor] - min_rows, counts[donor, label])
            counts[donor, label] -= moved
            counts[client, label] += moved
            sizes[donor] -= moved
            sizes[client] += moved
    return counts


def _assign_rows(labels: Ints, counts: Ints, classes: Ints, rng: np.random.Generator) -> Partition:
    """Assign shuffled rows by counts ``[clients, classes]``; shuffle the rows of each client."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    clients = np.arange(len(counts))
    owner = np.concatenate([np.repeat(clients, counts[:, c]) for c in range(len(classes))])
    mixed = rng.permutation(len(owner))
    order = mixed[np.argsort(owner[mixed], kind="stable")]
    return Partition(by_class[order], counts.sum(1))


def _check_enough_rows(rows: int, clients: int, min_rows: int) -> None:
    """Refuse fewer rows than ``min_rows`` per client."""
    if clients < 1:
        raise UsageError(f"clients is {clients}: must be at least 1")
    if rows < clients * max(1, min_rows):
        raise UsageError(
            f"{rows} rows are too few for {clients} clients with at least {max(1, min_rows)} each: "
            "lower clients or min_rows"
        )
