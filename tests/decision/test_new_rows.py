"""Rows that training never had: predicted site by site, and scored beside simple models."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import equipoise
from decision.conftest import OPTIONS, QUICK, SITES, write_clinics
from equipoise.cli import main
from equipoise.records.run_dir import RunFolder
from equipoise.utils.errors import UsageError

pd = pytest.importorskip("pandas", reason="pandas is not installed")


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_many_sites_at_once_are_as_one_by_one(run: Path, clinics: Path, tmp_path: Path) -> None:
    held = clinics / "held.csv"
    out = tmp_path / "all.csv"
    options = ["--client-column", "clinic", "--id", "patient", "--out", str(out)]
    assert main(["predict", str(run), str(held), *options]) == 0
    found = read(out)
    raw = read(held)
    assert [row["patient"] for row in found] == [row["patient"] for row in raw]
    assert [row["clinic"] for row in found] == [row["clinic"] for row in raw]
    assert [int(row["row"]) for row in found] == list(range(2, len(raw) + 2))
    opened = equipoise.open(run)
    frame = pd.read_csv(held)
    for site in SITES:
        mine = frame[frame.clinic == site]
        expected = opened.predict(mine, client=site, probabilities=True)[1]
        probabilities = [float(row["p(1)"]) for row in found if row["clinic"] == site]
        assert probabilities == pytest.approx(expected.tolist(), abs=1e-5)
    by_column = opened.predict(frame, client_column="clinic")
    assert by_column.tolist() == [int(row["predicted"]) for row in found]


def test_scores_are_of_the_same_rows_and_right(run: Path, clinics: Path) -> None:
    frame = pd.read_csv(clinics / "held.csv")
    opened = equipoise.open(run)
    found = opened.evaluate(frame)
    assert [site.name for site in found.decision.sites] == list(SITES)
    for site in found.decision.sites:
        mine = frame[frame.clinic == site.name]
        truth = mine.ill
        assert site.test_rows == len(mine)
        for kind, client in (("personal", site.name), ("global", None)):
            share = float((opened.predict(mine, client=client) == truth).mean())
            assert site.scores[kind].value == pytest.approx(share)
            assert site.scores[kind].low <= share <= site.scores[kind].high
        assert site.scores["constant"].value in (
            pytest.approx((truth == 0).mean()),
            pytest.approx((truth == 1).mean()),
        )
    labels = {one.label for one in found.decision.candidates}
    assert labels == {
        "fedavg, personal models",
        "fedavg, global model",
        "each site's own model",
        "a constant",
    }
    weighted = found.metrics["acc"]["personal"]
    assert weighted == pytest.approx(
        float(np.mean(opened.predict(frame, client_column="clinic") == frame.ill))
    )
    assert set(found.metrics) >= {"acc", "auc", "loss"}


def test_the_local_model_is_the_one_of_the_local_method(
    run: Path, clinics: Path, tmp_path: Path
) -> None:
    options = f"{OPTIONS} {QUICK} --data {clinics / 'train.csv'}"
    assert main(["run", "--method", "local", *options.split(), "--out", str(tmp_path / "l")]) == 0
    frame = pd.read_csv(clinics / "held.csv")
    own = equipoise.open(run).evaluate(frame).decision.sites
    method = equipoise.open(tmp_path / "l").evaluate(frame).decision.sites
    for one, other in zip(own, method, strict=True):
        assert one.scores["local"] == other.scores["local"]
        assert other.model == "local"


def test_unknown_sites_have_the_global_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_clinics(tmp_path / "new.csv", 20, 5, ("north", "east"))
    out = tmp_path / "p.csv"
    options = ["--client-column", "clinic", "--out", str(out)]
    assert main(["predict", str(run), str(tmp_path / "new.csv"), *options]) == 0
    text = capsys.readouterr().out
    assert "1 sites by the global model (took no part in training: east)" in text
    assert "40 of these rows have a target: acc" in text
    assert main(["evaluate", str(run), str(tmp_path / "new.csv")]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 sites took no part in training and have the global model alone: east." in text


def test_evaluate_writes_the_scores_of_all_sites(
    run: Path, clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.csv"
    command = ["evaluate", str(run), str(clinics / "held.csv"), "--metric", "auc"]
    assert main([*command, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Use fedavg") or text.startswith("Keep each site's own model")
    assert "Scores are of 150 new rows of 3 sites" in text
    found = read(out)
    assert [row["site"] for row in found] == list(SITES)
    for row in found:
        assert float(row["personal_auc_low"]) <= float(row["personal_auc"])
    assert main([*command, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"ill": "sick"}, "", "the rows have no target 'ill'"),
        ({}, "--client-column clinik", "no column 'clinik' (did you mean 'clinic'?)"),
        ({}, "--client north", "belongs to 'south' (column 'clinic'), not to 'north'"),
        ({}, "--client nort", "has no client 'nort' (did you mean 'north'?)"),
        ({}, "--metric aux", "metric is 'aux' (did you mean 'auc'?)"),
        ({"age": "years"}, "", "lack columns that the model needs: 'age'"),
    ],
)
def test_mistakes_are_one_line(
    run: Path,
    clinics: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    options: str,
    words: str,
) -> None:
    frame = pd.read_csv(clinics / "held.csv").rename(columns=change)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["evaluate", str(run), str(tmp_path / "rows.csv"), *options.split()]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_cells_are_no_formulas(run: Path, clinics: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(clinics / "held.csv").head(3)
    frame["patient"] = ["=1+1", "@x", "007"]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "p.csv"
    assert (
        main(
            ["predict", str(run), str(tmp_path / "rows.csv"), "--id", "patient", "--out", str(out)]
        )
        == 0
    )
    assert [row["patient"] for row in read(out)] == ["'=1+1", "'@x", "007"]


def test_a_number_is_a_name_where_names_are_numbers(tmp_path: Path) -> None:
    """District 5 is not the client with number 5, and one beyond the last is no traceback."""
    write_clinics(tmp_path / "train.csv", 20, 0, ("3", "1", "7", "9", "11", "13"))
    options = f"{OPTIONS} {QUICK} --data {tmp_path / 'train.csv'} --out {tmp_path / 'run'}"
    assert main(["run", "--method", "fedavg", *options.split()]) == 0
    folder = RunFolder(tmp_path / "run")
    names = folder.read_names()
    assert names[folder.find_client("7")] == "7"
    for wanted in ("5", "99"):
        with pytest.raises(UsageError, match=f"has no client '{wanted}'"):
            folder.find_client(wanted)


def test_a_number_beyond_the_last_client_is_refused(run: Path) -> None:
    assert RunFolder(run).find_client("2") == 2
    with pytest.raises(UsageError, match="has no client '3'"):
        RunFolder(run).find_client("3")
