"""From raw tables to predictions: scores by name, names, predictions and exports without the
training data.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from equipoise.cli import main

SITES = ("north", "south", "va")


def write_tables(folder: Path, kind: str) -> None:
    """Three sites, whose target follows from age and group; one site has one class alone."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for site in SITES:
        lines = ["age,group,code,sick,minutes,died"]
        for row in range(40):
            age, group = rng.uniform(20, 80), rng.choice(["a", "b"])
            risk = (age - 50) / 10 + (2 if group == "b" else 0)
            sick = "yes" if site != "south" and risk + rng.normal() > 1 else "no"
            time = math.exp(-risk / 3 + rng.normal() / 2)
            lines.append(
                f"{age:.1f},{group},{site}-{row},{sick},{time:.3f},{int(rng.uniform() < 0.7)}"
            )
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    (folder.parent / "new.csv").write_text("age,group\n25,a\n79,b\n,b\n")


KINDS = {
    "classification": "--target sick --ignore-columns minutes,died,code",
    "regression": "--target minutes --target-type regression --ignore-columns sick,died,code",
    "survival": "--target minutes --event died --ignore-columns sick,code",
}


@pytest.fixture(params=KINDS)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A run of each kind, whose training data are gone."""
    kind, data, out = request.param, tmp_path / "sites", tmp_path / "run"
    write_tables(data, kind)
    options = (
        f"--task tables --data {data} {KINDS[kind]} --model linear --rounds 3 --epochs 5 --quiet "
        "--local-baseline"
    )
    assert main(["run", *options.split(), "--out", str(out)]) == 0
    shutil.rmtree(data)
    return kind, out


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def test_predictions_without_the_training_data(finished: tuple[str, Path], tmp_path: Path) -> None:
    kind, run = finished
    new, out = tmp_path / "new.csv", tmp_path / "predictions.csv"
    assert main(["predict", str(run), str(new), "--client", "va", "--out", str(out)]) == 0
    found = rows_of(out)
    assert [row["row"] for row in found] == ["2", "3", "4"]  # as in a spreadsheet
    again = equipoise.open(run).predict(
        {"age": [25, 79, None], "group": ["a", "b", "b"]}, client="va"
    )
    if kind == "classification":
        assert [row["predicted"] for row in found] == again.tolist() == ["no", "yes", again[2]]
        for row in found:
            assert float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1, abs=1e-5)
    else:
        column = "predicted" if kind == "regression" else "risk"
        values = [float(row[column]) for row in found]
        assert values == pytest.approx(again.tolist(), rel=1e-5)
        assert (values[1] < values[0]) == (kind == "regression")  # older: shorter time, higher risk


def test_scores_have_names_and_clients_have_intervals(finished: tuple[str, Path]) -> None:
    kind, run = finished
    summary = json.loads((run / "summary.json").read_text())
    names = {
        "classification": ["acc", "auc", "balanced_acc", "f1", "average_precision", "ece", "loss"],
        "regression": ["rmse", "mae", "r2", "loss"],
        "survival": ["concordance", "loss"],
    }[kind]
    for who in ("personal", "global"):
        assert set(names) <= set(summary[who])
        assert next(iter(summary[who])) == names[0]
    clients = rows_of(run / "clients.csv")
    assert [row["name"] for row in clients] == list(SITES)
    head = names[0]
    for row in clients:
        low, high = float(row[f"personal_{head}_low"]), float(row[f"personal_{head}_high"])
        assert low <= float(row[f"personal_{head}"]) <= high
        assert math.isfinite(float(row[f"local_{head}"]))
        assert math.isfinite(float(row[f"constant_{head}"]))
    if kind == "classification":
        south = clients[1]
        assert south["personal_auc"] in ("", "nan")
        assert summary["undefined"] == {"auc": 1, "average_precision": 1}
        assert float(south["constant_acc"]) == 1.0


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.load:DeprecationWarning"
)  # the format's readers still use it
def test_exports_say_what_they_are(
    finished: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    kind, run = finished
    for form in ("onnx", "torchscript"):
        assert (
            main(
                [
                    "export",
                    str(run),
                    "--client",
                    "va",
                    "--format",
                    form,
                    "--out",
                    str(tmp_path / form),
                ]
            )
            == 0
        )
        assert "the personal model of va by fedavg on tables" in capsys.readouterr().out
    told = onnxruntime.InferenceSession(tmp_path / "onnx").get_modelmeta().custom_metadata_map
    extra = dict.fromkeys(("is", "kind", "outputs", "preparation", "equipoise"), "")
    torch.jit.load(str(tmp_path / "torchscript"), _extra_files=extra)
    for name, text in extra.items():
        assert told[name] == (text if isinstance(text, str) else text.decode())
    assert told["kind"] == kind
    assert told["is"] == "the personal model of va"
    assert told["equipoise"] == equipoise.__version__
    assert json.loads(told["preparation"])["clients"] == list(SITES)
    if kind == "classification":
        assert json.loads(told["outputs"]) == ["no", "yes"]


def test_mistakes_are_one_line_and_overwrite_nothing(
    finished: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, run = finished
    out, new = tmp_path / "kept.csv", tmp_path / "new.csv"
    out.write_text("kept")
    (tmp_path / "less.csv").write_text("age\n25\n")
    (tmp_path / "other.csv").write_text("age,size\n25,170\n")
    (tmp_path / "more.csv").write_text("age,group,height\n25,a,170\n")
    for arguments, words in (
        ([str(run), str(new), "--out", str(out)], "exists already"),
        ([str(run), str(tmp_path / "less.csv")], "lack columns that the model needs: 'group'"),
        (
            [str(run), str(tmp_path / "other.csv")],
            "needs: 'group' and have columns that training did not have: 'size'",
        ),
        ([str(run), str(tmp_path / "more.csv")], "columns that training did not have: 'height'"),
        ([str(run), str(new), "--client", "vs"], "has no client 'vs' (did you mean 'va'?)"),
        ([str(run), str(tmp_path / "none.csv")], "there is no file"),
        ([str(tmp_path), str(new)], "is not a run folder"),
    ):
        target = [] if "--out" in arguments else ["--out", str(tmp_path / "fresh.csv")]
        assert main(["predict", *arguments, *target]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert out.read_text() == "kept"
    assert not (tmp_path / "fresh.csv").exists()
    if kind != "classification":
        with pytest.raises(equipoise.UsageError, match="probabilities are of classes"):
            equipoise.open(run).predict({"age": [30], "group": ["a"]}, probabilities=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--metric aux", "metric is 'aux' (did you mean 'auc'?): classification has acc"),
        ("--metric rmse", "metric is 'rmse'"),
        ("--error absolute", "error is for regression"),
        ("--class-weights balance", "class_weights"),
    ],
)
def test_what_a_kind_does_not_have_is_refused_first(
    options: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path / "sites", "classification")
    data = f"--task tables --data {tmp_path / 'sites'} {KINDS['classification']}"
    command = f"run {data} --out {tmp_path / 'run'} {options}"
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
