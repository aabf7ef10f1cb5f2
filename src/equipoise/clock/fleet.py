"""Everybody's device, drawn by seed and client: nothing is kept of a client that its number does not give again."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from equipoise.clock.devices import HOURS, Device, DeviceClasses
from equipoise.core import random
from equipoise.core.streams import DEVICES
from equipoise.core.trees import Ints

HOUR = 3600.0
BITS = 8e-6  # megabits of a byte
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceProfiles:
    """Devices of some clients on a usual day, one number each."""

    ids: Ints
    kinds: Ints
    """Places of their classes in the table."""
    speed: Floats
    """Training samples per second."""
    up: Floats
    """Seconds per byte to the server."""
    down: Floats
    watts: Floats
    """While it trains."""
    radio: Floats
    """Watts while it sends or receives."""

    @classmethod
    def nobody(cls) -> DeviceProfiles:
        none = np.empty(0)
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), none, none, none, none, none)


@dataclass(frozen=True)
class RoundDurations:
    """What a round is to each of some clients: seconds and joules until it replies, or until it is ``lost``."""

    seconds: Floats
    joules: Floats
    lost: Bools


class DevicePopulation:
    """The devices of a population: each is of a class of :mod:`equipoise.clock.devices`, with a speed of its own."""

    def __init__(self, world: DeviceClasses, seed: int) -> None:
        self.world, self.seed = world, seed
        shares = np.cumsum([device.share for device in world])
        self._ends: Floats = shares / shares[-1]
        numbers = [item.name for item in fields(Device) if item.name not in ("name", "present")]
        self._table = {name: np.array([getattr(device, name) for device in world]) for name in numbers}
        self._present: Floats = np.array([device.present for device in world])
        self.always_there = bool((self._present == 1.0).all())
        self._chancy = bool(self._table["jitter"].any() or self._table["dropout"].any())
        self._last = DeviceProfiles.nobody()

    def kinds(self, ids: Ints) -> Ints:
        """Places of the classes of these clients in the table."""
        if len(self.world) == 1:
            return np.zeros(len(ids), np.int64)
        u = random.uniform(random.keys(self.seed, ids, 0, DEVICES[0]), 1)[:, 0]
        return np.searchsorted(self._ends, u, side="right")

    def usual(self, ids: Ints) -> DeviceProfiles:
        """What these clients' devices do on a usual day; those of the last cohort are at hand."""
        last = self._last
        if np.array_equal(last.ids, ids):
            return last
        kinds = self.kinds(ids)
        speed, spread, up, down = (self._table[name][kinds] for name in ("speed", "spread", "up", "down"))
        if spread.any():
            # The class has the first number of this stream; beside it stands an independent one.
            key = random.bits(random.keys(self.seed, ids, 0, DEVICES[0]), 2)[:, 1]
            speed = speed * np.exp(spread * random.normal_of(*random.uniform(key, 2).T))
        watts, radio = self._table["watts"][kinds], self._table["radio"][kinds]
        self._last = found = DeviceProfiles(ids, kinds, speed, BITS / up, BITS / down, watts, radio)
        return found

    def waits_for_downloads(self, ids: Ints) -> Floats:
        """How long a download takes each of these clients, in units of the mean over everybody."""
        down = BITS / self._table["down"]
        waits: Floats = down[self.kinds(ids)] / np.average(down, weights=self._table["share"])
        return waits

    def present(self, ids: Ints, clock: float) -> Bools:
        """Who of these can be asked at this time: drawn anew each hour."""
        if self.always_there:
            return np.ones(len(ids), bool)
        hour = int(clock // HOUR)
        u = random.uniform(random.keys(self.seed, ids, hour, DEVICES[1]), 1)[:, 0]
        return np.asarray(u < self._present[self.kinds(ids), hour % HOURS])

    def trips(self, ids: Ints, round: int, samples: Floats, up: Floats, down: Floats) -> RoundDurations:
        """A round in which these clients train on so many samples and so many bytes go up and down."""
        usual, table = self.usual(ids), self._table
        kinds, training = usual.kinds, samples / usual.speed
        luck = random.uniform(random.keys(self.seed, ids, round, DEVICES[2]), 4) if self._chancy else None
        if luck is not None:
            training = training * np.exp(table["jitter"][kinds] * random.normal_of(luck[:, 0], luck[:, 1]))
        radio = up * usual.up + down * usual.down
        seconds = training + radio
        joules = training * usual.watts + radio * usual.radio
        if luck is None:
            return RoundDurations(seconds, joules, np.zeros(len(ids), bool))
        lost = luck[:, 2] < table["dropout"][kinds]
        part = np.where(lost, luck[:, 3], 1.0)  # it is lost somewhere on its way
        return RoundDurations(seconds * part, joules * part, lost)
