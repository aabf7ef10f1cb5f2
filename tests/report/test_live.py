"""The terminal view: courses, time left, files that grow and shrink, runs and comparisons."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from equipoise.cli import main
from equipoise.records.rounds import Bytes, MeanMinMax
from equipoise.records.run_dir import RunFolder
from equipoise.report import terminal_live
from equipoise.report.terminal import SPARKLINE_BLOCKS, format_duration, sparkline
from equipoise.report.terminal_live import RunFollower
from equipoise.utils.io import locked
from helpers_records import line, scores, write_run


def shown(tails: list[RunFollower], width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(terminal_live.render_runs(tails, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def log(t: int, acc: float) -> str:
    each = {"acc": acc, "loss": 1.0}
    train = {"epochs": MeanMinMax(2.0 * t, 1.0, 9.0)}
    test = scores(trained=each, personal=each)
    return line(t, test=test, train=train, bytes=Bytes(10**6, 2 * 10**6), seconds=2.0)


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    write_run(tmp_path, {"method": "page", "task": "t", "seed": 3, "rounds": 40})
    return tmp_path


def test_courses() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 40) == SPARKLINE_BLOCKS
    assert sparkline([5.0, 5.0], 40) == "▁▁"
    assert sparkline([], 40) == ""
    assert len(sparkline(range(1000), 40)) == 40


def test_durations() -> None:
    assert [format_duration(s) for s in (3, 61, 7260)] == ["3 s", "1 min 01 s", "2 h 01 min"]


def test_a_run_that_grows(growing: Path) -> None:
    tail = RunFollower(growing)
    assert "no round has ended yet" in shown([tail])
    with locked(growing), open(growing / "rounds.jsonl", "w") as file:
        file.write(log(1, 0.5) + log(2, 0.75) + '{"round": 3, "tr')  # the third is being written
        file.flush()
        text = shown([tail])
        assert "page on t, seed 3   round 2/40, 1 min 16 s left" in text  # 38 rounds of 2 s
        assert "75.00 %" in text
        assert "2.00 MB up, 4.00 MB down" in text
        file.seek(0, 2)
    RunFolder(growing).rounds.write(log(1, 0.5))  # a resume goes back to its checkpoint
    assert "round 1/40" in shown([tail])
    RunFolder(growing).summary.write("{}")
    assert "round 1/40, finished" in shown([tail])


def test_finished_run_shows_agents(page_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(page_run)]) == 0
    text = capsys.readouterr().out
    assert "page on synthetic, seed 0   round 8/8, finished" in text
    for word in ("global", "received", "epochs", "lr", "log_utility_local"):
        assert word in text


def test_comparison_has_a_line_a_run(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(comparison)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" on ")[0] for line in lines if "finished" in line] == [
        *("local", "local", "fedavg", "fedavg", "finetune", "finetune")
    ]


def test_terminal_ends_with_the_run(page_run: Path) -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    terminal_live.watch(page_run, 0.01, console)
    assert isinstance(console.file, io.StringIO)
    assert "finished" in console.file.getvalue()


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--every", "0"]) == 2
