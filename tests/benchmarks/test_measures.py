"""What a study measures of a cell today is what its tables read: short versions of cells beside
committed ones.
"""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import Cell, Results
from benchmarks.lab.provenance import RESULTS, ROOT
from benchmarks.lab.study import find
from benchmarks.studies import synthetic

DATA = ROOT.parent / "shared" / "data"
SHORT: dict[str, Any] = {"rounds": 4, "eval_every": 2}
GONE = {
    "cpu_seconds",
    "newcomers_cpu_seconds",
    "tau",
}  # the runner keeps seconds, tables read a cell's axis tau


def short(study: str, name: str, folder: Path, **changed: Any) -> set[str]:
    """Measure a committed cell with some options changed; gives the names of committed figures that
    it lacks.
    """
    results = Results(RESULTS / study)
    record, declared = (
        results.records[name],
        {cell.name: cell for cell in find(study).cells(results)},
    )
    options = {**(declared[name].options if name in declared else record.config), **changed}
    found = find(study).measure(Cell(record.axes, options), folder)
    return set(record.result) - set(found) - GONE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learned-fedavg-seed11", "learned-paper-seed11"])
def test_table4(name: str, tmp_path: Path) -> None:
    assert not short("table4", name, tmp_path, clients=10, **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg-seed11", "local-seed11"])
def test_fedpolicy(name: str, tmp_path: Path) -> None:
    if not DATA.is_dir():
        pytest.skip(f"no data sets in {DATA}")
    assert not short("fedpolicy", f"M3-{name}", tmp_path, data=str(DATA), **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained-seed73", "full:0.8,none-seed73", "fedavg-seed73"])
def test_redistribution(name: str, tmp_path: Path) -> None:
    if not DATA.is_dir():
        pytest.skip(f"no data sets in {DATA}")
    assert not short("redistribution", f"M3-{name}", tmp_path, data=str(DATA), **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "seed500-cartpole-length-dqn",
        "seed500-cartpole-reversed-pfeddqn-rep",
        "seed500-cartpole-goal-fedpolicy",
    ],
)
def test_deep_rl(name: str, tmp_path: Path) -> None:
    assert not short("deep_rl", name, tmp_path, agents=3, **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coverage-garnet-T500", "fig4-importance-K20"])
def test_q(name: str, tmp_path: Path) -> None:
    assert not short("q", name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["speedup-agents64", "control-planted-q-representation-relative"])
def test_rep(name: str, tmp_path: Path) -> None:
    assert not short("rep", name, tmp_path)


def test_a_cell_of_q_is_repeated_to_the_digit(tmp_path: Path) -> None:
    """Nothing of the computation got lost on the way into the laboratory."""
    record = Results(RESULTS / "q").records["slope-fedsynq-K4-T1000"]
    assert find("q").measure(Cell(record.axes), tmp_path) == record.result


@pytest.mark.slow
def test_synthetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not short("synthetic", "default-fedavg-seed0", tmp_path / "run", **SHORT)
    monkeypatch.setattr(synthetic, "TRIALS", 1)
    assert not short(
        "synthetic", "search-fedavg", tmp_path / "search", rounds=2, eval_every=1, clients=5
    )
