"""The sample federation: every command of the first door can be typed with it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.data.tabular.config import TableConfig
from equipoise.data.tabular.io import read_tables
from equipoise.data.tabular.sample import CLINICS, TARGET, write_sample


def test_the_sample_is_what_it_says_and_repeats(tmp_path: Path) -> None:
    new_rows = write_sample(tmp_path / "a", 3)
    write_sample(tmp_path / "b", 3)
    write_sample(tmp_path / "c", 4)
    for clinic in CLINICS:
        text = (tmp_path / "a" / f"{clinic.name}.csv").read_text()
        assert text == (tmp_path / "b" / f"{clinic.name}.csv").read_text()
        assert text != (tmp_path / "c" / f"{clinic.name}.csv").read_text()
        assert text.count("\n") == clinic.num_rows + 1
    assert new_rows.read_text().count("\n") == 50 * len(CLINICS) + 1
    patients = [line.split(",")[1] for line in new_rows.read_text().splitlines()[1:]]
    for clinic in CLINICS:
        own = (tmp_path / "a" / f"{clinic.name}.csv").read_text().splitlines()[1:]
        patients += [line.split(",")[0] for line in own]
    assert len(set(patients)) == len(patients)
    tables = read_tables(tmp_path / "a", "", TableConfig(target=TARGET))
    assert tables.names == tuple(clinic.name for clinic in CLINICS)


def test_the_first_door_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "clinics"
    assert main(["data", "sample", str(folder)]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert main(command[1:]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    out = ["--rounds", "2", "--out", str(tmp_path / "runs"), "--quiet"]
    assert main([*command[1:], *out]) == 0
    assert main(["data", "sample", str(folder)]) == 2
    assert "exists already: choose another folder" in capsys.readouterr().err


def test_spreadsheets_are_told_how_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)  # the extra is not installed
    write_sample(tmp_path / "clinics", 0)
    (tmp_path / "clinics" / "old.xlsx").write_bytes(b"PK")
    assert main(["data", "describe", "--data", str(tmp_path / "clinics"), "--target", TARGET]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "old.xlsx' is a spreadsheet: save the sheet as 'CSV UTF-8'" in shown
    assert "pip install 'equipoise[excel]'" in shown
