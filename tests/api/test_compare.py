"""Comparisons: labels, table, paired differences."""

import json
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

import equipoise as eq

SMALL = {"clients": 4, "samples": 40, "epochs": 1, "executor": "stacked"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> eq.Comparison:
    methods = ["fedavg", eq.methods.FedProx(mu=0.5), eq.methods.Local, eq.methods.FedProx]
    out = tmp_path_factory.mktemp("compare") / "all"
    return eq.compare(
        methods,
        task=eq.Task.from_name("synthetic", clients=4, samples=40),
        seeds=2,
        rounds=2,
        out=out,
    )


def test_labels_and_folders(compared: eq.Comparison) -> None:
    assert list(compared.runs) == ["fedavg", "fedprox mu=0.5", "local", "fedprox"]
    assert [run.config["mu"] for run in compared.runs["fedprox mu=0.5"]] == [0.5, 0.5]
    assert [run.config["seed"] for run in compared.runs["local"]] == [0, 1]
    assert set(json.loads((compared.folder / "compare.json").read_text())["summaries"]) == set(
        compared.runs
    )


def test_the_table_is_mean_and_spread_over_seeds(compared: eq.Comparison) -> None:
    table = compared.table()
    column = table.columns.index("personal %")
    values = [100 * run.final.personal.acc for run in compared.runs["fedavg"]]
    cell = table.rows["fedavg"][column]
    assert cell.mean == pytest.approx(fmean(values))
    assert (cell.std or 0) == pytest.approx(stdev(values))
    assert str(table).splitlines()[0].startswith("method")
    assert len(str(table).splitlines()) == 5
    assert table._repr_html_().count("<tr>") == 5


def test_paired_differences_by_hand(compared: eq.Comparison) -> None:
    found = compared.paired("personal", against="fedavg")
    assert set(found) == {"fedprox mu=0.5", "local", "fedprox"}
    pairs = [
        100 * (ours.final.personal.acc - theirs.final.personal.acc)
        for ours, theirs in zip(compared.runs["local"], compared.runs["fedavg"], strict=True)
    ]
    difference = found["local"]
    assert difference is not None
    assert difference.mean == pytest.approx(fmean(pairs))
    assert difference.high - difference.mean == pytest.approx(12.706 * stdev(pairs) / 2**0.5)
    assert set(compared.paired("global", against="fedavg")) == {
        "fedprox mu=0.5",
        "fedprox",
    }  # Local has no global one
    with pytest.raises(eq.UsageError, match="did you mean 'fedavg'"):
        compared.paired("personal", against="fedavgg")
    with pytest.raises(eq.UsageError, match="score is 'persnal': must be one of"):
        compared.paired("persnal", against="fedavg")


def test_report_and_models(compared: eq.Comparison) -> None:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    assert compared.report().is_file()
    assert compared.runs["fedprox"][1].model(client=0) is not None


def test_a_score_that_nobody_has_is_undefined_in_words(tmp_path: Path) -> None:
    """Each client's rows are of one class, so that none has an AUC; the server, with rows of all,
    does.
    """
    rng = np.random.default_rng(0)
    tables = {
        f"site {k}": {
            "a": rng.normal(size=40),
            "b": rng.normal(size=40),
            "y": ["yes" if k % 2 else "no"] * 40,
        }
        for k in range(4)
    }
    out = tmp_path / "auc"
    task = eq.Task.from_tables(tables, target="y")
    compared = eq.compare(["fedavg", "local"], task=task, seeds=2, rounds=2, metric="auc", out=out)
    reason = (
        "auc has no value where all test rows are of one class, which is the case for every client"
    )
    text = (out / "table.md").read_text()
    assert f"personal auc is undefined: {reason}." in text
    assert f"**personal auc**: undefined, {reason}." in text
    assert "**global auc**, best: fedavg" in text
    assert str(compared.table().rows["fedavg"][1]) == "—"
    with pytest.raises(eq.UsageError, match=f"personal auc is undefined for all methods: {reason}"):
        compared.paired("personal", against="fedavg")
    pytest.importorskip("plotly", reason="the extra report is not installed")
    assert f"personal auc is undefined: {reason}." in compared.report().read_text()


def test_without_a_global_model_its_score_is_undefined(tmp_path: Path) -> None:
    compared = eq.compare(
        ["local", "fedper"], seeds=2, rounds=1, out=tmp_path / "a", model="mlp", **SMALL
    )
    assert (
        "**global %**: undefined, no method has a global model."
        in (tmp_path / "a" / "table.md").read_text()
    )
    with pytest.raises(
        eq.UsageError, match="global % is undefined for all methods: no method has a global model"
    ):
        compared.paired("global", against="local")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(eq.UsageError, match="'fedavg' is named twice"):
        eq.compare(["fedavg", eq.methods.FedAvg()], out=tmp_path / "a", **SMALL)
    with pytest.raises(eq.UsageError, match="methods is empty"):
        eq.compare([], out=tmp_path / "a")
    with pytest.raises(eq.UsageError, match="unknown option 'mu'"):
        eq.compare(["fedavg"], out=tmp_path / "a", mu=0.1)
    assert not (tmp_path / "a").exists()
