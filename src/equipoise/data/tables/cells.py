"""Cells as they were written: each is a number, a text, or missing; whatever a column means is decided later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import Ints

Floats = NDArray[np.float64]
EMPTY = frozenset(
    {"", "na", "n/a", "#n/a", "nan", "null", "?"}
)  # a missing value in any column, in small letters
NO_NUMBER = EMPTY | {"-", "--", ".", "none", "missing", "unknown"}  # a missing value among numbers
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
DOTTED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")


@dataclass(frozen=True)
class Column:
    """``number[n]`` is NaN where a cell is no number; ``code[n]`` is the place of its text in ``texts``, else -1."""

    number: Floats
    code: Ints
    texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.number) & (self.code < 0)

    def take(self, rows: Any) -> Column:
        return Column(self.number[rows], self.code[rows], self.texts)

    def without(self, texts: frozenset[str]) -> Column:
        """These texts (in small letters) as missing values."""
        gone = np.array(
            [*(text.lower() in texts for text in self.texts), True]
        )  # the last is what -1 points to
        return Column(self.number, np.where(gone[self.code], -1, self.code), self.texts)

    @cached_property
    def labels(self) -> tuple[Ints, tuple[str, ...]]:
        """Codes (-1 where missing) into the different cells as texts: numbers first, in order, then texts in order."""
        read = ~np.isnan(self.number)
        values, place = np.unique(self.number[read], return_inverse=True)
        used = np.unique(self.code[self.code >= 0])
        used = used[np.argsort([self.texts[i] for i in used])] if len(used) else used
        at = np.full(len(self.texts) + 1, -1, np.int64)
        at[used] = len(values) + np.arange(len(used))
        codes = at[self.code]
        codes[read] = place
        return codes, (*map(spelled, values.tolist()), *(self.texts[i] for i in used))


def spelled(number: float) -> str:
    """A number as people write it: 3, not 3.0."""
    return f"{number:.15g}"


def of_texts(cells: Sequence[str], comma_file: bool = False) -> Column:
    """Cells of a file: numbers where they read as such, in the decimal mark of this column."""
    code, texts = _coded(cells)
    number = np.array(read_numbers(texts, comma_file), np.float64)[code] if texts else np.zeros(0)
    return Column(number, np.where(np.isnan(number), code, -1), texts).without(EMPTY)


def of_names(cells: Sequence[str]) -> Column:
    """Names of clients: ``007`` and ``NA`` are names too."""
    code, texts = _coded(cells)
    return Column(np.full(len(cells), np.nan), code, texts).without(frozenset({""}))


def _coded(cells: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """The different texts without blanks around them, and the place of each cell's."""
    written: dict[str, int] = {}
    code = np.fromiter(
        (written.setdefault(cell, len(written)) for cell in cells), np.int64, len(cells)
    )
    meant: dict[str, int] = {}
    place = [meant.setdefault(_bare(text), len(meant)) for text in written]
    return np.array(place, np.int64)[code], tuple(meant)


def _bare(text: str) -> str:
    text = text.strip()
    return (
        text.lower() if text in ("True", "TRUE", "False", "FALSE") else text
    )  # programs differ in this alone


def of_values(values: Any, where: str) -> Column:
    """A column of a pandas table, of Arrow, or of plain Python values."""
    array = _array(values)
    if array.ndim != 1:
        raise TypeError(f"{where} has {array.ndim} dimensions: a column has one")
    if array.dtype.kind == "M":  # times
        seconds = array.astype("datetime64[s]")
        found, code = np.unique(seconds, return_inverse=True)
        gone = np.isnat(found)
        texts = tuple(np.datetime_as_string(found).tolist())
        return Column(np.full(len(array), np.nan), np.where(gone[code], -1, code), texts)
    if array.dtype.kind == "b":
        return Column(np.full(len(array), np.nan), array.astype(np.int64), ("false", "true"))
    if array.dtype.kind in "iuf":
        number = array.astype(np.float64)
        return Column(np.where(np.isfinite(number), number, np.nan), np.full(len(array), -1))
    return _of_objects(array.tolist())


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if any(value is None or isinstance(value, str) for value in values):
        return np.array(values, object)
    return np.array(values)


def _of_objects(values: list[Any]) -> Column:
    """Mixed values: texts are read like those of a file."""
    number, texts = np.full(len(values), np.nan), [""] * len(values)
    for row, value in enumerate(values):
        if isinstance(value, str | bool | np.bool_):
            texts[row] = str(value)
        elif (
            value is not None and value == value
        ):  # missing values of pandas do not equal themselves
            try:
                number[row] = float(value)  # also decimal numbers
            except (TypeError, ValueError):
                texts[row] = str(value)
    column = of_texts(texts)
    return Column(np.where(np.isfinite(number), number, column.number), column.code, column.texts)


def read_numbers(texts: Sequence[str], comma_file: bool) -> list[float]:
    """Numbers where texts read as such, NaN elsewhere; ``comma_file``: commas do not separate cells in this file."""
    with_comma = [text for text in texts if COMMA.fullmatch(text)]
    thousands = all(THOUSANDS.fullmatch(text) for text in with_comma)
    comma = bool(with_comma) and (comma_file or not thousands)
    return [_number(text, comma) for text in texts]


def _number(text: str, comma: bool) -> float:
    if comma:
        if COMMA.fullmatch(text) or DOTTED_THOUSANDS.fullmatch(text):
            return float(text.replace(".", "").replace(",", "."))
    elif THOUSANDS.fullmatch(text):
        return float(text.replace(",", ""))
    value = float(text) if PLAIN.fullmatch(text) else np.nan
    return value if np.isfinite(value) else np.nan


def joined(columns: Sequence[Column]) -> Column:
    """Cells of several columns, one after the other."""
    places: dict[str, int] = {}
    codes = []
    for column in columns:
        at = np.array(
            [*(places.setdefault(text, len(places)) for text in column.texts), -1], np.int64
        )
        codes.append(at[column.code])
    return Column(
        np.concatenate([column.number for column in columns]), np.concatenate(codes), tuple(places)
    )
