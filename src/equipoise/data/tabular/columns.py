"""Columns and tables of raw cells: every cell is a number, a text or missing.

What a column means (measurement, category, date) is decided later, in `schema.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.data.federated_dataset import AnyArray, Ints
from equipoise.data.tabular._arrow import ArrowArray, pa, pc
from equipoise.data.tabular.dates import Floats, parse_days

ScalarType = TypeVar("ScalarType", bound=np.generic)
RowIndex = slice | NDArray[np.integer]

MISSING_TEXTS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?", "."})
"""Texts (in lower case) that mean a missing value in any column; SAS writes a dot."""
MISSING_NUMBER_TEXTS = MISSING_TEXTS | {"-", "--", "none", "missing", "unknown"}
"""Texts that mean a missing value in a column of numbers."""

# \d is a digit of any script, like in Python's float. RE2, which Arrow uses, calls it \p{Nd}.
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_DECIMAL_COMMA = r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+"
_COMMA_THOUSANDS = r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"
_DOT_THOUSANDS = r"[+-]?\d{1,3}(\.\d{3})+"
PLAIN_NUMBER = re.compile(_PLAIN)


class DistinctTexts:
    """The distinct texts of a column.

    All clients of one file share this object. Work on a text, such as parsing a date, is done
    once per distinct text of the file, not once per cell or client.
    """

    def __init__(self, values: ArrowArray | Sequence[str] = ()) -> None:
        """Create from a sequence of strings or an Arrow array of strings without nulls."""
        self._values = values
        self._days: dict[str, Floats] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._values)

    def __getitem__(self, code: int) -> str:
        """Return the text of a code."""
        value = self._values[int(code)]
        return value if isinstance(value, str) else str(value.as_py())

    @cached_property
    def array(self) -> ArrowArray:
        """The texts as an Arrow array."""
        if isinstance(self._values, Sequence):
            return pa.array(self._values, pa.string())
        return self._values

    @cached_property
    def is_multiword(self) -> NDArray[np.bool_]:
        """Whether each text contains a space `[T]`."""
        return _flags(pc.match_substring(self.array, " "))

    def days(self, date_format: str) -> Floats:
        """Parse all texts as dates; see `parse_days`. The result `[T + 1]` is cached."""
        if date_format not in self._days:
            self._days[date_format] = parse_days(self.array if len(self) else (), date_format)
        return self._days[date_format]

    def take(self, codes: NDArray[np.integer]) -> list[str]:
        """Return the texts of these codes."""
        if not len(codes):
            return []
        return list(self.array.take(codes).to_pylist())


NO_TEXTS = DistinctTexts()


@dataclass(frozen=True)
class Column:
    """The cells of one column.

    Attributes:
        numbers: The numbers `[n]`, NaN where a cell is a text or missing.
        codes: Index of each cell's text in `texts` `[n]`, -1 where a cell is a number or missing.
        texts: The distinct texts.
    """

    numbers: Floats
    codes: NDArray[np.int32]
    texts: DistinctTexts = NO_TEXTS

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.numbers)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each cell is missing `[n]`."""
        return np.isnan(self.numbers) & (self.codes < 0)

    def take(self, rows: RowIndex) -> Column:
        """Select rows by a slice (a view) or by indices (a copy)."""
        return Column(_take(self.numbers, rows), _take(self.codes, rows), self.texts)

    def days(self, date_format: str) -> Floats:
        """Parse the cells as dates `[n]`, NaN where a cell is not such a date."""
        return self.texts.days(date_format)[self.codes]

    def drop_texts(self, texts: frozenset[str]) -> Column:
        """Turn these texts (in lower case) into missing values."""
        if not len(self.texts):
            return self
        return self._keep_texts(~_is_one_of(self.texts.array, texts))

    @cached_property
    def labels(self) -> tuple[Ints, tuple[str, ...]]:
        """The cells as categories.

        Returns:
            Codes `[n]` (-1 where missing) and the distinct cells as texts: numbers first, in
            ascending order, then texts in alphabetical order.
        """
        is_number = ~np.isnan(self.numbers)
        values, number_codes = np.unique(self.numbers[is_number], return_inverse=True)
        used = np.unique(self.codes[self.codes >= 0])
        names = self.texts.take(used)
        order = sorted(range(len(names)), key=names.__getitem__)
        code_of_text = np.full(len(self.texts) + 1, -1, np.int64)
        code_of_text[used[order]] = len(values) + np.arange(len(used))
        codes = code_of_text[self.codes]
        codes[is_number] = number_codes
        return codes, (*map(format_number, values.tolist()), *(names[i] for i in order))

    def _keep_texts(self, keep: NDArray[np.bool_]) -> Column:
        """Restrict the distinct texts; cells of the others become missing."""
        if keep.all():
            return self
        new_codes = np.full(len(keep) + 1, -1, np.int32)
        new_codes[:-1][keep] = np.arange(keep.sum())
        texts = DistinctTexts(self.texts.array.filter(pa.array(keep)))
        return Column(self.numbers, new_codes[self.codes], texts)


def _no_numbers(num_rows: int) -> Floats:
    """Return NaN for each row, without using memory for it."""
    return np.broadcast_to(np.float64(np.nan), num_rows)


def _no_codes(num_rows: int) -> NDArray[np.int32]:
    """Return -1 for each row, without using memory for it."""
    return np.broadcast_to(np.int32(-1), num_rows)


def _take(values: NDArray[ScalarType], rows: RowIndex) -> NDArray[ScalarType]:
    """Select rows; arrays of one repeated value stay without memory."""
    if values.strides == (0,) and len(values) and isinstance(rows, np.ndarray):
        return np.broadcast_to(values[0], len(rows))
    return values[rows]


def format_number(number: float) -> str:
    """Format a number without superfluous digits: 3, not 3.0."""
    return f"{number:.15g}"


def column_from_texts(
    cells: ArrowArray | Sequence[str | None], comma_is_decimal: bool = False
) -> Column:
    """Read the cells of a file: numbers where they can be parsed, texts elsewhere.

    Args:
        cells: Strings, as a sequence or an Arrow array; None and null are missing.
        comma_is_decimal: Whether a comma cannot be a thousands separator, because the file uses
            another separator of cells.

    Returns:
        The column.
    """
    cells = _string_array(cells)
    numbers = _cast_all(cells)
    if numbers is not None:
        return Column(numbers, _no_codes(len(cells)))
    codes, texts = _encode(cells)
    values = parse_numbers(texts, comma_is_decimal)
    is_number = ~np.isnan(values)
    numbers = np.append(values, np.nan)[codes] if is_number.any() else _no_numbers(len(cells))
    column = Column(numbers, codes, DistinctTexts(texts))
    return column._keep_texts(~is_number & ~_is_one_of(texts, MISSING_TEXTS))


def column_from_names(cells: ArrowArray | Sequence[str]) -> Column:
    """Read names of clients: `007` and `NA` are names, too; only empty cells are missing."""
    cells = _string_array(cells)
    codes, texts = _encode(cells)
    column = Column(_no_numbers(len(cells)), codes, DistinctTexts(texts))
    return column.drop_texts(frozenset({""}))


def column_from_values(values: Iterable[object], source: str) -> Column:
    """Read a column of pandas, NumPy or Python values.

    Args:
        values: One-dimensional values: numbers, booleans, times, texts, or a mixture.
        source: The name of the column in errors.

    Returns:
        The column.

    Raises:
        TypeError: If the values have several dimensions.
    """
    array = _to_numpy(values)
    if array.ndim != 1:
        raise TypeError(f"{source} has {array.ndim} dimensions, but a column has one")
    no_numbers = _no_numbers(len(array))
    if array.dtype.kind == "M":
        moments, codes = np.unique(array.astype("datetime64[s]"), return_inverse=True)
        codes = np.where(np.isnat(moments)[codes], -1, codes)
        texts = DistinctTexts(np.datetime_as_string(moments).tolist())
        return Column(no_numbers, codes.astype(np.int32), texts)
    if array.dtype.kind == "b":
        return Column(no_numbers, array.astype(np.int32), DistinctTexts(("false", "true")))
    if array.dtype.kind in "iuf":
        numbers = array.astype(np.float64)
        numbers = np.where(np.isfinite(numbers), numbers, np.nan)
        return Column(numbers, _no_codes(len(array)))
    try:
        return column_from_texts(pa.array(array.astype(object), pa.string(), from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return _column_from_mixed(array.tolist())


def concat_columns(columns: Sequence[Column]) -> Column:
    """Concatenate the cells of several columns."""
    numbers = np.concatenate([column.numbers for column in columns])
    texts = columns[0].texts
    if all(column.texts is texts for column in columns):
        return Column(numbers, np.concatenate([column.codes for column in columns]), texts)
    code_of_text: dict[str, int] = {}
    codes = []
    for column in columns:
        own_texts = column.texts.take(np.arange(len(column.texts)))
        new_codes = [code_of_text.setdefault(text, len(code_of_text)) for text in own_texts]
        codes.append(np.array([*new_codes, -1], np.int32)[column.codes])
    return Column(numbers, np.concatenate(codes), DistinctTexts(tuple(code_of_text)))


def parse_numbers(texts: ArrowArray | Sequence[str], comma_is_decimal: bool) -> Floats:
    """Parse texts as numbers, in the notation that the texts of the column have in common.

    A comma is the decimal mark if `comma_is_decimal`, or if some number of the column has a
    comma that cannot separate thousands (`12,5`). Then dots separate thousands. Otherwise commas
    separate thousands.

    Args:
        texts: Distinct strings, as a sequence or an Arrow array without nulls.
        comma_is_decimal: Whether commas cannot separate thousands.

    Returns:
        The numbers `[T]`, NaN where a text is not a finite number.
    """
    texts = _string_array(texts)
    is_number = _matches(texts, _PLAIN)
    if _flags(pc.match_substring(texts, ",")).any():
        has_comma = _matches(texts, _DECIMAL_COMMA)
        has_thousands = _matches(texts, _COMMA_THOUSANDS)
        if has_comma.any() and (comma_is_decimal or not has_thousands[has_comma].all()):
            localized = has_comma | _matches(texts, _DOT_THOUSANDS)
            replaced = pc.replace_substring(pc.replace_substring(texts, ".", ""), ",", ".")
        else:
            localized = has_thousands
            replaced = pc.replace_substring(texts, ",", "")
        is_number |= localized
        texts = pc.if_else(localized, replaced, texts)
    numbers = np.full(len(texts), np.nan)
    matching = texts.filter(pa.array(is_number))
    try:
        numbers[is_number] = pc.cast(matching, "float64").to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # digits of other scripts
        numbers[is_number] = [float(text) for text in matching.to_pylist()]
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _string_array(cells: ArrowArray | Sequence[str | None]) -> ArrowArray:
    """Convert a sequence of strings to Arrow; Arrow arrays stay as they are."""
    return pa.array(cells, pa.string()) if isinstance(cells, Sequence) else cells


def _cast_all(cells: ArrowArray) -> Floats | None:
    """Parse a column without texts in one step: None unless all cells are numbers or null."""
    try:
        cast = cells.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    is_chunked = isinstance(cast, pa.ChunkedArray)
    numbers: Floats = cast.to_numpy() if is_chunked else cast.to_numpy(zero_copy_only=False)
    # Arrow also parses "inf" and "nan", which are texts here, and overflows to infinity.
    return numbers if np.isfinite(numbers).sum() == len(cells) - cells.null_count else None


def _encode(cells: ArrowArray) -> tuple[NDArray[np.int32], ArrowArray]:
    """Encode cells by their distinct texts, without surrounding spaces.

    Returns:
        Codes `[n]`, -1 for null, and the texts as an Arrow array.
    """
    encoded = cells.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes: NDArray[np.int32] = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    texts = pc.utf8_trim_whitespace(encoded.dictionary)
    # Programs write booleans in different cases; "trUe" is just a text.
    is_boolean = pc.is_in(texts, pa.array(["True", "TRUE", "False", "FALSE"]))
    texts = pc.if_else(is_boolean, pc.utf8_lower(texts), texts)
    if texts.equals(encoded.dictionary):
        return codes, texts
    merged = texts.dictionary_encode()
    new_codes = np.append(merged.indices.to_numpy(zero_copy_only=False), -1).astype(np.int32)
    return new_codes[codes], merged.dictionary


def _matches(texts: ArrowArray, pattern: str) -> NDArray[np.bool_]:
    """Whether each whole text matches a pattern."""
    pattern = pattern.replace(r"\d", r"\p{Nd}")
    return _flags(pc.match_substring_regex(texts, f"^(?:{pattern})$"))


def _is_one_of(texts: ArrowArray, lower_case: frozenset[str]) -> NDArray[np.bool_]:
    """Whether each text, in lower case, is in the set."""
    return _flags(pc.is_in(pc.utf8_lower(texts), pa.array(sorted(lower_case))))


def _flags(booleans: ArrowArray) -> NDArray[np.bool_]:
    """Convert an Arrow array of booleans."""
    return np.asarray(booleans.to_numpy(zero_copy_only=False), np.bool_)


def _to_numpy(values: Iterable[object]) -> AnyArray:
    """Convert values of pandas or Python, without turning numbers among texts into texts."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        return values
    values = list(values)
    if any(value is None or isinstance(value, str) for value in values):
        return np.array(values, object)
    return np.array(values)


def _column_from_mixed(values: list[object]) -> Column:
    """Read values of several types; texts among them are read like those of a file."""
    numbers = np.full(len(values), np.nan)
    texts = [""] * len(values)
    for row, value in enumerate(values):
        if isinstance(value, str | bool | np.bool_):
            texts[row] = str(value)
        elif value is not None and value == value:  # pandas' missing values differ from themselves
            try:
                numbers[row] = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                texts[row] = str(value)
    column = column_from_texts(texts)
    numbers = np.where(np.isfinite(numbers), numbers, column.numbers)
    return Column(numbers, column.codes, column.texts)
