"""Options of simulated time, and parsing of durations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from equipoise.clock.devices import DeviceClasses, load_device_classes
from equipoise.config.schema import Options, option
from equipoise.utils.errors import UsageError

MODES = ("sync", "semi", "async")
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class ClockConfig(Options):
    """Devices of the clients, and how long the server waits for them."""

    devices: str = option(
        "default",
        "devices of the clients: default (all equal), phones, silos, or a .csv file of classes of "
        "devices",
    )
    mode: str = option(
        "sync",
        "when the server goes on: sync (with the whole cohort), semi (at the deadline; late "
        "replies count later) or async (whenever a buffer of replies is full)",
        choices=MODES,
    )
    deadline: str = option(
        "", "simulated time that a round waits for replies, such as 30s or 2m; empty for no limit"
    )
    adapt_epochs: bool = option(
        False,
        "clients train no more epochs than their device can before the deadline, and at least one",
    )
    overselection: float = option(
        1.0,
        "sync: ask this factor more clients than are needed; the round ends with the needed "
        "replies",
        low=1,
    )
    buffer: int = option(
        0, "async: replies that make a new model; 0 for a tenth of those in progress", low=0
    )
    staleness: float = option(
        0.5, "a reply that is s models late counts (1 + s) to the power of minus this", low=0
    )
    until: str = option(
        "", "simulated time after which the run ends, such as 90m, 2h or 3d; empty for no limit"
    )

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UsageError: If options contradict each other; all problems are in one message.
        """
        super().__post_init__()
        problems: list[str] = []
        for name in ("deadline", "until"):
            try:
                parse_duration(name, getattr(self, name))
            except UsageError as error:
                problems.append(str(error))
        if self.mode == "semi" and not self.deadline:
            problems.append("mode semi ends its rounds by the clock: set deadline")
        if self.mode == "async" and self.deadline:
            problems.append(
                "mode async ends its rounds when the buffer is full: leave deadline empty"
            )
        if self.adapt_epochs and not self.deadline:
            problems.append("adapt_epochs fits epochs to a deadline: set deadline")
        if self.mode != "async" and self.buffer:
            problems.append(f"buffer is for mode async, not {self.mode}: leave it at 0")
        if self.mode != "sync" and self.overselection != 1:
            problems.append(
                f"overselection is for mode sync, not {self.mode}: in {self.mode} late replies are "
                "not lost"
            )
        try:
            _ = self.device_classes
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise UsageError("; ".join(problems))

    @cached_property
    def device_classes(self) -> DeviceClasses:
        """The classes of devices that ``devices`` names."""
        return load_device_classes(self.devices)

    @property
    def deadline_seconds(self) -> float:
        """Seconds that a round may last; infinity without a deadline."""
        return parse_duration("deadline", self.deadline)

    @property
    def until_seconds(self) -> float:
        """Simulated seconds after which the run ends; infinity without a limit."""
        return parse_duration("until", self.until)

    @property
    def needs_simulated_clock(self) -> bool:
        """Whether an option is set that a real deployment does not have.

        A deployment has the modes sync and async with their buffer and staleness only.
        """
        if self.mode == "semi":
            return True
        real = ClockConfig(mode=self.mode, buffer=self.buffer, staleness=self.staleness)
        return self != real

    @classmethod
    def requested_in(cls, config: Mapping[str, Any]) -> bool:
        """Tell whether a run asked for simulated time.

        Args:
            config: Options of the run by name, as `config.json` holds them.

        Returns:
            True if any option of this class differs from its default.
        """
        return any(config.get(field.name, field.default) != field.default for field in fields(cls))

    @property
    def carries_stale_updates(self) -> bool:
        """Whether late replies count in a later round."""
        return self.mode != "sync"


def parse_duration(name: str, text: str) -> float:
    """Parse a duration such as ``90``, ``90s``, ``1.5m``, ``2h`` or ``1d``.

    Args:
        name: Name of the option, for the error message.
        text: The duration; empty for no limit.

    Returns:
        Seconds; infinity for an empty text.

    Raises:
        UsageError: If it is no duration above 0.
    """
    if not text:
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if not match or not float(match[1]):
        raise UsageError(f"{name} is '{text}': must be a time above 0 such as 30s, 15m, 2h or 1d")
    return float(match[1]) * SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """Format seconds in the largest unit of which there is at least one, such as ``1.5 h``."""
    unit = next((unit for unit in ("d", "h", "m") if seconds >= SECONDS[unit]), "s")
    return f"{seconds / SECONDS[unit]:.3g} {unit}"
