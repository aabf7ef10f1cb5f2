"""Simulated devices: classes of devices, and the device of each client.

Classes come from one of three populations below or from a user's CSV file. The device of a client
is derived from (seed, client id). Nothing is stored per client.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.pytree import Ints
from equipoise.utils.rng import DEVICES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600.0
MEGABITS_PER_BYTE = 8e-6

# ------------------------------------------------------------------ classes of devices


@dataclass(frozen=True)
class Device:
    """A class of devices. The fields are the columns of a user's CSV file.

    Attributes:
        name: Name of the class.
        share: Share of clients of this class, relative to the other classes.
        speed: Training samples per second.
        spread: Standard deviation of log speed between devices of the class.
        jitter: Standard deviation of log speed between rounds of one device.
        up: Upload bandwidth in megabits per second.
        down: Download bandwidth in megabits per second.
        present: Probability that the device is available, for each hour of the day.
        dropout: Probability per round that the device starts and never replies.
        watts: Power while it trains.
        radio: Power in watts while it sends or receives.
    """

    name: str
    share: float
    speed: float
    spread: float = 0.0
    jitter: float = 0.0
    up: float = 10.0
    down: float = 50.0
    present: tuple[float, ...] = (1.0,) * HOURS_PER_DAY
    dropout: float = 0.0
    watts: float = 5.0
    radio: float = 1.0


DeviceClasses = tuple[Device, ...]

# Phones train while they charge, which is mostly from 22 to 7 o'clock.
_CHARGING = tuple(0.9 if hour < 7 or hour >= 22 else 0.3 for hour in range(HOURS_PER_DAY))
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
REQUIRED_COLUMNS = ("name", "share", "speed")
POSITIVE_COLUMNS = ("share", "speed", "up", "down")
PROBABILITY_COLUMNS = ("dropout",)


def load_device_classes(source: str) -> DeviceClasses:
    """Load classes of devices.

    Args:
        source: Name of a population, or path of a CSV file with one row per class. Columns that
            the file leaves out have their default values.

    Returns:
        The classes.

    Raises:
        UsageError: If there is no such population or file, or the file is wrong; all problems of
            a file are in one message.
    """
    if source in DEVICE_POPULATIONS:
        return DEVICE_POPULATIONS[source]
    if not source.endswith(".csv"):
        raise UsageError(
            f"devices is '{source}': must be {', '.join(DEVICE_POPULATIONS)} or a .csv file"
            f"{did_you_mean(source, DEVICE_POPULATIONS)}"
        )
    try:
        text = Path(source).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"devices file '{source}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"devices file '{source}' is not UTF-8: save it as CSV UTF-8") from error
    delimiter = ";" if text and ";" in text[0] else ","
    lines = list(csv.reader(text, delimiter=delimiter))
    header = [name.strip() for name in lines[0]] if lines else []
    problems = _header_problems(header)
    devices: list[Device] = []
    num_rows = 0
    for row, cells in enumerate(lines[1:], start=2):
        if not any(cell.strip() for cell in cells):
            continue
        num_rows += 1
        device, row_problems = _parse_device(header, cells)
        problems += [f"row {row}{problem}" for problem in row_problems]
        if device is not None:
            devices.append(device)
    if not num_rows:
        problems.append("it has no line of a device")
    names = [device.name for device in devices]
    problems += [
        f"two classes are called '{name}'" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if problems:
        raise UsageError(f"devices file '{source}': {'; '.join(problems)}")
    return tuple(devices)


def _header_problems(header: list[str]) -> list[str]:
    """Return the problems of the first row of a CSV file."""
    problems = [
        f"unknown column '{name}'{did_you_mean(name, COLUMNS)}"
        for name in header
        if name not in COLUMNS
    ]
    problems += [f"column '{name}' is missing" for name in REQUIRED_COLUMNS if name not in header]
    problems += [
        f"column '{name}' stands there twice"
        for name in sorted(set(header))
        if header.count(name) > 1
    ]
    return problems


def _parse_device(header: list[str], line: list[str]) -> tuple[Device | None, list[str]]:
    """Parse one row of a CSV file; return the device, or ``None`` and the problems."""
    if len(line) != len(header):
        return None, [f" has {len(line)} cells, the first row names {len(header)} columns"]
    cells = {
        name: cell.strip()
        for name, cell in zip(header, line, strict=True)
        if cell.strip() and name in COLUMNS
    }
    problems = [
        f": {name} is empty" for name in REQUIRED_COLUMNS if name in header and name not in cells
    ]
    numbers: dict[str, float] = {}
    for name, cell in cells.items():
        if name in ("name", "present"):
            continue
        numbers[name] = _parse_number(cell)
        if not _is_allowed(name, numbers[name]):
            problems.append(f": {name} is '{cell}': must be {_describe_allowed(name)}")
    present = tuple(_parse_number(cell) for cell in cells.get("present", "1").split())
    if len(present) == 1:
        present = present * HOURS_PER_DAY
    is_valid = len(present) == HOURS_PER_DAY and all(0 <= chance <= 1 for chance in present)
    if not is_valid or not any(present):
        problems.append(
            f": present is '{cells['present']}': must be one chance between 0 and 1, or 24, one "
            "per hour, separated by spaces and not all 0"
        )
    if problems or not cells.keys() >= set(REQUIRED_COLUMNS):
        return None, problems
    return Device(cells["name"], present=present, **numbers), []


def _parse_number(cell: str) -> float:
    """Parse a number; NaN if it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _is_allowed(name: str, value: float) -> bool:
    """Return whether a column may have this value."""
    if name in PROBABILITY_COLUMNS:
        return 0 <= value < 1
    if name in POSITIVE_COLUMNS:
        return 0 < value < math.inf
    return 0 <= value < math.inf


def _describe_allowed(name: str) -> str:
    """Describe the values that a column may have."""
    if name in PROBABILITY_COLUMNS:
        return "a number of at least 0 and below 1"
    return "a number above 0" if name in POSITIVE_COLUMNS else "a number of at least 0"


# ------------------------------------------------------------------ devices of clients


@dataclass(frozen=True)
class DeviceProfiles:
    """Nominal device profiles (no per-round jitter) of K clients; every field is ``[K]``.

    Attributes:
        ids: Client ids.
        class_index: Index of each client's class.
        samples_per_second: Training speed.
        upload_seconds_per_byte: Seconds per byte to the server.
        download_seconds_per_byte: Seconds per byte from the server.
        compute_watts: Power while it trains.
        radio_watts: Power while it sends or receives.
    """

    ids: Ints
    class_index: Ints
    samples_per_second: Floats
    upload_seconds_per_byte: Floats
    download_seconds_per_byte: Floats
    compute_watts: Floats
    radio_watts: Floats

    @classmethod
    def empty(cls) -> DeviceProfiles:
        """Return the profiles of no client."""
        none = np.empty(0)
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), none, none, none, none, none)


@dataclass(frozen=True)
class RoundDurations:
    """Cost of one round for each of K clients; every field is ``[K]``.

    Attributes:
        seconds: Time until the client replies or is lost.
        joules: Energy until then.
        lost: Whether the client never replies.
    """

    seconds: Floats
    joules: Floats
    lost: Bools


class DevicePopulation:
    """The devices of all clients: each has a class and a speed of its own."""

    def __init__(self, device_classes: DeviceClasses, seed: int) -> None:
        """Prepare tables of the classes.

        Args:
            device_classes: Classes of devices.
            seed: Seed of the run.
        """
        self.device_classes = device_classes
        self.seed = seed
        shares = np.cumsum([device.share for device in device_classes])
        self._cumulative_shares: Floats = shares / shares[-1]
        numbers = [item.name for item in fields(Device) if item.name not in ("name", "present")]
        self._table = {
            name: np.array([getattr(device, name) for device in device_classes]) for name in numbers
        }
        self._present: Floats = np.array([device.present for device in device_classes])
        self.always_available = bool((self._present == 1.0).all())
        self._varies = bool(self._table["jitter"].any() or self._table["dropout"].any())
        self._last = DeviceProfiles.empty()

    def class_index(self, ids: Ints) -> Ints:
        """Return the index of each client's class ``[K]``."""
        if len(self.device_classes) == 1:
            return np.zeros(len(ids), np.int64)
        u = rng.uniform(rng.keys(self.seed, ids, 0, DEVICES[0]), 1)[:, 0]
        return np.searchsorted(self._cumulative_shares, u, side="right")

    def profiles(self, ids: Ints) -> DeviceProfiles:
        """Return the nominal profiles of these clients; those of the last cohort are cached."""
        if np.array_equal(self._last.ids, ids):
            return self._last
        index = self.class_index(ids)
        speed = self._table["speed"][index]
        spread = self._table["spread"][index]
        if spread.any():
            # The first number of this stream is the class; the second is independent of it.
            key = rng.bits(rng.keys(self.seed, ids, 0, DEVICES[0]), 2)[:, 1]
            speed = speed * np.exp(spread * rng.box_muller(*rng.uniform(key, 2).T))
        self._last = DeviceProfiles(
            ids,
            index,
            speed,
            upload_seconds_per_byte=MEGABITS_PER_BYTE / self._table["up"][index],
            download_seconds_per_byte=MEGABITS_PER_BYTE / self._table["down"][index],
            compute_watts=self._table["watts"][index],
            radio_watts=self._table["radio"][index],
        )
        return self._last

    def available(self, ids: Ints, clock: float) -> Bools:
        """Return which clients are available ``[K]``; drawn anew each hour.

        Args:
            ids: Client ids ``[K]``.
            clock: Simulated time in seconds.
        """
        if self.always_available:
            return np.ones(len(ids), bool)
        hour = int(clock // SECONDS_PER_HOUR)
        u = rng.uniform(rng.keys(self.seed, ids, hour, DEVICES[1]), 1)[:, 0]
        return np.asarray(u < self._present[self.class_index(ids), hour % HOURS_PER_DAY])

    def round_durations(
        self, ids: Ints, round: int, samples: Floats, up: Floats, down: Floats
    ) -> RoundDurations:
        """Simulate one round of these clients.

        Args:
            ids: Client ids ``[K]``.
            round: Round number, which seeds jitter and dropout.
            samples: Samples that each client trains on ``[K]``.
            up: Bytes that each client uploads ``[K]``.
            down: Bytes that each client downloads ``[K]``.

        Returns:
            Seconds and joules of each client, and who is lost.
        """
        profiles = self.profiles(ids)
        index = profiles.class_index
        training = samples / profiles.samples_per_second
        radio = up * profiles.upload_seconds_per_byte + down * profiles.download_seconds_per_byte
        if not self._varies:
            seconds = training + radio
            joules = training * profiles.compute_watts + radio * profiles.radio_watts
            return RoundDurations(seconds, joules, np.zeros(len(ids), bool))
        u = rng.uniform(rng.keys(self.seed, ids, round, DEVICES[2]), 4)
        jitter = rng.box_muller(u[:, 0], u[:, 1])
        training = training * np.exp(self._table["jitter"][index] * jitter)
        seconds = training + radio
        joules = training * profiles.compute_watts + radio * profiles.radio_watts
        lost = u[:, 2] < self._table["dropout"][index]
        # A client that is lost stops after a random part of its round.
        completed = np.where(lost, u[:, 3], 1.0)
        return RoundDurations(seconds * completed, joules * completed, lost)
