"""What a client tells of its columns: sums and counts, no rows. Those of all, merged, are those of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np

from equipoise.data.tables.cells import Column, Floats
from equipoise.data.tables.dates import FORMS, read_days

T = TypeVar("T", str, float)
DIGITS = 3  # that numbers are rounded to before they are counted
MOST_TEXTS = 1000  # different texts of a column that a client counts one by one
ALWAYS_TOLD = 10  # so few different texts are counted even if most rows have their own


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations: the stable form of a sum and a sum of squares."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0

    def __add__(self, other: Moments) -> Moments:
        """Chan, Golub and LeVeque (1983), equation 2.1."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        return Moments(
            count, mean, self.squares + other.squares + apart**2 * self.count * other.count / count
        )


def moments(values: Floats) -> Moments:
    values = values[~np.isnan(values)]
    if not len(values):
        return Moments()
    mean = float(values.mean())
    return Moments(len(values), mean, float(((values - mean) ** 2).sum()))


@dataclass(frozen=True)
class Dates:
    """The texts of a column that read as dates, if they are written in this form."""

    form: str
    days: Moments
    timed: bool
    """Whether any has a time of day."""


@dataclass(frozen=True)
class ColumnStatistics:
    """One column of one client, or of several together."""

    name: str
    rows: int
    missing: int
    numbers: Moments
    whole: bool
    """Whether all numbers are whole."""
    exact: bool
    """Whether rounding changed no number."""
    different: int
    """Different numbers, client by client."""
    rounded: tuple[tuple[float, int], ...]
    """How often each number occurs, after rounding to three significant digits: a histogram with fixed bins."""
    texts: tuple[tuple[str, int], ...]
    """How often each text occurs; empty where they are withheld."""
    worded: int
    """Cells that are texts."""
    withheld: int
    """Cells whose texts are not told, because most rows have their own: names, numbers of patients, remarks."""
    spaced: int
    """Cells that are texts of several words."""
    dates: tuple[Dates, ...]
    ordered: bool
    """Whether numbers rise from row to row, as those that count rows do."""

    def __add__(self, other: ColumnStatistics) -> ColumnStatistics:
        dates = {date.form: date for date in self.dates}
        for date in other.dates:
            mine = dates.get(date.form, Dates(date.form, Moments(), False))
            dates[date.form] = Dates(date.form, mine.days + date.days, mine.timed or date.timed)
        return ColumnStatistics(
            name=self.name,
            rows=self.rows + other.rows,
            missing=self.missing + other.missing,
            numbers=self.numbers + other.numbers,
            whole=self.whole and other.whole,
            exact=self.exact and other.exact,
            different=self.different + other.different,
            rounded=_added(self.rounded, other.rounded),
            texts=_added(self.texts, other.texts),
            worded=self.worded + other.worded,
            withheld=self.withheld + other.withheld,
            spaced=self.spaced + other.spaced,
            dates=tuple(dates[form] for form in FORMS if form in dates),
            ordered=self.ordered and other.ordered,
        )

    @property
    def median(self) -> float:
        """From the counts of rounded numbers; a median is never further from the mean than the deviation."""
        values, counts = (
            np.array([v for v, _ in self.rounded]),
            np.array([n for _, n in self.rounded]),
        )
        upto, total = np.cumsum(counts), counts.sum()
        low, high = (
            values[np.searchsorted(upto, place, "right")]
            for place in ((total - 1) // 2, total // 2)
        )
        near = self.numbers.deviation
        return float(np.clip((low + high) / 2, self.numbers.mean - near, self.numbers.mean + near))


@dataclass(frozen=True)
class Statistics:
    """The one message that a client sends before the first round."""

    client: str
    columns: tuple[ColumnStatistics, ...]
    """Of its training rows."""
    target: tuple[ColumnStatistics, ...]
    """What is predicted (for survival: time and event), in all of its rows: names of classes must be complete."""
    trained: Moments = Moments()
    """The numbers that are predicted, in training rows."""


def column_statistics(name: str, column: Column) -> ColumnStatistics:
    numbers = column.number[~np.isnan(column.number)]
    values, counts = np.unique(_rounded(numbers), return_counts=True)
    codes, often = np.unique(column.code[column.code >= 0], return_counts=True)
    texts = [column.texts[code] for code in codes]
    worded = int(often.sum())
    told = len(texts) <= ALWAYS_TOLD or (len(texts) <= MOST_TEXTS and 2 * len(texts) <= worded)
    return ColumnStatistics(
        name=name,
        rows=len(column),
        missing=int(column.missing.sum()),
        numbers=moments(numbers),
        whole=bool((numbers == np.round(numbers)).all()),
        exact=bool((numbers == _rounded(numbers)).all()),
        different=len(np.unique(numbers)),
        rounded=tuple(zip(values.tolist(), counts.tolist(), strict=True)),
        texts=_added((), tuple(zip(texts, often.tolist(), strict=True))) if told else (),
        worded=worded,
        withheld=0 if told else worded,
        spaced=int(sum(n for text, n in zip(texts, often.tolist(), strict=True) if " " in text)),
        dates=_dates(column) if texts else (),
        ordered=bool((np.diff(numbers) > 0).all()),
    )


def merged(columns: Sequence[ColumnStatistics]) -> ColumnStatistics:
    """One column of several clients."""
    return reduce(lambda a, b: a + b, columns)


def _dates(column: Column) -> tuple[Dates, ...]:
    found = []
    for form in FORMS:
        days = read_days(column.texts, form)[column.code]
        about = moments(days)
        if about.count:
            found.append(Dates(form, about, bool((days[~np.isnan(days)] % 1 != 0).any())))
    return tuple(found)


def _rounded(numbers: Floats) -> Floats:
    """To three significant digits; the bins are the same for everybody, whatever the numbers are."""
    values, place = np.unique(numbers, return_inverse=True)
    return np.array([float(f"{value:.{DIGITS - 1}e}") for value in values.tolist()], np.float64)[
        place
    ]


def _added(a: tuple[tuple[T, int], ...], b: tuple[tuple[T, int], ...]) -> tuple[tuple[T, int], ...]:
    counts: Counter[T] = Counter(dict(a))
    counts.update(dict(b))
    return tuple(sorted(counts.items()))
