"""Adaptive baselines get the same budget, and fresh seeds run at the setting that did best on development seeds."""

from pathlib import Path

from benchmarks import rivals
from benchmarks.lab import Results
from benchmarks.lab.cells import Record


def test_budgets_are_equal_and_searched_seeds_are_not_fresh() -> None:
    assert {len(settings) for settings in rivals.SETTINGS.values()} == {4}
    assert not {seed for seeds in rivals.SEARCHED.values() for seed in seeds} & set(rivals.SEEDS)


def test_fresh_seeds_follow_the_search_and_take_its_best_setting(tmp_path: Path) -> None:
    results = Results(tmp_path)
    search = [cell for cell in rivals.cells(results) if cell.axes["variant"].startswith("fedavgm#")]
    assert not [cell for cell in rivals.cells(results) if cell.axes["variant"] == "fedavgm"]
    figures = {"fedavgm#0": 50.0, "fedavgm#1": 80.0, "fedavgm#2": 60.0, "fedavgm#3": None}  # the last one diverged
    for cell in search:
        value = figures[cell.axes["variant"]]
        results.add(Record(cell.name, dict(cell.axes), {}, {"global": value, "personal": value}))
    assert rivals.best(results, "fedavgm") == 1
    fresh = [cell for cell in rivals.cells(results) if cell.axes["variant"] == "fedavgm"]
    assert len(fresh) == len(rivals.COMPARED) * len(rivals.SEEDS)
    assert all(cell.options == {"method": "fedavgm", **rivals.SETTINGS["fedavgm"][1]} for cell in fresh)
