"""Spreadsheets are read as if they had been saved as CSV."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.tabular.io import read_table
from equipoise.utils.errors import UsageError

pytest.importorskip("python_calamine", reason="the extra excel is not installed")

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
DATE_STYLE = (
    f'<styleSheet xmlns="{MAIN}"><fonts count="1"><font/></fonts><fills count="1"><fill/></fills>'
    '<borders count="1"><border/></borders><cellStyleXfs count="1"><xf/></cellStyleXfs>'
    '<cellXfs count="2"><xf/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>'
)
DATE = 's="1"><v>'


def write_xlsx(path: Path, sheets: dict[str, list[list[str]]]) -> Path:
    """Write a workbook of cells that are XML after `<c `: `t="n"><v>1</v>` is a number."""
    names = list(sheets)
    links = "".join(
        f'<Relationship Id="r{i}" Type="{OFFICE}/worksheet" Target="worksheets/s{i}.xml"/>'
        for i in range(len(names))
    )
    links += f'<Relationship Id="style" Type="{OFFICE}/styles" Target="styles.xml"/>'
    listed = "".join(
        f'<sheet name="{name}" sheetId="{i + 1}" r:id="r{i}"/>' for i, name in enumerate(names)
    )
    files = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="w" '
        f'Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{listed}'
        "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{links}'
        "</Relationships>",
        "xl/styles.xml": DATE_STYLE,
    }
    for i, rows in enumerate(sheets.values()):
        body = ""
        for row, cells in enumerate(rows, start=1):
            shown = "".join(
                f'<c r="{chr(65 + column)}{row}" {cell}</c>'
                for column, cell in enumerate(cells)
                if cell
            )
            body += f'<row r="{row}">{shown}</row>'
        files[f"xl/worksheets/s{i}.xml"] = (
            f'<worksheet xmlns="{MAIN}"><sheetData>{body}</sheetData></worksheet>'
        )
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def text(words: str) -> str:
    return f't="inlineStr"><is><t>{words}</t></is>'


def number(value: float) -> str:
    return f't="n"><v>{value}</v>'


ROWS = [
    [text("site"), text("age"), text("seen"), text("note")],
    [number(7), number(61), f"{DATE}43831</v>", text("a, b; c")],
    [],
    [number(7), number(0.1), f"{DATE}43832</v>", ""],
    [text("7a"), "", f"{DATE}43833</v>", text("said &quot;no&quot;")],
]


def test_a_sheet_is_read_as_its_csv(tmp_path: Path) -> None:
    found = read_table(write_xlsx(tmp_path / "a.xlsx", {"data": ROWS, "empty": []}), "site")
    csv = tmp_path / "a.csv"
    csv.write_text(
        "site,age,seen,note\n"
        '7,61,2020-01-01,"a, b; c"\n'
        ",,,\n"
        "7,0.1,2020-01-02,\n"
        '7a,,2020-01-03,"said ""no"""\n'
    )
    expected = read_table(csv, "site")
    assert list(found.columns) == list(expected.columns)
    assert found.row_numbers.tolist() == [2, 4, 5]  # as the spreadsheet shows them
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name].numbers, column.numbers)
        codes, texts = found.columns[name].labels
        assert [texts[code] if code >= 0 else None for code in codes] == [
            column.labels[1][code] if code >= 0 else None for code in column.labels[0]
        ]


@pytest.mark.parametrize(
    ("sheets", "message"),
    [
        ({"a": ROWS, "b": ROWS}, "has rows in several sheets, 'a', 'b'"),
        ({"a": []}, "has no rows"),
        ({"a": [[text("x"), text("x")], [number(1), number(2)]]}, "several columns named 'x'"),
    ],
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, sheets: dict[str, list[list[str]]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_table(write_xlsx(tmp_path / "a.xlsx", sheets))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK no archive")
    with pytest.raises(UsageError, match=r"cannot be read.*CSV UTF-8"):
        read_table(path)
