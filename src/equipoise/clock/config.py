"""The options of simulated time, and their refusals."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.clock.devices import Bools, DeviceClasses, Floats, load_device_classes
from equipoise.config.schema import Options, option
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

MODES = ("sync", "semi", "async")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class ClockConfig(Options):
    """Which devices clients have, and for how long the server waits for them."""

    devices: str = option(
        "default",
        "devices of the clients: default (all equal), phones, silos, or a .csv file of classes of devices",
    )
    mode: str = option(
        "sync",
        "when the server goes on: sync (with the whole cohort), semi (at the deadline; late replies count later) or "
        "async (whenever a buffer of replies is full)",
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
        "sync: ask so many times as many clients as are wanted; the round ends with the wanted replies",
        low=1,
    )
    buffer: int = option(
        0, "async: replies that make a new model; 0 for a tenth of those under way", low=0
    )
    staleness: float = option(
        0.5, "a reply that is s models late counts (1 + s) to the power of minus this", low=0
    )
    until: str = option(
        "", "simulated time after which the run ends, such as 90m, 2h or 3d; empty for no limit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong: list[str] = []
        for name in ("deadline", "until"):
            try:
                parse_duration(name, getattr(self, name))
            except UsageError as error:
                wrong.append(str(error))
        if self.mode == "semi" and not self.deadline:
            wrong.append("mode semi ends its rounds by the clock: set deadline")
        if self.mode == "async" and self.deadline:
            wrong.append("mode async ends its rounds when the buffer is full: leave deadline empty")
        if self.adapt_epochs and not self.deadline:
            wrong.append("fit_deadline fits epochs to a deadline: set deadline")
        if self.mode != "async" and self.buffer:
            wrong.append(f"buffer is for mode async, not {self.mode}: leave it at 0")
        if self.mode != "sync" and self.overselection != 1:
            wrong.append(
                f"over_select is for mode sync, not {self.mode}: in {self.mode} late replies are not lost"
            )
        try:
            _ = self.device_classes
        except UsageError as error:
            wrong.append(str(error))
        if wrong:
            raise UsageError("; ".join(wrong))

    @cached_property
    def device_classes(self) -> DeviceClasses:
        return load_device_classes(self.devices)

    @property
    def deadline_seconds(self) -> float:
        """Seconds that a round may last."""
        return parse_duration("deadline", self.deadline)

    @property
    def until_seconds(self) -> float:
        """Seconds after which the run ends."""
        return parse_duration("until", self.until)

    @property
    def needs_simulated_clock(self) -> bool:
        """Whether anything is asked for that only a simulated clock gives: all but the buffer."""
        real = (
            ClockConfig(mode=self.mode, buffer=self.buffer, staleness=self.staleness)
            if self.mode != "semi"
            else None
        )
        return self != real

    @property
    def carries_stale_updates(self) -> bool:
        """Whether late replies count later."""
        return self.mode != "sync"


def parse_duration(name: str, text: str) -> float:
    """``90``, ``90s``, ``1.5m``, ``2h`` or ``1d`` in seconds; infinity for nothing."""
    if not text:
        return math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if not found or not float(found[1]):
        raise UsageError(f"{name} is '{text}': must be a time above 0 such as 30s, 15m, 2h or 1d")
    return float(found[1]) * UNITS[found[2]]


def format_duration(time: float) -> str:
    """A time for people: in the largest unit of which there is at least one."""
    unit = next((u for u in ("d", "h", "m") if time >= UNITS[u]), "s")
    return f"{time / UNITS[unit]:.3g} {unit}"


def end_of_round(
    now: float, ids: Ints, at: Floats, lost: Bools, wanted: int, within: float = math.inf
) -> tuple[float, Bools]:
    """When the round that began ``now`` ends, and whose event has come by then.

    It ends with the reply that makes ``wanted`` of them, or after ``within`` seconds; or, when fewer than that can
    still come, with the last event of all. Of two events at one time, that of the lower client is first.

    Arguments:
        now: the clock at the start of the round.
        ids: the clients that are under way.
        at: when each of them replies, or is lost.
        lost: who is lost.
        wanted: how many replies end the round.
        within: seconds after which it ends in any case.
    """
    last = now + within
    order = np.lexsort((ids, at))
    replies = order[~lost[order]]
    if len(replies) >= wanted:
        final = replies[wanted - 1]
        come = np.zeros(len(ids), bool)
        come[order[: int(np.flatnonzero(order == final)[0]) + 1]] = True
        end = float(at[final])
    else:
        come, end = np.ones(len(ids), bool), max(now, float(at.max(initial=now)))
    if end <= last:
        return max(now, end), come
    return last, np.asarray(at <= last)
