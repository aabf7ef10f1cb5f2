"""Dates and times in texts: as days since 1970, and as parts that turn in circles."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.cells import Floats

SECONDS = 86_400
DAYS_OF_YEAR = 365.2425
MONDAY = 4  # days from Thursday, 1 January 1970, to a Monday
WRITTEN = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2}))?)?")
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def _iso(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() / SECONDS


def _written(text: str, month_first: bool) -> float:
    found = WRITTEN.fullmatch(text)
    if found is None or (
        month_first and found[2] == "."
    ):  # 3.4.2013 is the third of April everywhere
        raise ValueError
    day, month = (found[3], found[1]) if month_first else (found[1], found[3])
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[4:])
    return (
        datetime(
            int(found[4]), int(month), int(day), hours, minutes, seconds, tzinfo=UTC
        ).timestamp()
        / SECONDS
    )


def _clock(text: str) -> float:
    found = CLOCK.fullmatch(text)
    if found is None:
        raise ValueError
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    if hours > 24 or minutes > 59 or seconds > 59:
        raise ValueError
    return (hours * 3600 + minutes * 60 + seconds) / SECONDS


FORMS: dict[str, Callable[[str], float]] = {
    "year-month-day": _iso,
    "day/month/year": lambda text: _written(text, month_first=False),
    "month/day/year": lambda text: _written(text, month_first=True),
    "hour:minute": _clock,
}


@lru_cache(maxsize=32)  # clients of one file share their texts
def read_days(texts: tuple[str, ...], form: str) -> Floats:
    """Days since 1970 (of a clock, since midnight); NaN where a text is no such date."""
    days = np.full(len(texts) + 1, np.nan)  # the last is for cells without a text, whose code is -1
    for place, text in enumerate(texts):
        try:
            days[place] = FORMS[form](text) if text[:1].isdigit() else np.nan
        except (ValueError, OverflowError):
            continue
    return days


def parts_of(form: str, timed: bool) -> tuple[str, ...]:
    """The names of the columns that :func:`parts` makes beside the day itself."""
    circles = ["day"] if form == "hour:minute" else ["year", "week", *(["day"] if timed else [])]
    return tuple(f"{circle} {wave}" for circle in circles for wave in ("sine", "cosine"))


def parts(days: Floats, form: str, timed: bool) -> NDArray[np.float64]:
    """Where a moment lies in its year, week and day, each on a circle: 23 o'clock is near to 1 o'clock."""
    turns = {"year": days / DAYS_OF_YEAR, "week": (days - MONDAY) / 7, "day": days}
    waves = {"sine": np.sin, "cosine": np.cos}
    named = (name.split() for name in parts_of(form, timed))
    return np.stack([waves[wave](2 * np.pi * turns[circle]) for circle, wave in named], axis=1)
