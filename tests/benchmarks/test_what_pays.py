"""The page on what pays is what the committed results say."""

import pytest

from benchmarks import what_pays
from benchmarks.lab.cells import Record, Results
from benchmarks.what_pays import Question, Side, accuracy, compared


def test_the_page_is_current() -> None:
    assert what_pays.PAGE.read_text() == what_pays.page(), "run: python -m benchmarks.what_pays"


def test_a_difference_by_hand(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two federations with differences 1 and 3 (mean of 2 and 4): 2 ± 12.706 sqrt(2) / sqrt(2)."""
    monkeypatch.setattr(what_pays, "RESULTS", tmp_path)
    figures = {("a", 1): (11, 10), ("b", 1): (12, 10), ("b", 2): (14, 10), ("c", 1): (None, 10)}
    records = [
        Record(
            f"{place}-{name}-{seed}",
            {"place": place, "variant": name, "seed": seed},
            {},
            {"global": value},
        )
        for (place, seed), values in figures.items()
        for name, value in zip(("ours", "theirs"), values, strict=True)
    ]
    Results(tmp_path / "study").add(*records)
    sides = (Side(accuracy("global"), {"variant": name}) for name in ("ours", "theirs"))
    found = compared(Question("1", "", "", "study", *sides, "global", "place"))
    assert found is not None
    difference, federations, pairs = found
    assert (federations, pairs) == (2, 3)
    assert difference.mean == pytest.approx(2.0)
    assert difference.high - difference.mean == pytest.approx(12.706 * 2**0.5 / 2**0.5)
    assert difference.verdict == "tie"


def test_what_was_not_run_is_not_shown(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_pays, "RESULTS", tmp_path)
    assert what_pays.rows() == []
    assert "Nothing that was measured." in what_pays.page()
