"""The registry of random streams: whoever draws random numbers has a stream here, and no two can share one.

A number drawn by counter is a function of (seed, client, round, stream, position); see :mod:`equipoise.core.random`.
What is drawn once, when data or a population is made, comes from a NumPy generator with a tag of its own.
"""

from __future__ import annotations

import numpy as np

_TAKEN: dict[range, str] = {}
_TAGS: dict[int, str] = {}


class Stream(int):
    """The number of a registered stream."""


class Streams:
    """Neighbouring streams with one purpose."""

    def __init__(self, purpose: str, first: int, count: int = 1) -> None:
        """Register ``count`` streams from number ``first`` on."""
        numbers = range(first, first + count)
        for taken, other in _TAKEN.items():
            if first < taken.stop and taken.start < numbers.stop:
                raise ValueError(f"streams {first} to {numbers.stop - 1} of '{purpose}' belong to '{other}' in part")
        _TAKEN[numbers] = purpose
        self.purpose, self._numbers = purpose, numbers

    def __getitem__(self, place: int) -> Stream:
        """The stream at this place; there are no others."""
        if not 0 <= place < len(self._numbers):
            raise IndexError(f"'{self.purpose}' has streams 0 to {len(self._numbers) - 1}, not {place}")
        return Stream(self._numbers[place])


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
POLICY = Streams("policies of redistribution", 1100, 100)
FIRST_STATES = Streams("states in which agents begin", 2000)
EPISODES = Streams("first states of scored episodes, by split", 2001, 3)
SENSES = Streams("sensors of agents: their order, then their zeros", 2004, 2)
ACTING = Streams("deep agents: their nets, then acting and learning by the call's stream", 2010, 990)
OWN = Streams("draws of a method by Client.uniform, by the call's stream", 10_000, 10_000)
DROPOUT = Streams("what dropout drops in local training, by the call's stream", 20_000, 1000)
PRIVACY = Streams("noise of differential privacy, by parameter", 1_000_000, 1_000_000)


class Tag(int):
    """What tells one NumPy generator of a seed from another."""

    def __new__(cls, number: int, purpose: str) -> Tag:
        """Register a tag."""
        if number in _TAGS:
            raise ValueError(f"tag {number:#x} of '{purpose}' belongs to '{_TAGS[number]}'")
        _TAGS[number] = purpose
        return super().__new__(cls, number)


IMAGES = Tag(0x1A6E, "rows of image sets and who holds them")
OWN_ROWS = Tag(0x0517, "splits of the user's own rows")
SHAKESPEARE = Tag(0x54A4, "roles and their splits")
NEWCOMERS = Tag(0x4E77, "clients that are held out")
BOOTSTRAP = Tag(0xB007, "test rows that are drawn again for the interval of a score")
HOSTILE = Tag(0xBAD, "clients that lie")
TWO_STATE = Tag(0x25, "the two-state problem")
GARNET = Tag(0x6A, "random problems of decision")
VARIANTS = Tag(0x9E, "problems that differ from one another")
PLANTED = Tag(0x91, "planted representations")
LINEAR_START = Tag(0x41, "first representations of linear values")


def generator(seed: int, tag: Tag, *whose: int) -> np.random.Generator:
    """The generator of this seed for this purpose, and of this client where each has its own."""
    return np.random.default_rng([seed, tag, *whose])
