"""Counter-based random numbers: a function of (seed, client, round, stream, position).

Every executor draws the same numbers in any order, and there is no generator state to save.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_INDEX = np.uint64(2**20 - 1)


def _mix(z: Any) -> Any:
    """Apply the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys(seed: int, ids: NDArray[np.int64], round: int, stream: int) -> UInt:
    """Return the random key of each client.

    Args:
        seed: Seed of the run.
        ids: Client numbers, `[K]`.
        round: Current round.
        stream: Number of a registered stream.

    Returns:
        64-bit keys, `[K]`.
    """
    with np.errstate(over="ignore"):
        h = _mix(np.uint64(seed % 2**64) + _GOLDEN)
        h = _mix(h ^ _mix(np.uint64(round) + _GOLDEN))
        h = _mix(h ^ _mix(np.uint64(stream) + _GOLDEN))
        return np.asarray(_mix(h ^ _mix(ids.astype(np.uint64) + _GOLDEN)))


def bits(key: UInt, count: int) -> UInt:
    """Draw 64-bit words `[K, count]`: splitmix64 started at each key `[K]`."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return np.asarray(_mix(key[:, None] + steps))


def uniform(key: UInt, count: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1), `[K, count]`."""
    return (bits(key, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutations(key: UInt, sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Draw `count` permutations of `0..sizes[k]-1` per client, padded: `[K, count, n_max]`.

    Args:
        key: Random key of each client `[K]`.
        sizes: Length of each client's permutations `[K]`.
        count: Number of permutations of each client.
    """
    n = int(sizes.max())
    # The words of a client do not depend on n_max.
    words = bits(bits(key, count).reshape(-1), n).reshape(len(key), count, n)
    if not (sizes == n).all():
        words[np.broadcast_to((np.arange(n) >= sizes[:, None])[:, None, :], words.shape)] = (
            np.uint64(2**64 - 1)
        )
    if n > _INDEX:
        return np.argsort(words, axis=-1)
    # Sorting is much faster than argsort: the low bits of each word carry the row's number.
    words &= ~_INDEX
    words |= np.arange(n, dtype=np.uint64)
    words.sort(axis=-1)
    words &= _INDEX
    return words.view(np.int64)


def sample_cohort(seed: int, round: int, clients: int, participation: float) -> NDArray[np.int64]:
    """Sample the clients of a round, ascending. The sample is the same for all methods.

    Args:
        seed: Seed of the run.
        round: The round, from 1 on.
        clients: Size of the population.
        participation: Fraction of the clients that are drawn.

    Returns:
        Client ids `[K]`.
    """
    if participation >= 1.0:
        return np.arange(clients)
    return sample_without_replacement(seed, round, clients, cohort_size(clients, participation))


def cohort_size(clients: int, participation: float) -> int:
    """Return the number of clients of a participation rate, at least 1."""
    return clients if participation >= 1.0 else max(1, round_half_up(participation * clients))


def sample_without_replacement(seed: int, round: int, among: int, count: int) -> NDArray[np.int64]:
    """Sample `count` of the numbers `0..among-1` uniformly, ascending.

    Args:
        seed: Seed of the run.
        round: The round, from 1 on.
        among: Size of the set to draw from.
        count: How many are drawn.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, round]))
    return np.sort(generator.choice(among, count, replace=False, shuffle=False)).astype(np.int64)


def box_muller(u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Transform pairs of uniform numbers to normal ones (Box and Muller)."""
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v))


def round_half_up(x: float) -> int:
    """Round to the nearest integer, halves up."""
    return int(x + 0.5)


_TAKEN: dict[range, str] = {}
_TAGS: dict[int, str] = {}


class Stream(int):
    """The number of a registered stream."""


class Streams:
    """A range of streams with one purpose."""

    def __init__(self, purpose: str, first: int, count: int = 1) -> None:
        """Register ``count`` streams from number ``first`` on.

        Args:
            purpose: What the draws are used for.
            first: Number of the first stream.
            count: Number of streams.
        """
        numbers = range(first, first + count)
        for registered, other in _TAKEN.items():
            if first < registered.stop and registered.start < numbers.stop:
                raise ValueError(
                    f"streams {first} to {numbers.stop - 1} of '{purpose}' "
                    f"belong to '{other}' in part"
                )
        _TAKEN[numbers] = purpose
        self.purpose = purpose
        self._numbers = numbers

    def __getitem__(self, index: int) -> Stream:
        """Return the stream at a position of the range."""
        if not 0 <= index < len(self._numbers):
            raise IndexError(
                f"'{self.purpose}' has streams 0 to {len(self._numbers) - 1}, not {index}"
            )
        return Stream(self._numbers[index])


BATCHES = Streams("orders of batches in local training, by the call's stream", 0, 1000)
FIRST_TABLES = BATCHES[0]  # tables of action values: their tasks have no batches
AGENT = Streams("a player's agent: its nets, then exploring and learning", 1000, 2)
RESIDUAL = Streams("a client's exploration around a rule", 1002)
ENERGY = Streams("a client's resources: its own, then those of the round", 1003, 2)
COHORT_AGENT = Streams("the agent that weighs whoever replied: nets and learning", 1005, 2)
COHORT_MEMBERS = Streams("which of a cohort are remembered", 1007)
COHORT_NOISE = Streams("exploration of the weights of a cohort", 1008)
DEVICES = Streams("a client's device: what it is, its hours, the luck of a round", 1009, 3)
SELECTION = Streams("who is asked: chances of clients, then a learned policy's own", 1013, 2)
TREES = Streams("trees: rows of a client, then columns", 1015, 2)
POLICY = Streams("policies of redistribution", 1100, 100)
FIRST_STATES = Streams("states in which agents begin", 2000)
EPISODES = Streams("first states of scored episodes, by split", 2001, 3)
SENSES = Streams("sensors of agents: their order, then their zeros", 2004, 2)
ACTING = Streams(
    "deep agents: their nets, then acting and learning by the call's stream", 2010, 990
)
METHOD_DRAWS = Streams("draws of a method by Client.uniform, by the call's stream", 10_000, 10_000)
DROPOUT = Streams("what dropout drops in local training, by the call's stream", 20_000, 1000)
PRIVACY = Streams("noise of differential privacy, by parameter", 1_000_000, 1_000_000)


class Tag(int):
    """Number that separates the NumPy generators of one seed by purpose."""

    def __new__(cls, number: int, purpose: str) -> Tag:
        """Register a tag."""
        if number in _TAGS:
            raise ValueError(f"tag {number:#x} of '{purpose}' belongs to '{_TAGS[number]}'")
        _TAGS[number] = purpose
        return super().__new__(cls, number)


IMAGES = Tag(0x1A6E, "rows of image sets and who holds them")
USER_ROWS = Tag(0x0517, "splits of the user's own rows")
SHAKESPEARE = Tag(0x54A4, "roles and their splits")
NEWCOMERS = Tag(0x4E77, "clients that are held out")
BOOTSTRAP = Tag(0xB007, "test rows that are drawn again for the interval of a score")
EXPLANATION = Tag(0xE8B1, "rows and permutations by which a model is explained")
ATTACKERS = Tag(0xBAD, "clients that lie")
TWO_STATE = Tag(0x25, "the two-state problem")
GARNET = Tag(0x6A, "random problems of decision")
VARIANTS = Tag(0x9E, "problems that differ from one another")
PLANTED = Tag(0x91, "planted representations")
LINEAR_START = Tag(0x41, "first representations of linear values")


def generator(seed: int, tag: Tag, *whose: int) -> np.random.Generator:
    """Return the NumPy generator of a seed and purpose, optionally of one client."""
    return np.random.default_rng([seed, tag, *whose])
