"""Parse dates and times in texts, and encode them as cyclic features."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tabular._arrow import ArrowArray, pc

Floats = NDArray[np.float64]

SECONDS_PER_DAY = 86_400
DAYS_PER_YEAR = 365.2425
FIRST_MONDAY = 4  # days from Thursday, 1 January 1970, to the first Monday

_YEAR_AND_TIME = (
    r"(?P<year>[0-9]{4})"
    r"(?:[ T](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?$"
)
PATTERNS = {
    "year-month-day": (
        r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
        r"(?:[ T](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?)?$"
    ),
    "day/month/year": (
        r"^(?P<day>[0-9]{1,2})(?P<sep1>[./-])(?P<month>[0-9]{1,2})(?P<sep2>[./-])" + _YEAR_AND_TIME
    ),
    "month/day/year": (
        r"^(?P<month>[0-9]{1,2})(?P<sep1>[/-])(?P<day>[0-9]{1,2})(?P<sep2>[/-])" + _YEAR_AND_TIME
    ),
    "hour:minute": r"^(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?$",
}
"""RE2 patterns of the date formats.

RE2 has no back references, hence two groups for the separator. 3.4.2013 is the third of April
everywhere, so a dot never separates a month that comes first.
"""
FORMATS = tuple(PATTERNS)
OTHER_ISO = r"^[0-9]{4}-?(W[0-9]{2}|[0-9]{2}-?[0-9]{2})"
"""The start of rarer forms of ISO 8601: fractions of a second, time zones, weeks, no hyphens."""


def parse_days(texts: ArrowArray, date_format: str) -> Floats:
    """Parse texts as dates of one format.

    Args:
        texts: Arrow array of T strings without nulls.
        date_format: One of `FORMATS`.

    Returns:
        Days since 1970 (since midnight for `hour:minute`) `[T + 1]`, NaN where a text is not a
        valid date. The last entry is NaN, so that code -1 (no text) can be used as an index.
    """
    days = np.full(len(texts) + 1, np.nan)
    if not len(texts):
        return days
    pattern = PATTERNS[date_format]
    matches = pc.match_substring_regex(texts, pattern)
    is_match = matches.to_numpy(zero_copy_only=False)
    if is_match.any():
        fields = pc.extract_regex(texts.filter(matches), pattern)
        days[:-1][is_match] = _days_of_fields(fields, date_format)
    if date_format == "year-month-day":
        is_other = pc.match_substring_regex(texts, OTHER_ISO).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(is_other & ~is_match):
            days[place] = _parse_iso(texts[int(place)].as_py())
    return days


def _days_of_fields(matched: ArrowArray, date_format: str) -> Floats:
    """Convert the groups of a pattern to days; NaN where they are out of range."""
    fields = dict(zip((field.name for field in matched.type), matched.flatten(), strict=True))
    hour = _integers(fields["hour"])
    minute = _integers(fields["minute"])
    second = _integers(fields["second"])
    seconds = hour * 3600 + minute * 60 + second
    valid = (minute <= 59) & (second <= 59)
    if date_format == "hour:minute":
        return np.where(valid & (hour <= 24), seconds / SECONDS_PER_DAY, np.nan)
    year = _integers(fields["year"])
    month = _integers(fields["month"])
    day = _integers(fields["day"])
    valid &= (hour <= 23) & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first_day = months.astype("datetime64[D]").astype(np.int64)
    next_month = (months + 1).astype("datetime64[D]").astype(np.int64)
    valid &= day <= next_month - first_day
    if "sep1" in fields:
        same_separator = pc.equal(fields["sep1"], fields["sep2"])
        valid &= same_separator.to_numpy(zero_copy_only=False)
    seconds += (first_day + day - 1) * SECONDS_PER_DAY
    return np.where(valid, seconds / SECONDS_PER_DAY, np.nan)


def _integers(texts: ArrowArray) -> NDArray[np.int64]:
    """Convert texts of digits; an empty text is 0."""
    filled = pc.if_else(pc.equal(texts, ""), "0", texts)
    integers: NDArray[np.int64] = pc.cast(filled, "int64").to_numpy(zero_copy_only=False)
    return integers


def _parse_iso(text: str) -> float:
    """Parse any form of ISO 8601 that Python knows."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() / SECONDS_PER_DAY
    except (ValueError, OverflowError):
        return float("nan")


def cyclic_feature_names(date_format: str, has_time: bool) -> tuple[str, ...]:
    """Return the names of the columns of `cyclic_features`."""
    periods = ["year", "week"] if date_format != "hour:minute" else []
    if has_time or not periods:
        periods.append("day")
    return tuple(f"{period} {wave}" for period in periods for wave in ("sine", "cosine"))


def cyclic_features(days: Floats, date_format: str, has_time: bool) -> Floats:
    """Encode the place of moments in their year, week and day on circles.

    Args:
        days: Days since 1970 `[n]`.
        date_format: One of `FORMATS`.
        has_time: Whether the time of day is encoded.

    Returns:
        Sine and cosine of each period `[n, 2 * periods]`, so that 23:00 is close to 01:00.
    """
    turns = {
        "year": days / DAYS_PER_YEAR,
        "week": (days - FIRST_MONDAY) / 7,
        "day": days,
    }
    waves = {"sine": np.sin, "cosine": np.cos}
    names = (name.split() for name in cyclic_feature_names(date_format, has_time))
    return np.stack([waves[wave](2 * np.pi * turns[period]) for period, wave in names], axis=1)
