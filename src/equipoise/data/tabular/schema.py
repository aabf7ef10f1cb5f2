"""Decide how each column is encoded, from the statistics of all clients alone."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from equipoise.data.tabular.columns import MISSING_NUMBER_TEXTS, format_number
from equipoise.data.tabular.config import ColumnConfig, parse_names
from equipoise.data.tabular.diagnostics import Diagnostic
from equipoise.data.tabular.preprocessing import Category, Date, DroppedColumn, Encoder, Number
from equipoise.data.tabular.statistics import (
    MIN_TYPE_SHARE,
    ClientStatistics,
    ColumnStatistics,
    DateStatistics,
    merge_columns,
)

MAX_CATEGORY_NUMBERS = 10  # whole numbers with at most this many values are categories
MIN_ROWS_PER_CATEGORY_NUMBER = 10  # if each has at least this many rows on average
MIN_CATEGORY_ROWS = 5  # categories with fewer rows are merged into "(other)"
MAX_CATEGORIES = 50
MIN_IDENTIFIER_ROWS = 20  # columns with fewer rows are not taken for row numbers
MIN_EXPECTED_REPEATS = 3.0  # equal pairs that measurements of the same range would have
MIN_UNIQUE_PAIRS = 5000  # pairs of rows of which none is equal, whatever the range
MIN_SITE_RANGES = 10  # sites whose numbers must not overlap in a column of identifiers
MAX_RANGE_OVERLAP = 1.1  # of the sum of their ranges over the union; a few may be mistaken
MAX_PERSON_NAMES = 10  # a column of names with more distinct texts names people
IDENTIFIER_NAME = re.compile(
    r"(^|[_\s.-])(id|ids|pid|uid|uuid|guid|nr|no|index|key|mrn|case|record|row|rownames?|obs|serial)$"
    r"|^unnamed|^\(column",
    re.IGNORECASE,
)
CAMEL_IDENTIFIER_NAME = re.compile(r"[a-z](Id|ID|Nr|NR|No|NO|Num)$")
CODE_NAME = re.compile(
    r"(^|[_\s.-])(id|ids|pid|code|zip|zipcode|postcode|plz|person|patient|subject|school|student"
    r"|pupil|teacher|lecturer|doctor|household|family|mother|mom|father|village|commune)$|[a-z](Id|ID|Code)$",
    re.IGNORECASE,
)
"""Names of columns whose numbers stand for schools or people, and which may repeat."""
CODE_NOTE_NAME = re.compile(
    r"(^|[_\s.-])(nr|no|ward|centre|center|clinic|hospital|site|department|dept|district|county"
    r"|classroom|branch|store|account|customer|user|device|machine|sensor)$",
    re.IGNORECASE,
)
"""Further names of codes, of which measurements may have some too: they are named in a note."""
PERSON_NAME = re.compile(
    r"(first|last|given|middle|full|maiden|patient|person|family)[_\s.-]?name|^name$"
    r"|surname|forename|vorname|nachname|pr[eé]nom|apellido|cognome",
    re.IGNORECASE,
)

CODE_REASON = (
    "its codes of people or places repeat and have no order (--categories keeps the 50 most "
    "frequent, --numbers takes them as a measurement)"
)


def infer_schema(
    messages: Sequence[ClientStatistics], config: ColumnConfig
) -> tuple[list[Encoder], list[DroppedColumn], list[Diagnostic]]:
    """Decide how each input column is encoded, or that it is dropped.

    Args:
        messages: Statistics of all clients, with the same columns in the same order.
        config: Options of columns.

    Returns:
        Encoders, dropped columns, and diagnostics.
    """
    encoders: list[Encoder] = []
    dropped: list[DroppedColumn] = []
    diagnostics: list[Diagnostic] = []
    for index in range(len(messages[0].columns)):
        column, about_column = infer_column(messages, index, config)
        diagnostics += about_column
        if isinstance(column, DroppedColumn):
            dropped.append(column)
        else:
            encoders.append(column)
    if config.missing == "refuse":
        message = "has missing values, which --missing refuse forbids"
        diagnostics += [
            Diagnostic(message, True, column=encoder.name)
            for encoder in encoders
            if encoder.marks_missing
        ]
    if not encoders:
        diagnostics.append(Diagnostic("no column is left to predict from", True))
    return encoders, dropped, diagnostics


def infer_column(
    messages: Sequence[ClientStatistics], index: int, config: ColumnConfig
) -> tuple[Encoder | DroppedColumn, list[Diagnostic]]:
    """Decide how one column is encoded.

    Args:
        messages: Statistics of all clients.
        index: The place of the column in them.
        config: Options of columns.

    Returns:
        The encoder, or why the column is dropped; and diagnostics.
    """
    column = merge_columns([message.columns[index] for message in messages])
    if column.num_rows == column.num_missing:
        return DroppedColumn(column.name, "it is empty"), []
    if column.name in parse_names(config.categories):
        return _category(column), []
    num_invalid = _num_invalid(column)
    is_numeric = column.numbers.count >= MIN_TYPE_SHARE * (column.numbers.count + num_invalid)
    if is_numeric or column.name in parse_names(config.numbers):
        encoder = _encode_number(column, num_invalid, config)
        notes = _report_invalid_numbers(messages, index)
        if isinstance(encoder, Number) and column.name not in parse_names(config.numbers):
            notes += _note_code(column)
        return encoder, notes
    date, diagnostics = _date(column)
    if date or diagnostics:
        return date or DroppedColumn(column.name, "its dates are ambiguous"), diagnostics
    return _encode_text(column), []


def _encode_number(
    column: ColumnStatistics, num_invalid: int, config: ColumnConfig
) -> Encoder | DroppedColumn:
    """Encode a column of numbers; few whole numbers are categories."""
    if not column.numbers.m2 > 0:
        return DroppedColumn(column.name, "it has one value only")
    if column.name not in parse_names(config.numbers):
        if _is_identifier(column):
            return DroppedColumn(column.name, "it numbers rows or people (--numbers keeps it)")
        if column.all_integers and _is_code(column, len(column.histogram)):
            return DroppedColumn(column.name, CODE_REASON)
        if not num_invalid and _has_few_integers(column):
            return _category(column)
    marks_missing = column.num_missing + column.num_text > 0
    if config.standardise == "none":
        return Number(column.name, column.median, 0.0, 1.0, marks_missing)
    mean = column.numbers.mean
    return Number(column.name, column.median, mean, column.numbers.std, marks_missing)


def _has_few_integers(column: ColumnStatistics) -> bool:
    """Whether numbers look like codes of categories."""
    if not column.all_integers or not column.histogram_is_exact:
        return False
    num_values = len(column.histogram)
    if num_values == 2:
        return True
    min_rows = MIN_ROWS_PER_CATEGORY_NUMBER * num_values
    return num_values <= MAX_CATEGORY_NUMBERS and column.numbers.count >= min_rows


def _is_identifier(column: ColumnStatistics) -> bool:
    """Whether numbers look like row numbers or identifiers of people, in any order of the rows.

    These are whole numbers that never repeat at a client, although measurements of the same range
    would, by the birthday paradox: of P pairs of rows, P / range are equal on average. Where the
    range is wide, thousands of pairs without an equal one say the same. Numbers of families may
    repeat; they are known by ranges of sites that do not overlap.
    """
    count = column.numbers.count
    if not column.all_integers or count < MIN_IDENTIFIER_ROWS:
        return False
    num_pairs = column.num_pairs
    if column.histogram_is_exact and len(column.histogram) == count:  # unique in the federation
        num_pairs = count * (count - 1) // 2
    if column.num_unique == count:
        num_values = column.histogram[-1][0] - column.histogram[0][0] + 1
        if num_pairs >= min(MIN_EXPECTED_REPEATS * num_values, MIN_UNIQUE_PAIRS):
            return True
    if _is_numbered_by_site(column):
        return True
    name = column.name
    has_name = any(n.search(name) for n in (IDENTIFIER_NAME, CAMEL_IDENTIFIER_NAME, CODE_NAME))
    return has_name and column.num_unique >= MIN_TYPE_SHARE * column.numbers.count


def _is_numbered_by_site(column: ColumnStatistics) -> bool:
    """Whether many sites have several numbers each, and each a range of its own.

    Measurements of sites overlap: the sum of their ranges is a multiple of the union.
    """
    if len(column.ranges) < MIN_SITE_RANGES or column.num_unique <= MAX_CATEGORIES:
        return False
    union = 0.0
    end = -math.inf
    for low, high in sorted(column.ranges):
        union += max(0.0, high - max(low, end))
        end = max(end, high)
    return sum(high - low for low, high in column.ranges) <= MAX_RANGE_OVERLAP * union


def _is_code(column: ColumnStatistics, num_values: int) -> bool:
    """Whether values look like numbers of schools or people, which repeat."""
    return num_values > MAX_CATEGORIES and CODE_NAME.search(column.name) is not None


def _note_code(column: ColumnStatistics) -> list[Diagnostic]:
    """Report whole numbers that are an input, though their name is that of a code."""
    names = (CAMEL_IDENTIFIER_NAME, CODE_NAME, CODE_NOTE_NAME)
    if not column.all_integers or not any(name.search(column.name) for name in names):
        return []
    message = (
        "its whole numbers are an input with an order, but its name is that of a code: "
        f"--ignore-columns {column.name} leaves it out, --categories {column.name} makes "
        f"categories, --numbers {column.name} confirms it"
    )
    return [Diagnostic(message, column=column.name)]


def _category(column: ColumnStatistics) -> Encoder | DroppedColumn:
    """Encode a column of categories; rare ones are merged."""
    if not column.histogram_is_exact:
        return DroppedColumn(column.name, "it has too many different numbers for a category")
    counts = {format_number(value): count for value, count in column.histogram}
    counts |= dict(column.text_counts)
    if len(counts) == 1:
        return DroppedColumn(column.name, "it has one value only")
    by_count = sorted(counts, key=lambda value: -counts[value])
    frequent = set(counts)
    if len(counts) > 2:
        most_frequent = by_count[:MAX_CATEGORIES]
        frequent = {value for value in most_frequent if counts[value] >= MIN_CATEGORY_ROWS}
    if not frequent:
        return DroppedColumn(column.name, "each of its texts is rare")
    values = tuple(value for value in counts if value in frequent)
    has_other = len(frequent) < len(counts) or column.num_suppressed > 0
    return Category(column.name, values, by_count[0], has_other, column.num_missing > 0)


def _encode_text(column: ColumnStatistics) -> Encoder | DroppedColumn:
    """Encode texts as categories, unless most rows have their own text."""
    num_texts = len(column.text_counts)
    if PERSON_NAME.search(column.name) and (column.num_suppressed or num_texts > MAX_PERSON_NAMES):
        return DroppedColumn(column.name, "it names people (--categories keeps it)")
    if 2 * column.num_suppressed <= column.num_text:
        if _is_code(column, num_texts):
            return DroppedColumn(column.name, CODE_REASON)
        return _category(column)
    if 2 * column.num_multiword > column.num_text:
        return DroppedColumn(column.name, "it is free text")
    return DroppedColumn(column.name, "nearly every row has its own text: it names rows or people")


def _date(column: ColumnStatistics) -> tuple[Date | None, list[Diagnostic]]:
    """Encode a column of dates; None if it holds no dates."""
    min_count = MIN_TYPE_SHARE * (column.numbers.count + column.num_text)
    candidates = [date for date in column.dates if date.days.count >= min_count]
    if not candidates:
        return None, []
    best = max(candidates, key=lambda date: date.days.count)
    formats = {date.format for date in candidates if date.days.count == best.days.count}
    if {"day/month/year", "month/day/year"} <= formats:
        message = (
            "no date tells whether the day or the month comes first: write 2013-12-31, "
            "or leave the column out"
        )
        option = f"--ignore-columns {column.name}"
        return None, [Diagnostic(message, True, column=column.name, option=option)]
    return _date_encoder(column, best), []


def _date_encoder(column: ColumnStatistics, date: DateStatistics) -> Date:
    """Encode dates of one format."""
    mean = date.days.mean
    scale = date.days.std if date.days.m2 > 0 else 1.0
    marks_missing = date.days.count < column.num_rows
    return Date(column.name, date.format, date.has_time, mean, mean, scale, marks_missing)


def _num_invalid(column: ColumnStatistics) -> int:
    """Count texts that do not mean a missing number."""
    num_missing = sum(
        count for text, count in column.text_counts if text.lower() in MISSING_NUMBER_TEXTS
    )
    return column.num_text - num_missing


def _report_invalid_numbers(messages: Sequence[ClientStatistics], index: int) -> list[Diagnostic]:
    """Report non-numeric cells in numeric columns, per client."""
    diagnostics = []
    for message in messages:
        column = message.columns[index]
        num_invalid = _num_invalid(column)
        if not num_invalid:
            continue
        examples = ", ".join(repr(text) for text, _ in column.text_counts[:3]) or "texts"
        is_problem = 2 * num_invalid > column.num_rows - column.num_missing
        outcome = "it holds numbers elsewhere" if is_problem else "taken as missing"
        option = f"--ignore-columns {column.name}" if is_problem else ""
        count = (
            "one cell is no number" if num_invalid == 1 else f"{num_invalid} cells are no numbers"
        )
        text = f"{count} ({examples}): {outcome}"
        diagnostics.append(Diagnostic(text, is_problem, message.client, column.name, option))
    return diagnostics
