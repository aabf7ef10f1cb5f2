"""The laboratory: a grid is run once, in any order and number of processes, and nothing finished is
ever lost.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import Cell, Record, Results, Study, cells, command, grid, provenance, runner
from benchmarks.lab.study import FORMER_POLICY, find, former_policy
from benchmarks.lab.tables import paired, spread, table
from equipoise.experiment.runner import Interrupted

NAMES = [f"{method}-seed{seed}" for method in ("fedavg", "scaffold") for seed in (1, 2)]


def lab(results: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", "example", "--results", str(results), *arguments]


def example(results: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(["example", "--results", str(results), *arguments])
    return int(ended.value.code or 0)


def figures(folder: Path) -> dict[str, dict[str, Any]]:
    return {record.name: record.result for record in Results(folder / "example")}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial")
    assert example(folder, "--jobs", "1") == 0
    return folder


def test_every_cell_records_where_it_comes_from(serial: Path) -> None:
    records = list(Results(serial / "example"))
    assert [record.name for record in records] == NAMES
    for record in records:
        assert set(record.versions or ()) == {"python", "torch", "numpy", "equipoise"}
        assert set(record.machine or ()) == {"cores", "cpu"}
        assert record.commit is None or len(record.commit) == 40
        assert record.seconds
        assert record.started
        assert record.config["rounds"] == 5
        assert record.config["lr"] > 0  # a default: the whole configuration is kept
        assert record.config["method"] == record.axes["method"]


def test_page_is_written(serial: Path) -> None:
    page = (serial / "example" / "README.md").read_text()
    accuracies = [record["global"] for record in Results(serial / "example").where(method="fedavg")]
    assert f"| fedavg | {spread(accuracies)} |" in page
    assert "4 cells in `cells.jsonl`" in page


def test_a_finished_cell_is_never_run_again(serial: Path) -> None:
    before = (serial / "example" / "cells.jsonl").read_bytes()
    assert example(serial, "--jobs", "1") == 0
    assert (serial / "example" / "cells.jsonl").read_bytes() == before


@pytest.mark.slow
def test_parallel_is_serial(serial: Path, tmp_path: Path) -> None:
    subprocess.run(lab(tmp_path, "--jobs", "2"), check=True, timeout=300)
    assert figures(tmp_path) == figures(serial)


@pytest.mark.slow
def test_killed_and_resumed(serial: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        lab(tmp_path, "--jobs", "1"), stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline().startswith(NAMES[0])
        killed.send_signal(signal.SIGKILL)
    done = Results(tmp_path / "example").records
    assert NAMES[0] in done
    assert len(done) < len(NAMES)
    assert example(tmp_path, "--jobs", "1") == 0
    assert figures(tmp_path) == figures(serial)
    assert Results(tmp_path / "example").records[NAMES[0]] == done[NAMES[0]]


def test_only_and_list_and_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["example", "--results", str(tmp_path), "--list", "--only", "^scaffold.*2$"])
    assert capsys.readouterr().out == "scaffold-seed2\n"
    assert example(tmp_path, "--jobs", "1", "--minutes", "0") == 0
    assert "4 cells are left: time is up" in capsys.readouterr().out
    assert not (tmp_path / "example").exists()


def made(name: str, done: Results | None = None, **result: Any) -> Record:
    return Record(name, {"name": name}, {}, result)


def test_cells_may_follow_from_others_and_one_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def declared(results: Results) -> list[Cell]:
        first = grid(step=["search"], number=(1, 2, 3))
        best = max((record["score"] for record in results.where(step="search")), default=None)
        return first if best is None else [*first, Cell({"step": "use", "best": best})]

    def measure(cell: Cell, folder: Path) -> dict[str, Any]:
        if cell.axes.get("number") == 2:
            raise ValueError("no such number")
        return {"score": cell.axes.get("number", 0)}

    study = Study("follow", declared, measure, {})
    monkeypatch.setattr(runner, "find", lambda name: study)
    results = Results(tmp_path / "follow")
    assert not runner.execute(study, results, "", 1, 1.0, None)
    assert list(results.records) == ["search-number1", "search-number3", "use-best3"]
    assert "search-number2 failed: ValueError: no such number" in capsys.readouterr().out
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_signal_that_a_run_takes_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*about: Any) -> Record:
        raise Interrupted

    monkeypatch.setattr(runner, "measure", interrupted)
    assert example(tmp_path, "--jobs", "1") == 1
    assert capsys.readouterr().out == f"{NAMES[0]} was stopped: the same command goes on\n"


def test_two_runners_lose_nothing_and_large_files_are_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Results(tmp_path), Results(tmp_path)
    one.add(made("b", x=1))
    other.add(made("a", x=2))
    assert [record.name for record in Results(tmp_path)] == ["a", "b"]
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert [json.loads(line)["commit"] for line in lines] == [None, None]
    monkeypatch.setattr(cells, "LARGEST", 10)
    one.add(made("c", x=3))
    assert [path.name for path in tmp_path.iterdir()] == ["cells.jsonl.gz"]
    packed = (tmp_path / "cells.jsonl.gz").read_bytes()
    one.add()
    assert (tmp_path / "cells.jsonl.gz").read_bytes() == packed
    assert [record["x"] for record in Results(tmp_path)] == [2, 1, 3]


def test_grid() -> None:
    found = grid(lambda a, seed: None if (a, seed) == ("y", 2) else {"a": a}, a="xy", seed=(1, 2))
    assert [cell.name for cell in found] == ["x-seed1", "x-seed2", "y-seed1"]
    assert found[0].options == {"a": "x"}


def test_a_record_is_read_by_result_then_axes_then_config() -> None:
    record = replace(made("a", x=1), axes={"x": 2, "y": 3}, config={"y": 4, "z": 5})
    assert [record[name] for name in "xyz"] == [1, 3, 5]
    with pytest.raises(KeyError):
        record["none"]


def test_tables() -> None:
    assert table(["a", "b"], [[1, None]]) == ["| a | b |", "|---|---|", "| 1 | - |", ""]
    assert spread([1.0, 3.0, None]) == "2.0 ± 1.4"
    assert spread([2.0], 0) == "2"
    assert spread([]) == "-"
    ours, theirs = (
        [replace(made("a", x=x), axes={"seed": seed}) for seed, x in group] for group in PAIRS
    )
    assert (
        paired(ours, theirs, "x", 2) == "+1.50 ± 6.35"
    )  # t = 12.706, deviation sqrt(1/2), two pairs
    assert paired(ours, theirs[:1], "x", 2) is None


def test_a_page_counts_cells_of_a_policy_that_was_removed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(replace(made("a"), config={"policy": "full:0.8,none"}))
    assert former_policy(results) == []
    results.add(replace(made("b"), config={"policy": FORMER_POLICY}))
    (line,) = former_policy(results)
    assert f"`{FORMER_POLICY}`, since removed: 1." in line


def test_cells_computed_anew_are_compared_with_the_committed_ones(tmp_path: Path) -> None:
    ours, committed = Results(tmp_path / "ours"), Results(tmp_path / "committed")
    committed.add(made("a", x=1.0), made("b", x=1.0, y=2), made("c", curve=[1, 2]))
    ours.add(made("a", x=1.0), made("b", x=1.5, y=2), made("c", curve=[1, 3]), made("d", x=1))
    assert command.differences(ours, committed) == [
        "a: the committed figures",
        "b: differs (x 1.0 -> 1.5)",
        "c: differs (in its curves)",
    ]


def test_a_figure_that_is_no_longer_kept_is_no_difference(tmp_path: Path) -> None:
    ours, committed = Results(tmp_path / "ours"), Results(tmp_path / "committed")
    committed.add(made("a", x=1.0, K=20))
    ours.add(made("a", x=1.0))
    assert command.differences(ours, committed) == ["a: the committed figures"]


def test_a_difference_says_where_the_committed_cell_was_computed(tmp_path: Path) -> None:
    ours, committed = Results(tmp_path / "ours"), Results(tmp_path / "committed")
    committed.add(replace(made("a", x=1.0), machine={"cores": 2, "cpu": "AMD EPYC"}))
    ours.add(replace(made("a", x=1.5), machine={"cores": 2, "cpu": "Intel Xeon"}))
    assert command.differences(ours, committed) == [
        "a: differs (x 1.0 -> 1.5); the committed cell was computed on AMD EPYC, whose rounding "
        "may differ"
    ]


PAIRS = (((1, 2.0), (2, 4.0), (3, 9.0)), ((1, 1.0), (2, 2.0)))


def test_a_measurement_has_its_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    provenance.measured("speed", {"ms": 1.5})
    kept = json.loads((tmp_path / "speed.json").read_text())
    assert list(kept) == ["command", "commit", "dirty", "versions", "machine", "load", "ms"]


def test_the_example_is_a_short_declaration() -> None:
    assert find("example").name == "example"
    assert (
        len((Path(runner.__file__).parents[1] / "studies" / "example.py").read_text().splitlines())
        <= 55
    )
