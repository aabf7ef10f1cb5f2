"""Cells and files as people write them: decimal marks, missing values, separators, encodings, rows
of a sheet.
"""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.tabular import csv_reader
from equipoise.data.tabular.columns import (
    MISSING_NUMBER_TEXTS,
    MISSING_TEXTS,
    column_from_names,
    column_from_texts,
    column_from_values,
    concat_columns,
    parse_numbers,
)
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.csv_reader import read_csv
from equipoise.data.tabular.io import scan_tables, split_by_client, table_from_values
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
        (["١٢", "٣٫٥", "-4", "٥,٥"], [12, math.nan, -4, 5.5]),  # digits of other scripts
        (["inf", "nan", "1_000", "0x1", "1e999"], [math.nan] * 5),
    ],
)
def test_numbers_in_texts(texts: list[str], numbers: list[float]) -> None:
    np.testing.assert_array_equal(parse_numbers(texts, comma_is_decimal=False), numbers)


def test_where_commas_do_not_separate_cells_they_are_decimal_marks() -> None:
    assert parse_numbers(["1,234", "2"], comma_is_decimal=True).tolist() == [1.234, 2]


def test_a_cell_is_a_number_a_text_or_missing() -> None:
    column = column_from_texts([" 1 ", "NA", "", "red", "?", "2,5", "none", "red "])
    np.testing.assert_array_equal(
        column.numbers, [1, np.nan, np.nan, np.nan, np.nan, 2.5, np.nan, np.nan]
    )
    assert column.missing.tolist() == [False, True, True, False, True, False, False, False]
    assert [column.texts[code] for code in column.codes if code >= 0] == ["red", "none", "red"]
    assert column.drop_texts(MISSING_NUMBER_TEXTS).missing.sum() == 4
    codes, labels = column.labels
    assert labels == ("1", "2.5", "none", "red")
    assert codes.tolist() == [0, -1, -1, 3, -1, 1, 2, 3]
    assert column_from_texts(["True", "TRUE", "false", "trUe"]).labels[1] == (
        "false",
        "trUe",
        "true",
    )
    assert MISSING_TEXTS < MISSING_NUMBER_TEXTS


def test_names_of_clients_stay_as_they_are() -> None:
    column = column_from_names(["007", "NA", " 7", ""])
    assert column.labels[1] == ("007", "7", "NA")
    assert column.missing.tolist() == [False, False, False, True]


def test_values_of_python() -> None:
    days = np.array(["2020-01-01", "NaT"], "datetime64[D]")
    codes, texts = column_from_values(days, "c").labels
    assert (codes.tolist(), texts) == ([0, -1], ("2020-01-01T00:00:00",))
    assert column_from_values([True, False], "c").labels[1] == ("false", "true")
    mixed = column_from_values([Decimal("1.5"), None, "x", float("nan"), "2"], "c")
    np.testing.assert_array_equal(mixed.numbers, [1.5, np.nan, np.nan, np.nan, 2])
    assert mixed.labels[1] == ("1.5", "2", "x")
    np.testing.assert_array_equal(column_from_values([1.0, np.inf], "c").numbers, [1, np.nan])


def test_cells_of_several_columns_together() -> None:
    whole = concat_columns([column_from_texts(["a", "b", "1"]), column_from_texts(["", "b", "c"])])
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
    assert table.columns["größe"].numbers.tolist() == [2.5, 4.5]
    assert table.columns["word"].labels[1] == ("x, y; z", "é")
    assert table.row_numbers.tolist() == [2, 3]


def test_rows_are_counted_as_a_sheet_does(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path / "a.csv", 'a,b\n1,"two\nlines"\n\n3,x\n'))
    assert table.row_numbers.tolist() == [2, 4]
    assert list(read_csv(write(tmp_path / "b.csv", ",b\n1,2\n")).columns) == ["(column 1)", "b"]


def test_quotation_marks_within_cells(tmp_path: Path) -> None:
    table = read_csv(
        write(tmp_path / "a.csv", 'a,b\n"he said ""no""","x\n\ny"\n5" pipe,z\n"",""\n"","w"\n')
    )
    assert table.row_numbers.tolist() == [2, 3, 5]
    assert table.columns["a"].labels[1] == ('5" pipe', 'he said "no"')
    assert table.columns["a"].missing.tolist() == [False, False, True]
    assert table.columns["b"].labels[1] == ("w", "x\n\ny", "z")


def test_rows_of_empty_cells_are_skipped_however_many_they_are(tmp_path: Path) -> None:
    table = read_csv(write(tmp_path / "a.csv", "a,b\n1,2\n,\n,,,\n3,4\n\n"))
    assert table.row_numbers.tolist() == [2, 5]
    assert table.columns["b"].numbers.tolist() == [2, 4]


def test_a_row_may_be_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "CHUNK_BYTES", 64)
    rows = ["a,b", *(f'"{"x" * length}",{length}' for length in (1, 500, 30))]
    table = read_csv(write(tmp_path / "a.csv", "\n".join(rows)))
    assert table.columns["b"].numbers.tolist() == [1, 500, 30]
    assert table.columns["a"].labels[1] == ("x", "x" * 30, "x" * 500)


def test_a_date_is_parsed_once_for_all_clients_of_a_file(tmp_path: Path) -> None:
    rows = ["who,day", *(f"{'ab'[i % 2]},2020-01-{1 + i % 9:02}" for i in range(40))]
    clients, _ = split_by_client(
        read_csv(write(tmp_path / "a.csv", "\n".join(rows)), "who"), "who", "it"
    )
    days = [table.columns["day"].texts for table in clients.clients.values()]
    assert days[0] is days[1]
    assert days[0].days("year-month-day") is days[1].days("year-month-day")


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.csv", "a,b\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for path in (tmp_path, tmp_path / "a.csv"):
        with pytest.raises(
            UsageError,
            match=r"^reading tables needs pyarrow: pip install 'equipoise\[data\]' \(in a",
        ) as error:
            scan_tables(path, "a", TableConfig())
        assert "\n" not in str(error.value)


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
        (b'a,b\n1,"x\n2,y\n3,"z"\n', "quotation mark"),
        (b'a,b\n1,"x"y\n', "quotation mark"),
        (b"caf\xe9,b\n1,2\n", "not UTF-8 in row 1"),
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
    plain, arrow = table_from_values(values), table_from_values(pyarrow.table(values))
    for name in values:
        mine, other = plain.columns[name], arrow.columns[name]
        np.testing.assert_array_equal(mine.numbers, other.numbers)
        assert mine.labels[1] == other.labels[1]
    moments = pyarrow.table(
        {"at": pyarrow.array([0, 86400], pyarrow.timestamp("s", "Europe/Zurich"))}
    )
    assert table_from_values(moments).columns["at"].labels[1] == (
        "1970-01-01T00:00:00",
        "1970-01-02T00:00:00",
    )
    days = pyarrow.table(
        {
            "day": pyarrow.array(["x", "y"]).dictionary_encode(),
            "at": pyarrow.array([1, 2], "date32"),
        }
    )
    assert table_from_values(days).columns["at"].labels[1] == ("1970-01-02", "1970-01-03")
    assert table_from_values(days).columns["day"].labels[1] == ("x", "y")
    with pytest.raises(UsageError, match="different lengths"):
        table_from_values({"a": [1], "b": [1, 2]})
    with pytest.raises(UsageError, match="is a list"):
        table_from_values([1, 2])
