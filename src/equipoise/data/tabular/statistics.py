"""Statistics of columns that clients send instead of rows: counts, sums and histograms.

The merged statistics of all clients equal those of all rows together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from equipoise.data.tabular.columns import Column
from equipoise.data.tabular.dates import FORMATS, Floats
from equipoise.utils.errors import UsageError
from equipoise.utils.record import Record

T = TypeVar("T", str, float)
Count = Annotated[int, Meta(ge=0)]

MIN_TYPE_SHARE = 0.9  # share of values that makes a column one of numbers, or of dates
HISTOGRAM_DIGITS = 3  # significant digits of the bins of a histogram
MAX_MAGNITUDE = 1e100  # of a number in a table; sums of squares of more would overflow
MAX_COUNTED_TEXTS = 1000  # distinct texts of a column that a client counts one by one
EXACT_POWERS = np.array([float(10**k) for k in range(23)])  # powers of ten that are exact floats
ALWAYS_COUNTED_TEXTS = 10  # this few distinct texts are counted even if most rows have their own


class Moments(Record, frozen=True):
    """Count, mean and sum of squared deviations from the mean (the stable form of sums).

    Attributes:
        count: The number of values.
        mean: Their mean.
        m2: The sum of their squared deviations from the mean.
    """

    count: Count = 0
    mean: float = 0.0
    m2: float = 0.0

    @property
    def std(self) -> float:
        """The standard deviation of the population."""
        return float(np.sqrt(self.m2 / self.count)) if self.count else 0.0

    def __add__(self, other: Moments) -> Moments:
        """Merge with the moments of other values: Chan, Golub and LeVeque (1983), eq. 2.1."""
        count = self.count + other.count
        if not count:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        m2 = self.m2 + other.m2 + delta**2 * self.count * other.count / count
        return Moments(count, mean, m2)


class DateStatistics(Record, frozen=True):
    """The texts of a column that are dates of one format.

    Attributes:
        format: One of `dates.FORMATS`.
        days: Moments of the days since 1970.
        has_time: Whether any date has a time of day.
    """

    format: str
    days: Moments
    has_time: bool


class ColumnStatistics(Record, frozen=True):
    """Statistics of one column of one client, or of several clients together.

    Attributes:
        name: The column.
        num_rows: The number of rows.
        num_missing: Cells that are missing.
        numbers: Moments of the cells that are numbers.
        all_integers: Whether all numbers are integers.
        histogram_is_exact: Whether rounding to the bins of the histogram changed no number.
        num_unique: Distinct numbers, summed over clients.
        num_pairs: Pairs of numbers of one client, summed over clients: so many chances to be equal.
        ranges: Lowest and highest number of each client after rounding to the bins, if they differ.
        histogram: Pairs (number, count) after rounding to three significant digits.
        text_counts: Pairs (text, count); empty where texts are suppressed.
        num_text: Cells that are texts.
        num_suppressed: Cells whose texts are not sent, because most rows have their own: names,
            identifiers, remarks.
        num_multiword: Cells that are texts of several words.
        dates: Statistics for each date format that some text has.
    """

    name: str
    num_rows: Count
    num_missing: Count
    numbers: Moments
    all_integers: bool
    histogram_is_exact: bool
    num_unique: Count
    num_pairs: Count
    ranges: tuple[tuple[float, float], ...]
    histogram: tuple[tuple[float, Count], ...]
    text_counts: tuple[tuple[str, Count], ...]
    num_text: Count
    num_suppressed: Count
    num_multiword: Count
    dates: tuple[DateStatistics, ...]

    def __add__(self, other: ColumnStatistics) -> ColumnStatistics:
        """Merge with the statistics of the same column of other rows."""
        dates = {date.format: date for date in self.dates}
        for date in other.dates:
            mine = dates.get(date.format, DateStatistics(date.format, Moments(), False))
            has_time = mine.has_time or date.has_time
            dates[date.format] = DateStatistics(date.format, mine.days + date.days, has_time)
        return ColumnStatistics(
            name=self.name,
            num_rows=self.num_rows + other.num_rows,
            num_missing=self.num_missing + other.num_missing,
            numbers=self.numbers + other.numbers,
            all_integers=self.all_integers and other.all_integers,
            histogram_is_exact=self.histogram_is_exact and other.histogram_is_exact,
            num_unique=self.num_unique + other.num_unique,
            num_pairs=self.num_pairs + other.num_pairs,
            ranges=self.ranges + other.ranges,
            histogram=_add_counts(self.histogram, other.histogram),
            text_counts=_add_counts(self.text_counts, other.text_counts),
            num_text=self.num_text + other.num_text,
            num_suppressed=self.num_suppressed + other.num_suppressed,
            num_multiword=self.num_multiword + other.num_multiword,
            dates=tuple(dates[name] for name in FORMATS if name in dates),
        )

    @property
    def median(self) -> float:
        """The median of the histogram, at most one standard deviation away from the mean."""
        values = np.array([value for value, _ in self.histogram])
        counts = np.array([count for _, count in self.histogram])
        cumulative = np.cumsum(counts)
        total = counts.sum()
        low = values[np.searchsorted(cumulative, (total - 1) // 2, "right")]
        high = values[np.searchsorted(cumulative, total // 2, "right")]
        mean = self.numbers.mean
        std = self.numbers.std
        return float(np.clip((low + high) / 2, mean - std, mean + std))


class Association(Record, frozen=True):
    """How far one column of one client decides the target; see `sanity.associations`.

    Attributes:
        column: The input column.
        label: The class that is told from all others; empty where a number is predicted.
        sums: Sums over rows or pairs of rows; those of all clients are added.
    """

    column: str
    label: str
    sums: tuple[float, ...]


class ClientStatistics(Record, frozen=True):
    """The message that a client sends before round 1.

    Attributes:
        client: The client's name.
        columns: Statistics of the inputs in its training rows.
        target: Statistics of the target (for survival: time and event) in all of its rows,
            because the names of classes must be complete.
        train_target: Moments of the target in its training rows.
        associations: How far each input column alone decides the target.
        num_classes: The number of classes among its rows; 0 if no classes are predicted.
        num_shared_rows: Test rows that equal a training row, where the client has both.
    """

    client: str
    columns: tuple[ColumnStatistics, ...]
    target: tuple[ColumnStatistics, ...]
    train_target: Moments = Moments()
    associations: tuple[Association, ...] = ()
    num_classes: Count = 0
    num_shared_rows: Count = 0


def moments(values: Floats) -> Moments:
    """Compute the moments of the values that are not NaN."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Moments()
    mean = float(values.mean())
    return Moments(len(values), mean, float(((values - mean) ** 2).sum()))


def column_statistics(
    name: str, column: Column, origin: NDArray[np.int64] | None = None
) -> ColumnStatistics:
    """Compute the statistics of one client's column.

    Args:
        name: The name of the column.
        column: The cells.
        origin: In a pool of small clients, the client of each row `[n]`: numbers are distinct if
            they are so at the client that wrote them.

    Returns:
        The statistics.

    Raises:
        UsageError: If a number is larger than `MAX_MAGNITUDE`.
    """
    is_number = ~np.isnan(column.numbers)
    numbers = column.numbers[is_number]
    largest = float(np.abs(numbers).max(initial=0.0))
    if largest > MAX_MAGNITUDE:
        raise UsageError(
            f"column '{name}' has the number {largest:g}: its square is beyond measure; correct "
            "it, or leave the column out with --ignore-columns"
        )
    values, value_counts = np.unique(numbers, return_counts=True)
    num_unique = len(values)
    num_pairs = len(numbers) * (len(numbers) - 1) // 2
    if origin is not None:
        origin = origin[is_number]
        num_unique = len(np.unique(np.stack([origin, numbers]), axis=1).T)
        sizes = np.bincount(origin)
        num_pairs = int((sizes * (sizes - 1) // 2).sum())
    bins = round_to_bins(values)
    used, text_counts = _count_codes(column)
    num_text = int(text_counts.sum())
    is_counted = len(used) <= ALWAYS_COUNTED_TEXTS or (
        len(used) <= MAX_COUNTED_TEXTS and 2 * len(used) <= num_text
    )
    counted_texts = column.texts.take(used) if is_counted else []
    num_multiword = int(text_counts[column.texts.is_multiword[used]].sum()) if len(used) else 0
    return ColumnStatistics(
        name=name,
        num_rows=len(column),
        num_missing=int(column.missing.sum()),
        numbers=moments(numbers),
        all_integers=bool((values == np.round(values)).all()),
        histogram_is_exact=bool((values == bins).all()),
        num_unique=num_unique,
        num_pairs=num_pairs,
        ranges=_ranges(numbers, origin),
        histogram=_histogram(bins, value_counts),
        text_counts=tuple(sorted(zip(counted_texts, text_counts.tolist(), strict=False))),
        num_text=num_text,
        num_suppressed=0 if is_counted else num_text,
        num_multiword=num_multiword,
        dates=_date_statistics(column) if len(used) else (),
    )


def merge_columns(columns: Sequence[ColumnStatistics]) -> ColumnStatistics:
    """Merge the statistics of one column of several clients."""
    return reduce(lambda left, right: left + right, columns)


def round_to_bins(values: Floats) -> Floats:
    """Round to three significant digits, to the same numbers as `float(f"{value:.2e}")`.

    Args:
        values: Finite numbers `[n]`.

    Returns:
        The centres of their bins `[n]`; the bins do not depend on the data.
    """
    magnitude = np.abs(values)
    exponent = np.zeros(len(values))
    np.log10(magnitude, out=exponent, where=magnitude > 0)
    power = np.floor(exponent).astype(np.int64) - (HISTOGRAM_DIGITS - 1)
    limit = len(EXACT_POWERS) - 1
    divisor = EXACT_POWERS[np.clip(power, 0, limit)]
    factor = EXACT_POWERS[np.clip(-power, 0, limit)]  # one of the two is 1
    scaled = magnitude * factor / divisor
    rounded: Floats = np.copysign(np.rint(scaled) / factor * divisor, values)
    # Powers of ten are exact up to 1e22, so only ties are uncertain, and the edges of a decade.
    is_certain = (np.abs(power) <= limit) & (np.abs(scaled % 1 - 0.5) > 1e-6)
    is_certain &= (scaled >= 10 ** (HISTOGRAM_DIGITS - 1)) & (scaled < 10**HISTOGRAM_DIGITS)
    rounded[~is_certain] = [
        float(f"{value:.{HISTOGRAM_DIGITS - 1}e}") for value in values[~is_certain].tolist()
    ]
    return rounded


def _ranges(numbers: Floats, origin: NDArray[np.int64] | None) -> tuple[tuple[float, float], ...]:
    """Return the lowest and highest number of each client of a pool, if they differ."""
    if not len(numbers):
        return ()
    if origin is None:
        origin = np.zeros(len(numbers), np.int64)
    order = np.lexsort((numbers, origin))
    is_first = np.append(True, np.diff(origin[order]) != 0)
    is_last = np.append(is_first[1:], True)
    low, high = (round_to_bins(numbers[order][ends]) for ends in (is_first, is_last))
    differ = low < high
    return tuple(zip(low[differ].tolist(), high[differ].tolist(), strict=True))


def _histogram(bins: Floats, counts: NDArray[np.int64]) -> tuple[tuple[float, int], ...]:
    """Sum the counts of equal bins, which are in ascending order."""
    if not len(bins):
        return ()
    starts = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
    totals = np.add.reduceat(counts, starts)
    return tuple(zip(bins[starts].tolist(), totals.tolist(), strict=True))


def _count_codes(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the codes of texts that occur, and how often each does."""
    codes = column.codes[column.codes >= 0]
    if len(column.texts) > len(column):  # a small client of a large file
        distinct, counts = np.unique(codes, return_counts=True)
        return distinct.astype(np.int64), counts
    counts = np.bincount(codes, minlength=len(column.texts))
    used = np.flatnonzero(counts)
    return used, counts[used]


def _date_statistics(column: Column) -> tuple[DateStatistics, ...]:
    """Compute statistics of the cells that are dates, for each format."""
    statistics = []
    for date_format in FORMATS:
        if np.isnan(column.texts.days(date_format)).all():
            continue
        days = column.days(date_format)
        days = days[~np.isnan(days)]
        if len(days):
            has_time = bool((days % 1 != 0).any())
            statistics.append(DateStatistics(date_format, moments(days), has_time))
    return tuple(statistics)


def _add_counts(
    left: tuple[tuple[T, int], ...], right: tuple[tuple[T, int], ...]
) -> tuple[tuple[T, int], ...]:
    """Add the counts of two sorted lists of pairs (value, count)."""
    counts: Counter[T] = Counter(dict(left))
    counts.update(dict(right))
    return tuple(sorted(counts.items()))
