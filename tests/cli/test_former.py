"""Names that methods had once: one that is another method now gives that, and what is gone is refused in one line."""

import json
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.cli import main
from equipoise.core.errors import UsageError
from equipoise.methods import SAME, all_methods, find_method
from equipoise.methods.fedpolicy.joint import Joint
from helpers import largest_difference, small_task, timeless

SMALL = {"clients": 4, "features": 4, "classes": 3, "samples": 40, "rounds": 2, "epochs": 1}
TYPED = [text for name, value in SMALL.items() for text in (f"--{name}", str(value))]
OLD = {"method": "equilibrium", "control": "zero", "server_momentum": 0.97, "lr_low": 0.01}
"""Some of what an earlier version kept of a run of ``equilibrium``."""


def typed(*words: str) -> int:
    return main([*words, *TYPED, "--quiet"])


def as_it_was(folder: Path) -> None:
    """Let a run's config be that of an earlier version, and the run not yet at its end."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **OLD}))
    (folder / "summary.json").unlink()


def test_a_name_that_means_another_method_is_known_and_not_listed() -> None:
    for former, now in SAME.items():
        assert find_method(former) is find_method(now)
        assert find_method(former).name == now
        assert former not in all_methods()


def test_the_run_is_that_of_the_other_method_to_the_bit(tmp_path: Path) -> None:
    ours = eq.run(tmp_path / "python", method="equilibrium", **SMALL)
    theirs = eq.run(tmp_path / "autopilot", method="autopilot", **SMALL)
    assert typed("run", "--method", "equilibrium", "--out", str(tmp_path / "typed")) == 0
    assert ours.config == theirs.config
    assert ours.config["method"] == "autopilot"
    for run in (ours, eq.open(tmp_path / "typed")):
        assert largest_difference(dict(run.model().state_dict()), dict(theirs.model().state_dict())) == 0
        assert timeless(run.final) == timeless(theirs.final)


def test_a_comparison_takes_the_name_and_only_one_of_the_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    assert typed("compare", "--methods", "fedavg,equilibrium", "--seeds", "1", "--out", str(out)) == 0
    assert "| equilibrium |" in (out / "table.md").read_text()
    assert json.loads((out / "equilibrium" / "seed-0" / "config.json").read_text())["method"] == "autopilot"
    capsys.readouterr()
    assert typed("compare", "--methods", "autopilot,equilibrium", "--out", str(tmp_path / "twice")) == 2
    assert "must name each method once" in capsys.readouterr().err
    with pytest.raises(UsageError, match="'autopilot' is named twice"):
        eq.compare(methods=["equilibrium", "autopilot"], out=tmp_path / "twice", **SMALL)
    as_it_was(out / "equilibrium" / "seed-0")
    assert main(["resume", str(out)]) == 2
    assert "a run of the earlier equilibrium cannot be continued" in capsys.readouterr().err


def test_options_that_are_gone_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("run", "--method", "equilibrium", "--control", "learned", "--out", str(tmp_path / "run")) == 2
    told = capsys.readouterr().err
    assert "--control" in told
    assert told.count("\n") == 1
    with pytest.raises(UsageError, match="'equilibrium' is now the method autopilot, which has no option control"):
        eq.run(tmp_path / "run", method="equilibrium", control="learned", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_earlier_version_is_not_continued_as_another_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert typed("run", "--method", "equilibrium", "--out", str(out)) == 0
    as_it_was(out)
    capsys.readouterr()
    for again in (["resume", str(out)], ["run", "--method", "equilibrium", *TYPED, "--resume", "--out", str(out)]):
        assert main(again) == 2
        told = capsys.readouterr().err
        assert "a run of the earlier equilibrium cannot be continued" in told
        assert told.count("\n") == 1


def test_a_base_is_given_by_its_present_name() -> None:
    task = small_task()
    with pytest.raises(UsageError, match="no base 'equilibrium' any more: choose autopilot"):
        Joint(base="equilibrium").check(task, task.training)
