"""Cells and files as people write them: decimal marks, missing values, separators, encodings, rows of a sheet."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.tables.cells import (
    EMPTY,
    NO_NUMBER,
    joined,
    of_names,
    of_texts,
    of_values,
    read_numbers,
)
from equipoise.data.tables.csv_file import read_csv
from equipoise.data.tables.table import table_of
from equipoise.utils.errors import UsageError


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1", "-2.5", "+3e2", ".5", "7."], [1, -2.5, 300, 0.5, 7]),
        (["12,5", "3", "1.234,5"], [12.5, 3, 1234.5]),
        (
            ["1,234", "12", "1,234,567.5"],
            [1234, 12, 1234567.5],
        ),  # a comma before three digits everywhere
        (["1,234", "1,5"], [1.234, 1.5]),  # one cell shows that the comma is the decimal mark
        (["12,5", "1.234"], [12.5, 1234]),
        (["inf", "nan", "1_000", "0x1", "1e999"], [math.nan] * 5),
    ],
)
def test_numbers_in_texts(texts: list[str], numbers: list[float]) -> None:
    np.testing.assert_array_equal(read_numbers(texts, comma_file=False), numbers)


def test_where_commas_do_not_separate_cells_they_are_decimal_marks() -> None:
    assert read_numbers(["1,234", "2"], comma_file=True) == [1.234, 2]


def test_a_cell_is_a_number_a_text_or_missing() -> None:
    column = of_texts([" 1 ", "NA", "", "red", "?", "2,5", "none", "red "])
    np.testing.assert_array_equal(
        column.number, [1, np.nan, np.nan, np.nan, np.nan, 2.5, np.nan, np.nan]
    )
    assert column.missing.tolist() == [False, True, True, False, True, False, False, False]
    assert [column.texts[code] for code in column.code if code >= 0] == ["red", "none", "red"]
    assert column.without(NO_NUMBER).missing.sum() == 4
    codes, labels = column.labels
    assert labels == ("1", "2.5", "none", "red")
    assert codes.tolist() == [0, -1, -1, 3, -1, 1, 2, 3]
    assert of_texts(["True", "TRUE", "false", "trUe"]).labels[1] == ("false", "trUe", "true")
    assert EMPTY < NO_NUMBER


def test_names_of_clients_stay_as_they_are() -> None:
    column = of_names(["007", "NA", " 7", ""])
    assert column.labels[1] == ("007", "7", "NA")
    assert column.missing.tolist() == [False, False, False, True]


def test_values_of_python() -> None:
    days = np.array(["2020-01-01", "NaT"], "datetime64[D]")
    codes, texts = of_values(days, "c").labels
    assert (codes.tolist(), texts) == ([0, -1], ("2020-01-01T00:00:00",))
    assert of_values([True, False], "c").labels[1] == ("false", "true")
    mixed = of_values([Decimal("1.5"), None, "x", float("nan"), "2"], "c")
    np.testing.assert_array_equal(mixed.number, [1.5, np.nan, np.nan, np.nan, 2])
    assert mixed.labels[1] == ("1.5", "2", "x")
    np.testing.assert_array_equal(of_values([1.0, np.inf], "c").number, [1, np.nan])


def test_cells_of_several_columns_together() -> None:
    whole = joined([of_texts(["a", "b", "1"]), of_texts(["", "b", "c"])])
    assert whole.labels[1] == ("1", "a", "b", "c")
    assert whole.labels[0].tolist() == [1, 2, 0, -1, 2, 3]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_marks_of_encodings_are_detected(
    separator: str, encoding: str, tmp_path: Path
) -> None:
    lines = [["age", "größe", "word"], ["1", '"2,5"', '"x, y; z"'], ["3", '"4,5"', "é"]]
    path = write(tmp_path / "a.csv", "\r\n".join(separator.join(line) for line in lines), encoding)
    table = read_csv(path)
    assert list(table.columns) == ["age", "größe", "word"]
    assert table.columns["größe"].number.tolist() == [2.5, 4.5]
    assert table.columns["word"].labels[1] == ("x, y; z", "é")
    assert table.row.tolist() == [2, 3]


def test_rows_are_counted_as_a_sheet_does(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path / "a.csv", 'a,b\n1,"two\nlines"\n\n3,x\n'))
    assert table.row.tolist() == [2, 4]
    assert list(read_csv(write(tmp_path / "b.csv", ",b\n1,2\n")).columns) == ["(column 1)", "b"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no line of column names"),
        (
            b"a,b\n1,2\n1\n1,2\n1,2,3\n" + b"1,2\n" * 40,
            "names 2 columns, but row 3 has 1 cells, row 5 has 3 cells",
        ),
        (b"a,a,b\n1,2,3\n", "several columns named 'a'"),
        (b"a,b\n1,caf\xe9\n", r"not UTF-8 in row 2 \(near 'a,b.*UTF-8|not UTF-8 in row 2"),
        (b"a,b\n1,\x00\n", "no text file"),
        (b'a,b\n1,"open\n', "quotation mark"),
    ],
)
def test_bad_files_are_one_sentence(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_csv(tmp_path / "a.csv")


def test_tables_of_python(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra data is not installed")
    values = {
        "n": [1, None, 3],
        "t": ["a", "b", None],
        "b": [True, None, False],
        "d": [Decimal("1.5"), None, None],
    }
    plain, arrow = table_of(values), table_of(pyarrow.table(values))
    for name in values:
        mine, other = plain.columns[name], arrow.columns[name]
        np.testing.assert_array_equal(mine.number, other.number)
        assert mine.labels[1] == other.labels[1]
    moments = pyarrow.table(
        {"at": pyarrow.array([0, 86400], pyarrow.timestamp("s", "Europe/Zurich"))}
    )
    assert table_of(moments).columns["at"].labels[1] == (
        "1970-01-01T00:00:00",
        "1970-01-02T00:00:00",
    )
    days = pyarrow.table(
        {
            "day": pyarrow.array(["x", "y"]).dictionary_encode(),
            "at": pyarrow.array([1, 2], "date32"),
        }
    )
    assert table_of(days).columns["at"].labels[1] == ("1970-01-02", "1970-01-03")
    assert table_of(days).columns["day"].labels[1] == ("x", "y")
    with pytest.raises(UsageError, match="different lengths"):
        table_of({"a": [1], "b": [1, 2]})
    with pytest.raises(UsageError, match="is a list"):
        table_of([1, 2])
