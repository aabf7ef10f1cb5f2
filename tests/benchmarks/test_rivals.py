"""What controllers are compared with: baselines of one budget at their best setting, on seeds that
both have.
"""

from pathlib import Path

from benchmarks import rivals
from benchmarks.lab import Results
from benchmarks.lab.cell import percent
from benchmarks.lab.cells import Record
from benchmarks.studies import autopilot


def test_budgets_are_equal_and_searched_seeds_are_not_fresh() -> None:
    assert {len(settings) for settings in rivals.SETTINGS.values()} == {4}
    assert not {seed for seeds in rivals.SEARCHED.values() for seed in seeds} & set(rivals.SEEDS)


def test_fresh_seeds_follow_the_search_and_take_its_best_setting(tmp_path: Path) -> None:
    results = Results(tmp_path)
    search = [cell for cell in rivals.cells(results) if cell.axes["variant"].startswith("fedavgm#")]
    assert not [cell for cell in rivals.cells(results) if cell.axes["variant"] == "fedavgm"]
    figures = {
        "fedavgm#0": 50.0,
        "fedavgm#1": 80.0,
        "fedavgm#2": 60.0,
        "fedavgm#3": None,
    }  # the last one diverged
    for cell in search:
        value = figures[cell.axes["variant"]]
        results.add(Record(cell.name, dict(cell.axes), {}, {"global": value, "personal": value}))
    assert rivals.best(results, "fedavgm") == 1
    fresh = [cell for cell in rivals.cells(results) if cell.axes["variant"] == "fedavgm"]
    assert len(fresh) == len(rivals.COMPARED) * len(rivals.SEEDS)
    assert all(
        cell.options == {"method": "fedavgm", **rivals.SETTINGS["fedavgm"][1]} for cell in fresh
    )


def test_autopilot_is_counted_on_all_seeds_it_shares_with_both_fedavgs(tmp_path: Path) -> None:
    results = Results(tmp_path)
    figures = {  # by seed
        "fedavg": {100: 60.0, 101: 70.0, 102: 80.0},
        "fedavg-8": {100: 50.0, 101: 50.0, 102: 50.0, 103: 99.0},
        "autopilot": {100: 61.0, 101: 72.0, 102: 83.0, 104: 0.0},
    }
    for variant, by_seed in figures.items():
        for seed, value in by_seed.items():
            axes = {"family": "flights", "variant": variant, "seed": seed}
            results.add(Record(f"{variant}-{seed}", axes, {}, {"global": value, "personal": value}))
    row = [cell.strip() for cell in autopilot.against_fedavg(results)[2].split("|")[1:-1]]
    # Differences 1, 2, 3: their deviation is 1, and t of two degrees of freedom 4.303.
    assert row[:2] == ["flights", "3"]
    assert row[4] == "72.0 ± 11.0 / 72.0 ± 11.0"
    assert row[5:] == [f"+2.00 ± {4.303 / 3**0.5:.2f}"] * 2


def test_a_part_without_which_runs_diverge_says_so_and_has_no_mean(tmp_path: Path) -> None:
    results = Results(tmp_path)
    figures: dict[tuple[str, str], float | None] = {
        **{("heart-linear", "autopilot"): 80.0, ("flights", "autopilot"): 60.0},
        **{("heart-linear", "no-restraint"): 77.0, ("flights", "no-restraint"): None},
        **{("heart-linear", "no-decay"): 79.0, ("flights", "no-decay"): 58.0},
    }
    for (family, variant), value in figures.items():
        axes = {"family": family, "variant": variant, "seed": 100}
        results.add(Record(f"{family}-{variant}", axes, {}, {"global": value, "personal": value}))
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in autopilot.parts(results)[:-1]
    )
    found = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert set(found) == {"no-restraint", "no-decay"}
    assert [found["no-restraint"][name] for name in ("heart-linear", "flights", "mean")] == [
        "-3.0 / -3.0",
        "diverged",
        "diverged",
    ]
    assert [found["no-decay"][name] for name in ("heart-linear", "flights", "mean", "watch")] == [
        *("-1.0 / -1.0", "-2.0 / -2.0", "-1.5 / -1.5", "-"),
    ]
    assert percent({"acc": None}) is None
    assert percent({"acc": 0.98765}) == 98.77
