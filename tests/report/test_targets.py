"""Time, energy and bytes to a score: by hand, in the tables of a comparison, and on the page."""

import json

from equipoise.cli import main
from equipoise.records.cost_to_target import Spending, best, cost_to_reach, spendings, target_of
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.scores import Evaluations, Scores
from equipoise.report.tables import cost_to_target_markdown


def rounds(*scores, pace=10.0, clock=True, energy=True):
    """A round per score, each of which takes so many seconds, twice as many
    joules, and a megabyte.
    """
    return [
        RoundRecord(
            round=t,
            clients=2,
            seen=2,
            test=None
            if acc is None
            else Evaluations(global_=Scores({"acc": acc}), trained=Scores({"acc": acc})),
            train={},
            bytes=Bytes(400_000, 600_000),
            clock=pace * t if clock else None,
            energy=2 * pace if clock and energy else None,
            dropped=[],
            seconds=0.1,
        )
        for t, acc in enumerate(scores, start=1)
    ]


def test_what_was_spent_by_hand():
    run = rounds(0.1, None, 0.5, 0.4)
    assert list(spendings(run))[-1] == Spending(4, 40.0, 80.0, 4.0)
    assert best(run, "global", "acc", True) == 0.5
    assert cost_to_reach(run, "global", "acc", True, 0.45) == Spending(3, 30.0, 60.0, 3.0)
    assert cost_to_reach(run, "global", "acc", True, 0.6) is None
    assert cost_to_reach(run, "global", "acc", False, 0.2) == Spending(
        1, 10.0, 20.0, 1.0
    )  # of an error
    assert (target_of(0.8, 0.5, True), target_of(0.8, 0.5, False)) == (0.4, 1.6)
    assert list(spendings(rounds(0.1, clock=False))) == []


def test_the_table_is_against_fedavg_seed_by_seed():
    runs = {
        "ditto": [rounds(0.2, 0.5, pace=5.0), rounds(0.2, 0.3, pace=5.0)],
        "fedavg": [rounds(0.3, 0.5), rounds(0.8, 0.7)],
    }
    text = cost_to_target_markdown(runs)
    assert "to fedavg's scores" in text
    lines = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert lines["fedavg"][0] == "15 ± 7.07"  # 20 s with the first seed, 10 s with the second
    assert lines["ditto"][:3] == ["10 (1 of 2)", "0.02 (1 of 2)", "2 (1 of 2)"]


def test_nothing_without_a_clock_or_a_second_method():
    assert cost_to_target_markdown({"fedavg": [rounds(0.3)]}) == ""
    assert (
        cost_to_target_markdown(
            {"fedavg": [rounds(0.3, clock=False)], "ditto": [rounds(0.3, clock=False)]}
        )
        == ""
    )


def test_clients_that_are_elsewhere_tell_no_energy():
    runs = {name: [rounds(0.3, 0.5, energy=False)] for name in ("fedavg", "ditto")}
    assert "| ditto | 20 | - | 2 | 20 | - | 2 |" in cost_to_target_markdown(runs)


def test_a_comparison_as_a_user_types_it(tmp_path):
    out = tmp_path / "c"
    typed = [
        "--methods",
        "fedavg,fedper",
        "--model",
        "mlp",
        "--seeds",
        "1",
        "--rounds",
        "3",
        "--clients",
        "4",
    ]
    assert (
        main(
            [
                "compare",
                *typed,
                "--samples",
                "40",
                "--devices",
                "phones",
                "--out",
                str(out),
                "--quiet",
            ]
        )
        == 0
    )
    table = (out / "table.md").read_text()
    assert "clock s" in table
    assert "seconds to 95 %" in table
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "Score against time" in page
    assert "Score against energy" in page
    assert json.loads((out / "compare.json").read_text())["summaries"]["fedavg"][0]["clock"] > 0
