"""Figures over seeds: means, paired differences, the front, convergence, best by validation."""

from dataclasses import replace

import pytest

from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.scores import Evaluations, Scores
from equipoise.records.summary import About, convergence_round, summarise
from equipoise.report import tables
from equipoise.report.figures import write_pareto_svg
from equipoise.report.statistics import compare_to_best, paired_difference, pareto_front

COLUMN = tables.SummaryColumn("personal %", lambda s: s["acc"], 100.0)


def test_paired_difference_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t(2) = 4.303."""
    d = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (d.mean, d.high - d.mean) == pytest.approx((2.0, 4.303 / 3**0.5))
    assert d.verdict == "tie"
    assert paired_difference([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]).verdict == "behind"
    assert paired_difference([1.0], [2.0]) is None


def test_pairing_by_seed_finds_what_the_spread_hides():
    seeds = [{"a": 0.50, "b": 0.51}, {"a": 0.70, "b": 0.71}, {"a": 0.90, "b": 0.912}]
    by_method = {m: [{"acc": s[m]} for s in seeds] for m in ("a", "b")}
    best, others = compare_to_best(tables.scores_over_seeds(by_method, COLUMN))
    assert best == "b"
    assert others["a"].verdict == "behind"


def test_methods_without_the_figure_are_left_out():
    by_method = {"a": [{"acc": 0.5}, {"acc": 0.6}], "local": [{"acc": None}, {"acc": None}]}
    assert compare_to_best(tables.scores_over_seeds(by_method, COLUMN)) == ("a", {})


def test_the_front_keeps_what_nothing_beats_on_both_sides():
    points = {"a": (1.0, 5.0), "b": (2.0, 4.0), "c": (1.5, 3.0), "d": (2.0, 3.0), "e": (2.0, 4.0)}
    assert pareto_front(points) == ["a", "b", "e"]


def test_the_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    assert write_pareto_svg(
        {"a": (1.0, 2.0), "b": (2.0, 1.0)}, "title", tmp_path / "p.svg", "%", True
    )
    assert "<svg" in (tmp_path / "p.svg").read_text()


def _logs(values):
    return [
        RoundRecord(
            round=t,
            clients=1,
            seen=1,
            test=Evaluations(
                global_=Scores(), trained=Scores({"acc": v}), personal=Scores({"acc": v})
            ),
            val=Evaluations(global_=Scores(), personal=Scores({"acc": 1 - v})),
            train={},
            bytes=Bytes(1, 2),
            dropped=[],
            seconds=0.5,
        )
        for t, v in enumerate(values, 1)
    ]


def test_convergence_is_the_first_window_near_the_best_one():
    values = [0.1, 0.3, 0.5, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.902]
    # Means over five reach 0.9004 at round 10; the first within half a point is rounds 5 to 9.
    assert convergence_round(_logs(values), "personal", "acc", True) == 9
    assert convergence_round(_logs(values[:4]), "personal", "acc", True) is None
    assert convergence_round(_logs([1 - v for v in values]), "personal", "acc", False) == 9


def test_best_is_by_validation_not_by_test():
    summary = summarise(
        About(method="m", task="t", model="", seed=0), _logs([0.2, 0.9, 0.5]), "acc", True
    )
    assert summary.best_round == 1  # validation is highest where test is lowest in this log
    assert summary.best.personal.acc == 0.2
    assert summary.personal.acc == 0.5  # the last
    assert summary.bytes == Bytes(3, 6)


def test_without_validation_no_round_is_the_best():
    logs = [replace(log, val=None) for log in _logs([0.2, 0.9, 0.5])]
    summary = summarise(About(method="m", task="t", model="", seed=0), logs, "acc", True)
    assert summary.best_round is None
    assert summary.best.personal.acc == 0.5


def test_cells_write_themselves_for_people():
    cell = tables.Cell((50.0, 51.0), COLUMN)
    assert str(cell) == "50.50 ± 0.71"
    assert str(tables.Cell((), COLUMN)) == "—"
    assert str(tables.Cell((3.14159,), COLUMN)) == "3.14"
