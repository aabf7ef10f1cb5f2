"""Survival at a horizon: the baseline hazard of a run, predictions, scores, newcomers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.cli import main
from equipoise.experiment.hazard import fit_hazard, horizon_scores
from equipoise.experiment.row_outputs import RowOutputs
from equipoise.training.survival import RiskTable, event_probability
from equipoise.utils.errors import UsageError

RATES = {"north": 1.0, "south": 1.0, "west": 4.0}
"""Hazard of each clinic; that of the west is four times as high."""


def write_patients(path: Path, num_rows: int, seed: int, sites: dict[str, float] = RATES) -> None:
    """Hazard exp(x) times that of the clinic per 1,000 days; a part is censored."""
    random = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["clinic", "x", "noise", "days", "died"])
        for site, rate in sites.items():
            x = random.normal(size=num_rows)
            due = random.exponential(1000 / rate * np.exp(-x))
            until = random.uniform(100, 2000, num_rows)
            days = np.ceil(np.minimum(due, until))
            for row in zip(x, random.normal(size=num_rows), days, due <= until, strict=True):
                writer.writerow([site, f"{row[0]:.3f}", f"{row[1]:.3f}", row[2], int(row[3])])


def true_probability(x: float, rate: float, horizon: float) -> float:
    return 1 - math.exp(-rate * math.exp(x) * horizon / 1000)


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patients")
    write_patients(folder / "train.csv", 120, 0)
    write_patients(folder / "held.csv", 60, 1)
    return folder


OPTIONS = "--client-column clinic --target days --event died --quiet"


@pytest.fixture(scope="module", params=["linear", "trees"])
def survival_run(request: pytest.FixtureRequest, patients: Path) -> Path:
    out = patients / request.param
    how = {
        "linear": "--method fedavg --model linear --rounds 15 --lr 0.1 --local-baseline",
        "trees": "--method fedtrees --trees 8 --tree-depth 3",
    }
    data = f"--data {patients / 'train.csv'} {OPTIONS} {how[request.param]} --out {out}"
    assert main(["run", *data.split()]) == 0
    return out


def rows_of(
    risk: list[float], time: list[float], event: list[float], site: list[int]
) -> RowOutputs:
    y = torch.tensor([time, event]).T
    names = tuple("ab"[: max(site) + 1])
    outputs = {"global": torch.tensor(risk)[:, None], "personal": torch.tensor(risk)[:, None] + 7}
    return RowOutputs(names, np.array(site), np.arange(len(risk)), y, outputs)


def test_the_common_curve_is_that_of_the_summed_tables() -> None:
    random = np.random.default_rng(0)
    risk = random.normal(size=60).tolist()
    time = random.uniform(1, 99, 60).round(1).tolist()
    event = (random.random(60) < 0.6).astype(float).tolist()
    rows = rows_of(risk, time, event, [0, 1] * 30)
    hazard = fit_hazard(rows, [0, 1])
    table = RiskTable.of(
        rows.y[:, 0].double().numpy(),
        np.array(event),
        np.float32(risk).astype(np.float64),
        np.array(hazard.edges),
    )
    np.testing.assert_allclose(hazard.hazard, table.cumulative_hazard(spread=True), rtol=1e-9)


def test_the_level_of_a_model_takes_its_constant_back() -> None:
    """Personal models equal the global one but for 7: probabilities are nearly the same."""
    random = np.random.default_rng(1)
    count = 2000
    risk = random.normal(size=count)
    due = random.exponential(np.exp(-risk)) + 0.001
    time = np.minimum(due, 4.0)
    twice = (risk.tolist() * 2, time.tolist() * 2, (due < 4).astype(float).tolist() * 2)
    rows = rows_of(*twice, [0] * count + [1] * count)
    hazard = fit_hazard(rows, [3, 5])
    ours = hazard.probability("global", None, risk, 1.0)
    personal = hazard.probability("personal", 3, risk + 7, 1.0)
    np.testing.assert_allclose(ours, personal, atol=0.01)
    np.testing.assert_allclose(ours, event_probability(1.0, risk), atol=0.03)
    assert hazard.levels["personal"][5] == pytest.approx(-7, abs=0.1)


@pytest.mark.parametrize("horizon", [0.0, -5.0, math.nan, 1e9])
def test_horizons_beyond_the_follow_up_are_refused(horizon: float) -> None:
    hazard = fit_hazard(rows_of([0.0, 1.0], [5.0, 9.0], [1.0, 1.0], [0, 0]), [0])
    with pytest.raises(UsageError, match="within the follow-up, up to 9"):
        hazard.probability("global", None, np.zeros(1), horizon)


def test_perfect_and_useless_probabilities() -> None:
    y = np.stack([np.arange(1.0, 101), np.ones(100)], 1)
    perfect = (y[:, 0] <= 50).astype(float)
    scores, curves = horizon_scores(y, {"global": perfect, "constant": np.full(100, 0.5)}, 50.0)
    by_model = {one.model: one for one in scores}
    assert by_model["global"].brier.value == 0
    assert by_model["global"].auc.value == 1
    assert by_model["constant"].brier.value == pytest.approx(0.25)
    assert math.isnan(by_model["constant"].auc.value)
    assert [curve.model for curve in curves] == ["global"]
    assert curves[0].bins[0].observed.value == 0
    assert curves[0].bins[-1].observed.value == 1


def test_probabilities_are_near_the_truth(survival_run: Path, patients: Path) -> None:
    """Also where a site's hazard differs: its own model has its own level."""
    rows = {"x": [0.0] * 3, "noise": [0.0] * 3, "clinic": list(RATES)}
    found = np.asarray(eq.open(survival_run).predict(rows, client_column="clinic", horizon=500))
    truth = [true_probability(0, rate, 500) for rate in RATES.values()]
    np.testing.assert_allclose(found, truth, atol=0.2)
    later = np.asarray(eq.open(survival_run).predict(rows, client_column="clinic", horizon=1000))
    assert (later > found).all()


def test_predict_and_evaluate_on_the_command_line(
    survival_run: Path, patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = str(patients / "held.csv")
    out = tmp_path / "p.csv"
    command = ["predict", str(survival_run), held, "--client-column", "clinic", "--out", str(out)]
    assert main([*command, "--horizon", "500"]) == 0
    with open(out) as file:
        values = [float(row["p(event by 500)"]) for row in csv.DictReader(file)]
    assert all(0 <= value <= 1 for value in values)
    page = tmp_path / "page.html"
    evaluate = ["evaluate", str(survival_run), held, "--horizon", "500", "--report", str(page)]
    capsys.readouterr()
    assert main([*evaluate, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    scores = {one["model"]: one for one in found["horizon"]}
    assert scores["personal"]["auc"]["value"] > 0.75
    assert scores["personal"]["brier"]["value"] < scores["constant"]["brier"]["value"] < 0.3
    curve = next(one for one in found["calibration"] if one["model"] == "personal")
    assert curve["mean_predicted"] == pytest.approx(curve["mean_observed"], abs=0.08)
    assert "At the horizon 500" in page.read_text()
    assert main([*evaluate, "--overwrite"]) == 0
    assert "Brier score" in capsys.readouterr().out
    assert main([*command, "--horizon", "99999", "--overwrite"]) == 2
    assert "within the follow-up" in capsys.readouterr().err


def test_no_single_times_are_in_the_folder(survival_run: Path, patients: Path) -> None:
    """The table of hazards has the agreed bins alone."""
    hazard = json.loads((survival_run / "models" / "hazard.json").read_text())
    assert len(hazard["edges"]) == 200
    np.testing.assert_allclose(np.diff(hazard["edges"]), hazard["edges"][0])


def test_a_newcomer_has_its_level(patients: Path, survival_run: Path, tmp_path: Path) -> None:
    """The hazard of a new clinic is four times that of most."""
    path = tmp_path / "coast.csv"
    write_patients(path, 80, 5, {"coast": 4.0})
    with open(path) as file:
        rows = list(csv.DictReader(file))
    table = {name: [row[name] for row in rows] for name in rows[0]}
    newcomer = eq.open(survival_run).adapt(table, "coast", out=tmp_path / "coast")
    one = {"x": [0.0], "noise": [0.0]}
    found = float(np.asarray(newcomer.predict(one, horizon=500))[0])
    assert found == pytest.approx(true_probability(0, 4.0, 500), abs=0.2)


def test_other_targets_have_no_horizon(
    run: Path, clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(run), str(clinics / "held.csv"), "--out", str(tmp_path / "p.csv")]
    assert main([*command, "--horizon", "5"]) == 2
    assert "--horizon is for survival" in capsys.readouterr().err
