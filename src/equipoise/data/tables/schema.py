"""What each column is, decided from the counts of all clients alone: no row is needed for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.data.tables.cells import NO_NUMBER, spelled
from equipoise.data.tables.choices import ColumnChoices, listed
from equipoise.data.tables.findings import Finding
from equipoise.data.tables.preparation import Category, Date, LeftOut, Number, PreparedColumn
from equipoise.data.tables.statistics import ColumnStatistics, Dates, Statistics, merged

MOSTLY = 0.9  # share of a column's values that makes it a column of numbers, or of dates
FEW_NUMBERS = 10  # different whole numbers at most that are taken for categories
OFTEN = 10  # rows that each of them has on average at least
RARE = 5  # rows below which a category is pooled with other rare ones
MOST_CATEGORIES = 50
COUNTED = 20  # rows at least of a column that is taken for row numbers
IDENTIFIER = re.compile(
    r"(^|[_\s.-])(id|ids|uid|uuid|guid|nr|no|index|key|mrn)$|^unnamed|^\(column", re.IGNORECASE
)
CAMEL = re.compile(r"[a-z](Id|ID|Nr|No)$")


def decide_column(
    messages: Sequence[Statistics], place: int, choices: ColumnChoices
) -> tuple[PreparedColumn | LeftOut, list[Finding]]:
    """The column at this place of everybody's messages, and what is to be said about it."""
    each = [message.columns[place] for message in messages]
    about = merged(each)
    if about.rows == about.missing:
        return LeftOut(about.name, "it is empty"), []
    if about.name in listed(choices.categories):
        return _category(about), []
    words = _unreadable(about)
    if about.numbers.count >= MOSTLY * (about.numbers.count + words) or about.name in listed(
        choices.numbers
    ):
        return _number(about, words, choices), _words_among_numbers(messages, place)
    date, findings = _date(about)
    if date or findings:
        return date or LeftOut(about.name, "its dates are ambiguous"), findings
    return _text(about), []


def _number(
    about: ColumnStatistics, words: int, choices: ColumnChoices
) -> PreparedColumn | LeftOut:
    different, gone = len(about.rounded), about.missing + about.worded > 0
    forced = about.name in listed(choices.numbers)
    if not about.numbers.squares > 0:
        return LeftOut(about.name, "it has one value only")
    if not forced and _counts_rows(about):
        return LeftOut(about.name, "it numbers rows or people (--numbers keeps it)")
    few = different == 2 or (different <= FEW_NUMBERS and about.numbers.count >= OFTEN * different)
    if not forced and not words and about.whole and about.exact and few:
        return _category(about)
    scale = about.numbers.deviation
    if choices.standardise == "none":
        return Number(about.name, about.median, 0.0, 1.0, gone)
    return Number(about.name, about.median, about.numbers.mean, scale, gone)


def _counts_rows(about: ColumnStatistics) -> bool:
    if not about.whole or about.numbers.count < COUNTED:
        return False
    named = bool(IDENTIFIER.search(about.name) or CAMEL.search(about.name))
    return about.ordered or (named and about.different >= MOSTLY * about.numbers.count)


def _category(about: ColumnStatistics) -> PreparedColumn | LeftOut:
    if not about.exact:
        return LeftOut(about.name, "it has too many different numbers for a category")
    counts = {spelled(value): n for value, n in about.rounded} | dict(about.texts)
    if len(counts) == 1:
        return LeftOut(about.name, "it has one value only")
    often = sorted(counts, key=lambda value: -counts[value])[:MOST_CATEGORIES]
    kept = {value for value in often if counts[value] >= RARE} if len(counts) > 2 else set(counts)
    if not kept:
        return LeftOut(about.name, "each of its texts is rare")
    values = tuple(value for value in counts if value in kept)
    other = len(kept) < len(counts) or about.withheld > 0
    return Category(about.name, values, often[0], other, about.missing > 0)


def _text(about: ColumnStatistics) -> PreparedColumn | LeftOut:
    if 2 * about.withheld > about.worded:
        if 2 * about.spaced > about.worded:
            return LeftOut(about.name, "it is free text")
        return LeftOut(about.name, "nearly every row has its own text: it names rows or people")
    return _category(about)


def _date(about: ColumnStatistics) -> tuple[Date | None, list[Finding]]:
    there = about.numbers.count + about.worded
    found = [date for date in about.dates if date.days.count >= MOSTLY * there]
    if not found:
        return None, []
    best = max(found, key=lambda date: date.days.count)
    written = {date.form for date in found if date.days.count == best.days.count}
    if {"day/month/year", "month/day/year"} <= written:
        words = "no date tells whether the day or the month comes first: write 2013-12-31, or leave the column out"
        return None, [
            Finding(words, True, column=about.name, option=f"--ignore-columns {about.name}")
        ]
    return _of(about, best), []


def _of(about: ColumnStatistics, date: Dates) -> Date:
    scale = date.days.deviation if date.days.squares > 0 else 1.0
    gone = date.days.count < about.rows
    return Date(about.name, date.form, date.timed, date.days.mean, date.days.mean, scale, gone)


def _unreadable(about: ColumnStatistics) -> int:
    """Cells that are texts and do not mean a missing number."""
    return about.worded - sum(n for text, n in about.texts if text.lower() in NO_NUMBER)


def _words_among_numbers(messages: Sequence[Statistics], place: int) -> list[Finding]:
    """Clients that wrote texts where others wrote numbers."""
    found = []
    for message in messages:
        own = message.columns[place]
        words = _unreadable(own)
        if not words:
            continue
        shown = ", ".join(repr(text) for text, _ in own.texts[:3]) or "texts"
        most = 2 * words > own.rows - own.missing
        end = "it holds numbers elsewhere" if most else "taken as missing"
        option = f"--ignore-columns {own.name}" if most else ""
        count = f"{words} cells are no numbers" if words > 1 else "one cell is no number"
        found.append(Finding(f"{count} ({shown}): {end}", most, message.client, own.name, option))
    return found
