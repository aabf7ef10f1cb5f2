"""The verdict of the page: by hand, for clients that gain, lose, and stay."""

import math
from pathlib import Path
from typing import Any

from equipoise.records.run_dir import RunFolder
from equipoise.report.client_gains import gains_sentence, gains_table
from equipoise.report.figures import MetricDisplay
from equipoise.report.html import data_name
from equipoise.report.run_data import RunData, RunGroup
from helpers_report import rendered

NAMES = {0: "north", 1: "south", 2: "west"}


def run(
    method: str, personal: list[float], received: list[float], head: str = "acc", **config: Any
) -> RunData:
    clients = {
        "client": [0.0, 1.0, 2.0],
        f"received_{head}": received,
        f"personal_{head}": personal,
    }
    found = RunData(
        RunFolder(Path("x")),
        {"method": method, "task": "tables", "seed": 0, **config},
        [],
        None,
        clients,
        {},
        NAMES,
    )
    vars(found)["metric"] = head
    return found


def test_who_gains_and_who_loses_against_what() -> None:
    """Over two seeds; ditto: 0.9, 0.5, 0.6 in the mean, against local 0.7, 0.6, 0.6 and received
    0.6, 0.4, 0.7.
    """
    ditto = RunGroup(
        "ditto",
        [
            run("ditto", [0.8, 0.5, 0.6], [0.6, 0.4, 0.7]),
            run("ditto", [1.0, 0.5, 0.6], [0.6, 0.4, 0.7]),
        ],
    )
    local = RunGroup("local", [run("local", [0.7, 0.6, 0.6], [0.1, 0.1, 0.1])])
    assert gains_sentence([local, ditto], MetricDisplay("acc")) == (
        "ditto has the best personal models (mean accuracy 66.7 %): "
        "against local training alone 1 of 3 clients gain (north, +20.0 points), "
        "1 loses (south, -10.0 points); "
        "against the model that they receive 2 of 3 clients gain (most: north, +30.0 points), "
        "1 loses (west, -10.0 points). Means over 2 seeds."
    )
    page = rendered(gains_table([local, ditto], MetricDisplay("acc")))
    assert "<details open>" in page
    assert (
        '<td>south</td><td data-value="50">50.0</td><td data-value="60">60.0</td>'
        '<td data-value="-10">-10.0</td>' in page
    )


def test_local_models_that_were_trained_beside_count_as_well() -> None:
    alone = run("ditto", [0.8, 0.5, 0.6], [0.8, 0.5, 0.6])
    alone.clients["local_acc"] = [0.7, 0.6, 0.6]
    assert (
        "against local training alone 1 of 3 clients gain (north, +10.0 points), 1 loses (south"
        in gains_sentence([RunGroup("ditto", [alone])], MetricDisplay("acc"))
    )


def test_an_error_is_better_when_it_is_smaller() -> None:
    groups = [
        RunGroup("a", [run("a", [0.3, 0.3, 0.3], [0.4, 0.2, 0.3], "loss")]),
        RunGroup("b", [run("b", [0.9, 0.9, 0.9], [0.9, 0.9, 0.9], "loss")]),
    ]
    text = gains_sentence(groups, MetricDisplay("loss"))
    assert text.startswith("a has the lowest personal scores (mean loss 0.3000), of one seed")
    assert "1 of 3 clients gain (north, -0.1000), 1 loses (south, +0.1000)" in text


def test_a_tie_has_no_winner() -> None:
    """Differences of 0.02 and -0.01 over two seeds: the interval contains 0."""
    groups = [
        RunGroup("a", [run("a", [0.70] * 3, []), run("a", [0.60] * 3, [])]),
        RunGroup("b", [run("b", [0.68] * 3, []), run("b", [0.61] * 3, [])]),
        RunGroup("c", [run("c", [0.20] * 3, []), run("c", [0.10] * 3, [])]),
    ]
    text = gains_sentence(groups, MetricDisplay("acc"))
    assert text.startswith("a, b tie over seeds; a has mean accuracy 65.0 %")


def test_where_nothing_is_known_nothing_is_said() -> None:
    nothing = RunGroup("a", [run("a", [], [])])
    assert gains_sentence([nothing], MetricDisplay("acc")) == ""
    assert gains_table([nothing], MetricDisplay("acc")) is None
    unknown = RunGroup("a", [run("a", [math.nan, 0.5, 0.5], [])])
    assert (
        gains_sentence([unknown], MetricDisplay("acc"))
        == "Personal models of a reach a mean accuracy of 50.0 %."
    )


def test_the_title_names_the_users_file() -> None:
    assert (
        data_name({"task": "tables", "data": "/somewhere/heart_disease.csv"}) == "heart_disease.csv"
    )
    assert data_name({"task": "synthetic"}) == "synthetic"
