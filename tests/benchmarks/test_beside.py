"""Speeds of two commits: each checkout's own round is measured, and pairs
of slices give the ratio.
"""

from types import SimpleNamespace

from benchmarks.lab.provenance import ROOT
from benchmarks.speed import engine, round_parts
from benchmarks.speed.beside import _summary
from benchmarks.speed.beside_worker import load_engine, make_round, seconds_of_rounds


def test_a_checkout_is_asked_by_the_stable_entry_or_as_it_was_before():
    now = SimpleNamespace(w1_round=lambda epochs, closed_form: ("now", epochs, closed_form))
    before = SimpleNamespace(
        data_of=lambda clients: clients, equipoise_round=lambda *given: ("before", *given)
    )
    assert make_round(now, 5, True) == ("now", 5, True)
    assert make_round(before, 1, False) == ("before", 100, 1, False)


def test_this_checkout_has_the_stable_entry():
    assert load_engine(ROOT) is engine
    run = make_round(engine, 1, True)
    ticks = iter(range(100))
    assert seconds_of_rounds(run, 0.0, lambda: next(ticks)) == [1, 1, 1]


def test_the_ratio_is_the_median_over_pairs():
    pairs = [(0.010, 0.020), (0.030, 0.030), (0.010, 0.015)]  # the second pair was disturbed
    assert _summary(pairs) == {"present ms": 10.0, "older ms": 20.0, "speed: present / older": 1.5}


def test_the_parts_of_a_round_have_the_names_of_the_code():
    for part, functions in round_parts.PARTS.items():
        for owner, name in functions:
            assert name in vars(owner), (part, owner, name)
