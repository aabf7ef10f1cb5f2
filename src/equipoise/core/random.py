"""Random numbers by counter: each is a function of (seed, client, round, stream, position) alone.

So every executor draws the same ones, in any order, and there is no generator state to save.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_INDEX = np.uint64(2**20 - 1)


def _mix(z: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys(seed: int, ids: NDArray[np.int64], round: int, stream: int) -> UInt:
    """One 64-bit key a client: the head of its stream of random numbers."""
    with np.errstate(over="ignore"):
        h = _mix(np.uint64(seed % 2**64) + _GOLDEN)
        h = _mix(h ^ _mix(np.uint64(round) + _GOLDEN))
        h = _mix(h ^ _mix(np.uint64(stream) + _GOLDEN))
        return np.asarray(_mix(h ^ _mix(ids.astype(np.uint64) + _GOLDEN)))


def bits(key: UInt, count: int) -> UInt:
    """``[K, count]`` random 64-bit words: splitmix64 started at each key."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return np.asarray(_mix(key[:, None] + steps))


def uniform(key: UInt, count: int) -> NDArray[np.float64]:
    """``[K, count]`` numbers in [0, 1)."""
    return (bits(key, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutations(key: UInt, sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """``[K, count, n_max]``: ``count`` orders of ``0..sizes[k]-1`` for each client, padded behind."""
    n = int(sizes.max())
    words = bits(bits(key, count).reshape(-1), n).reshape(len(key), count, n)  # a client's do not depend on n_max
    if not (sizes == n).all():
        words[np.broadcast_to((np.arange(n) >= sizes[:, None])[:, None, :], words.shape)] = np.uint64(2**64 - 1)
    if n > _INDEX:
        return np.argsort(words, axis=-1)
    # Sorting is much faster than finding the order: each row's number rides along in the low bits of its word.
    words = (words & ~_INDEX) | np.arange(n, dtype=np.uint64)
    words.sort(axis=-1)
    return (words & _INDEX).astype(np.int64)


def cohort(seed: int, round: int, clients: int, participation: float) -> NDArray[np.int64]:
    """The clients of a round, ascending: one stream for all methods, at a cost of the cohort, not the population."""
    if participation >= 1.0:
        return np.arange(clients)
    return drawn(seed, round, clients, cohort_size(clients, participation))


def cohort_size(clients: int, participation: float) -> int:
    """How many clients such a share is: at least one."""
    return clients if participation >= 1.0 else max(1, round_half_up(participation * clients))


def drawn(seed: int, round: int, among: int, count: int) -> NDArray[np.int64]:
    """So many places of ``among``, ascending, all equally likely."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, round]))
    return np.sort(generator.choice(among, count, replace=False, shuffle=False)).astype(np.int64)


def normal_of(u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normally distributed numbers from pairs of uniform ones (Box and Muller)."""
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v))


def round_half_up(x: float) -> int:
    return int(x + 0.5)
