"""Groups of rows, every model at every site, calibration, and the pages that show them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.io import table_from_values
from equipoise.experiment.detailed_scores import (
    Grouping,
    calibration_bins,
    calibration_curves,
    calibration_slope,
    group_scores,
    hidden_groups,
)
from equipoise.experiment.new_rows import evaluate_rows
from equipoise.experiment.row_outputs import RowOutputs
from equipoise.experiment.site_models import load_models
from equipoise.experiment.site_rows import RowSelection, read_rows
from equipoise.records.evaluation import Calibration
from equipoise.report.evaluation_page import (
    calibration_figure,
    calibration_words,
    render_evaluation,
)
from equipoise.utils.errors import UsageError

YES_NO = Target(classes=("no", "yes"), name="ill")


def groups_of(values: list[object], text: str = "x") -> tuple[list[int], list[str]]:
    [grouping] = Grouping.parse(text)
    group, names = grouping.assign(table_from_values({"x": values}))
    return group.tolist(), names


def test_numbers_are_cut_where_asked_and_edges_belong_to_the_upper_group() -> None:
    group, names = groups_of([39, 40, 64.9, 65, None], "x:40:65")
    assert names == ["below 40", "40 to 65", "65 and above", "missing"]
    assert group == [0, 1, 1, 2, 3]


def test_many_numbers_are_cut_into_quarters_and_few_are_categories() -> None:
    group, names = groups_of([*range(100)])
    assert np.bincount(group).tolist() == [25, 25, 25, 25]
    assert names[0] == "below 24.75"
    assert groups_of([1, 0, 1])[1] == ["0", "1"]
    assert groups_of(["b", None, "a"]) == ([1, 2, 0], ["a", "b", "missing"])


@pytest.mark.parametrize(
    ("text", "message"),
    [("x:four", "numbers at which it is cut"), ("x:5:5", "must ascend"), ("x:5:4", "must ascend")],
)
def test_wrong_cuts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grouping.parse(text)
    with pytest.raises(UsageError, match="holds texts"):
        groups_of(["a", "b"], "x:4")


def test_one_small_group_hides_the_next_smallest_too() -> None:
    """Else its number would follow from the total."""
    assert hidden_groups(np.array([50, 9, 20]), 10).tolist() == [False, True, True]
    assert hidden_groups(np.array([50, 9, 9]), 10).tolist() == [False, True, True]
    assert hidden_groups(np.array([50, 10, 0]), 10).tolist() == [False, False, False]
    assert hidden_groups(np.array([9]), 10).tolist() == [True]


def outputs_of(logit: list[float], y: list[int]) -> RowOutputs:
    values = torch.tensor(logit)
    outputs = torch.stack([torch.zeros_like(values), values], 1)
    rows = len(y)
    site = np.zeros(rows, np.int64)
    return RowOutputs(("a",), site, np.arange(rows), torch.tensor(y), {"global": outputs})


def test_scores_of_groups_are_those_of_their_rows() -> None:
    rows = outputs_of([1, 1, -1, -1, 1, 1, 1, -1], [1, 1, 0, 0, 0, 0, 0, 1])
    table = table_from_values({"sex": ["f"] * 4 + ["m"] * 4})
    found = group_scores(rows, YES_NO, "acc", table, Grouping.parse("sex"), min_count=2)
    assert [(one.group, one.rows, one.scores["global"].value) for one in found] == [
        ("f", 4, 1.0),
        ("m", 4, 0.0),
    ]
    hidden = group_scores(rows, YES_NO, "acc", table, Grouping.parse("sex"), min_count=5)
    assert [(one.rows, one.scores) for one in hidden] == [(None, {}), (None, {})]


def test_calibration_bins_by_hand() -> None:
    predicted = np.concatenate([np.full(20, 0.2), np.full(20, 0.8)])
    observed = np.array([1.0] * 5 + [0.0] * 15 + [1.0] * 16 + [0.0] * 4)
    low, high = calibration_bins(predicted, observed, is_share=True)
    assert (low.predicted, low.observed.value, low.rows) == (pytest.approx(0.2), 0.25, 20)
    assert (high.predicted, high.observed.value) == (pytest.approx(0.8), 0.8)
    assert low.observed.low < 0.25 < low.observed.high


def test_calibration_slope_of_known_shares() -> None:
    """Shares of exactly sigmoid(b x) have slope b."""
    x = np.log(np.array([0.25, 4.0]))
    shares = 1 / (1 + np.exp(-0.5 * x))  # 1/3 and 2/3
    predicted = np.repeat(1 / (1 + np.exp(-x)), 300)
    hits = [np.arange(300) < round(300 * share) for share in shares]
    assert calibration_slope(predicted, np.concatenate(hits).astype(float)) == pytest.approx(0.5)
    assert calibration_slope(predicted, np.ones(600)) is None
    assert calibration_slope(np.full(10, 0.3), np.arange(10) % 2.0) is None
    separated = np.array([0.1, 0.2, 0.8, 0.9])
    assert calibration_slope(separated, np.array([0.0, 0, 1, 1])) is None


def test_curves_of_numbers_and_of_many_classes() -> None:
    y = torch.arange(40.0)
    rows = RowOutputs(("a",), np.zeros(40, np.int64), np.arange(40), y, {"global": y[:, None] / 2})
    cost = Target(kind="regression", name="cost", scale=2.0)
    [curve] = calibration_curves(rows, cost, ["global"])
    assert [one.predicted for one in curve.bins] == [one.observed.value for one in curve.bins]
    assert curve.slope is None
    classes = Target(classes=("a", "b", "c"), name="kind")
    logits = torch.eye(3)[torch.arange(40) % 3] * 50
    sure = RowOutputs(
        ("a",), np.zeros(40, np.int64), np.arange(40), torch.arange(40) % 3, {"global": logits}
    )
    [curve] = calibration_curves(sure, classes, ["global"])
    assert (curve.mean_predicted, curve.mean_observed) == (pytest.approx(1.0), 1.0)
    assert calibration_figure(curve)["data"][0]["y"] == [0.0, 1.0]


# ------------------------------------------------------------------ from a run


def test_every_model_at_every_site(run: Path, clinics: Path) -> None:
    models = load_models(run)
    table = read_rows(clinics / "held.csv", "clinic")
    found = evaluate_rows(models, RowSelection(table), cross_site=True)
    matrix = found.details.cross_site
    assert matrix is not None
    assert matrix.models == ["global", "north", "south", "west"]
    assert matrix.sites == ["north", "south", "west"]
    assert matrix.rows == [50, 50, 50]
    scores = {
        (model, site): matrix.scores[i][j].value
        for i, model in enumerate(matrix.models)
        for j, site in enumerate(matrix.sites)
    }
    by_name = {site.name: site for site in found.decision.sites}
    for name in matrix.sites:
        assert scores[name, name] == by_name[name].scores["personal"].value
        assert scores["global", name] == by_name[name].scores["global"].value
    hidden = evaluate_rows(
        models, RowSelection(table), cross_site=True, min_count=51
    ).details.cross_site
    assert hidden is not None
    assert hidden.rows == [None] * 3
    assert all(math.isnan(one.value) for row in hidden.scores for one in row)


def test_evaluate_with_groups_and_a_page(
    run: Path, clinics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column that training did not have may group rows."""
    with open(clinics / "held.csv") as file:
        rows = list(csv.reader(file))
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*rows[0], "sex"])
        writer.writerows([*row, "f<b>" if i % 3 else "m"] for i, row in enumerate(rows[1:]))
    page = tmp_path / "page.html"
    command = ["evaluate", str(run), str(path), "--cross-site", "--by", "sex,age"]
    assert main([*command, "--report", str(page)]) == 0
    text = capsys.readouterr().out
    assert "model of (acc)" in text
    assert "calibration, personal: probability of ill = 1" in text
    html = page.read_text()
    assert "Every model at every site" in html
    assert "f&lt;b&gt;" in html
    assert "f<b>" not in html
    assert main([*command, "--report", str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*command[:3], "--by", "sez"]) == 2
    assert "no column 'sez' (did you mean 'sex'?)" in capsys.readouterr().err
    assert main([*command[:3], "--min-count", "0"]) == 2


def test_page_without_details_is_small(run: Path, clinics: Path) -> None:
    models = load_models(run)
    details = evaluate_rows(models, RowSelection(read_rows(clinics / "held.csv", "clinic"))).details
    assert details.cross_site is None
    assert "Groups of rows" not in render_evaluation(details)


def test_the_means_of_a_calibration_are_written_as_people_do() -> None:
    curve = Calibration(
        model="global", of="price", bins=[], mean_predicted=236_981.4, mean_observed=231_004.2
    )
    assert calibration_words(curve)[1] == "Mean prediction 236,981, observed 231,004."
