"""Classes of devices as a small table: three worlds that ship, or the user's own CSV file."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.utils import rng
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.pytree import Ints
from equipoise.utils.rng import DEVICES

HOURS_PER_DAY = 24


@dataclass(frozen=True)
class Device:
    """A class of devices. One client is of one class; its speed differs from the class's by its own draw."""

    name: str
    share: float
    """How many of the clients are of this class, relative to the other classes."""
    speed: float
    """Training samples per second."""
    spread: float = 0.0
    """Standard deviation of the logarithm of the speed between devices of the class."""
    jitter: float = 0.0
    """The same between rounds of one device."""
    up: float = 10.0
    """Megabits per second from the client to the server."""
    down: float = 50.0
    present: tuple[float, ...] = (1.0,) * HOURS_PER_DAY
    """For each hour of the day, the chance that the device can be asked."""
    dropout: float = 0.0
    """The chance per round that the device begins and never replies."""
    watts: float = 5.0
    """Power while it trains."""
    radio: float = 1.0
    """Power while it sends or receives."""


DeviceClasses = tuple[Device, ...]

_NIGHT, _DAY = 0.9, 0.3  # phones train when they charge
_CHARGING = tuple(_NIGHT if hour < 7 or hour >= 22 else _DAY for hour in range(HOURS_PER_DAY))
DEVICE_POPULATIONS: dict[str, DeviceClasses] = {
    "default": (Device("device", 1.0, speed=1000.0),),
    "phones": (
        Device("new", 0.3, 1000.0, 0.2, 0.1, 20.0, 80.0, _CHARGING, 0.02, 3.0, 1.0),
        Device("usual", 0.5, 300.0, 0.3, 0.2, 5.0, 20.0, _CHARGING, 0.05, 2.0, 1.0),
        Device("old", 0.2, 30.0, 0.4, 0.3, 1.0, 4.0, _CHARGING, 0.1, 1.5, 1.2),
    ),
    "silos": (
        Device("centre", 0.5, 20000.0, 0.1, 0.05, 500.0, 500.0, watts=250.0, radio=5.0),
        Device("workstation", 0.4, 5000.0, 0.2, 0.1, 50.0, 100.0, watts=150.0, radio=5.0),
        Device("shared", 0.1, 1000.0, 0.3, 0.5, 10.0, 50.0, dropout=0.01, watts=65.0, radio=5.0),
    ),
}
COLUMNS = tuple(item.name for item in fields(Device))
NEEDED = ("name", "share", "speed")
POSITIVE, SHARES = ("share", "speed", "up", "down"), ("dropout",)


def load_device_classes(where: str) -> DeviceClasses:
    """A world by name, or from a CSV file with a line per class; columns that it leaves out have their defaults."""
    if where in DEVICE_POPULATIONS:
        return DEVICE_POPULATIONS[where]
    if not where.endswith(".csv"):
        raise UsageError(
            f"devices is '{where}': must be {', '.join(DEVICE_POPULATIONS)} or a .csv file{nearest(where, DEVICE_POPULATIONS)}"
        )
    try:
        text = Path(where).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"devices file '{where}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"devices file '{where}' is not UTF-8: save it as CSV UTF-8") from error
    separated = ";" if text and ";" in text[0] else ","
    lines = list(csv.reader(text, delimiter=separated))
    header = [name.strip() for name in lines[0]] if lines else []
    wrong = [
        f"unknown column '{name}'{nearest(name, COLUMNS)}" for name in header if name not in COLUMNS
    ]
    wrong += [f"column '{name}' is missing" for name in NEEDED if name not in header]
    wrong += [
        f"column '{name}' stands there twice"
        for name in sorted(set(header))
        if header.count(name) > 1
    ]
    found: list[Device] = []
    rows = [
        (row, line)
        for row, line in enumerate(lines[1:], start=2)
        if any(cell.strip() for cell in line)
    ]
    if not rows:
        wrong.append("it has no line of a device")
    for row, line in rows:
        found += _device(row, header, line, wrong)
    wrong += [
        f"two classes are called '{n}'"
        for n in sorted({d.name for d in found if _twice(d.name, found)})
    ]
    if wrong:
        raise UsageError(f"devices file '{where}': {'; '.join(wrong)}")
    return tuple(found)


def _device(row: int, header: list[str], line: list[str], wrong: list[str]) -> list[Device]:
    """The device of a line; what is wrong with it is added to what is wrong with the others."""
    before = len(wrong)
    if len(line) != len(header):
        wrong.append(f"row {row} has {len(line)} cells, the first row names {len(header)} columns")
        return []
    cells = {
        name: cell.strip()
        for name, cell in zip(header, line, strict=True)
        if cell.strip() and name in COLUMNS
    }
    wrong += [
        f"row {row}: {name} is empty" for name in NEEDED if name in header and name not in cells
    ]
    numbers: dict[str, float] = {}
    for name, cell in cells.items():
        if name not in ("name", "present"):
            numbers[name] = _number(cell)
            if not _allowed(name, numbers[name]):
                wrong.append(f"row {row}: {name} is '{cell}': must be {_words(name)}")
    present = tuple(_number(cell) for cell in cells.get("present", "1").split())
    present = present * HOURS_PER_DAY if len(present) == 1 else present
    if (
        len(present) != HOURS_PER_DAY
        or not all(0 <= chance <= 1 for chance in present)
        or not any(present)
    ):
        wrong.append(
            f"row {row}: present is '{cells['present']}': must be one chance between 0 and 1, or 24, one per hour, "
            "separated by spaces and not all 0"
        )
    if len(wrong) > before or not cells.keys() >= set(NEEDED):
        return []
    return [Device(cells["name"], present=present, **numbers)]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _allowed(name: str, value: float) -> bool:
    if name in SHARES:
        return 0 <= value < 1
    return math.isfinite(value) and (value > 0 if name in POSITIVE else value >= 0)


def _words(name: str) -> str:
    if name in SHARES:
        return "a number of at least 0 and below 1"
    return "a number above 0" if name in POSITIVE else "a number of at least 0"


def _twice(name: str, devices: list[Device]) -> bool:
    return sum(device.name == name for device in devices) > 1


SECONDS_PER_HOUR = 3600.0
MEGABITS_PER_BYTE = 8e-6  # megabits of a byte
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceProfiles:
    """Devices of some clients on a usual day, one number each."""

    ids: Ints
    class_index: Ints
    """Places of their classes in the table."""
    speed: Floats
    """Training samples per second."""
    upload_time: Floats
    """Seconds per byte to the server."""
    download_time: Floats
    watts: Floats
    """While it trains."""
    radio: Floats
    """Watts while it sends or receives."""

    @classmethod
    def empty(cls) -> DeviceProfiles:
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
        self.device_classes, self.seed = world, seed
        shares = np.cumsum([device.share for device in world])
        self._ends: Floats = shares / shares[-1]
        numbers = [item.name for item in fields(Device) if item.name not in ("name", "present")]
        self._table = {
            name: np.array([getattr(device, name) for device in world]) for name in numbers
        }
        self._present: Floats = np.array([device.present for device in world])
        self.always_available = bool((self._present == 1.0).all())
        self._chancy = bool(self._table["jitter"].any() or self._table["dropout"].any())
        self._last = DeviceProfiles.empty()

    def class_index(self, ids: Ints) -> Ints:
        """Places of the classes of these clients in the table."""
        if len(self.device_classes) == 1:
            return np.zeros(len(ids), np.int64)
        u = rng.uniform(rng.keys(self.seed, ids, 0, DEVICES[0]), 1)[:, 0]
        return np.searchsorted(self._ends, u, side="right")

    def profiles(self, ids: Ints) -> DeviceProfiles:
        """What these clients' devices do on a usual day; those of the last cohort are at hand."""
        last = self._last
        if np.array_equal(last.ids, ids):
            return last
        kinds = self.class_index(ids)
        speed, spread, up, down = (
            self._table[name][kinds] for name in ("speed", "spread", "up", "down")
        )
        if spread.any():
            # The class has the first number of this stream; beside it stands an independent one.
            key = rng.bits(rng.keys(self.seed, ids, 0, DEVICES[0]), 2)[:, 1]
            speed = speed * np.exp(spread * rng.normal_of(*rng.uniform(key, 2).T))
        watts, radio = self._table["watts"][kinds], self._table["radio"][kinds]
        self._last = found = DeviceProfiles(
            ids, kinds, speed, MEGABITS_PER_BYTE / up, MEGABITS_PER_BYTE / down, watts, radio
        )
        return found

    def relative_download_time(self, ids: Ints) -> Floats:
        """How long a download takes each of these clients, in units of the mean over everybody."""
        down = MEGABITS_PER_BYTE / self._table["down"]
        waits: Floats = down[self.class_index(ids)] / np.average(down, weights=self._table["share"])
        return waits

    def available(self, ids: Ints, clock: float) -> Bools:
        """Who of these can be asked at this time: drawn anew each hour."""
        if self.always_available:
            return np.ones(len(ids), bool)
        hour = int(clock // SECONDS_PER_HOUR)
        u = rng.uniform(rng.keys(self.seed, ids, hour, DEVICES[1]), 1)[:, 0]
        return np.asarray(u < self._present[self.class_index(ids), hour % HOURS_PER_DAY])

    def round_durations(
        self, ids: Ints, round: int, samples: Floats, up: Floats, down: Floats
    ) -> RoundDurations:
        """A round in which these clients train on so many samples and so many bytes go up and down."""
        usual, table = self.profiles(ids), self._table
        kinds, training = usual.class_index, samples / usual.speed
        luck = rng.uniform(rng.keys(self.seed, ids, round, DEVICES[2]), 4) if self._chancy else None
        if luck is not None:
            training = training * np.exp(
                table["jitter"][kinds] * rng.normal_of(luck[:, 0], luck[:, 1])
            )
        radio = up * usual.upload_time + down * usual.download_time
        seconds = training + radio
        joules = training * usual.watts + radio * usual.radio
        if luck is None:
            return RoundDurations(seconds, joules, np.zeros(len(ids), bool))
        lost = luck[:, 2] < table["dropout"][kinds]
        part = np.where(lost, luck[:, 3], 1.0)  # it is lost somewhere on its way
        return RoundDurations(seconds * part, joules * part, lost)
