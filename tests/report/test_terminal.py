"""Tables and lines in a terminal: all columns at any width, and one name for one thing."""

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from equipoise.records.run_dir import RunFolder
from equipoise.report import tables
from equipoise.report.terminal import ProgressDisplay, print_results
from equipoise.report.terminal_live import RunFollower, render_runs
from helpers_records import record, scores

WIDTHS = (80, 140)


def on_screen(width: int) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(width=width, file=text), text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_result_shows_every_figure(comparison: Path, width: int) -> None:
    found = {
        method: [RunFolder(comparison / method / f"seed-{seed}").read_summary() for seed in (0, 1)]
        for method in ("local", "fedavg")
    }
    shown = tables.summary_columns(found["fedavg"][0])
    table = tables.summary_rows(found, shown)
    console, text = on_screen(width)
    print_results("title", table, shown, console)
    printed = text.getvalue()
    assert max(map(cell_len, printed.splitlines())) <= width
    assert {text.rstrip()[-1] for text in printed.splitlines()[1:]} <= set(
        "┓┃┩│┘"
    )  # no edge is cut off
    for cells in table.values():
        for cell in cells:
            assert not cell.column.on_screen or str(cell) in printed
    for column in shown:
        assert not column.on_screen or all(word in printed for word in column.title.split())
    assert "…" not in printed


@pytest.mark.parametrize("width", WIDTHS)
def test_watching_a_run_shows_every_column(page_run: Path, width: int) -> None:
    tail = RunFollower(page_run)
    console, text = on_screen(width)
    console.print(render_runs([tail], width))
    printed = text.getvalue()
    assert max(map(cell_len, printed.splitlines())) <= width
    for word in ("now", "lowest", "highest", "least", "most", "log_utility_local", "▁", "█"):
        assert word in printed
    assert f"{100 * tail.score_history('personal')[-1]:.2f} %" in printed
    assert "…" not in printed


@pytest.mark.parametrize("width", WIDTHS)
def test_watching_a_comparison_shows_every_column(comparison: Path, width: int) -> None:
    tails = [RunFollower(comparison / method / "seed-0") for method in ("local", "finetune")]
    console, text = on_screen(width)
    console.print(render_runs(tails, width))
    printed = text.getvalue()
    assert max(map(cell_len, printed.splitlines())) <= width
    for tail in tails:
        for part in (tail.title, tail.state, f"{100 * tail.score_history('personal')[-1]:.2f} %"):
            assert part in printed
    assert "█" in printed
    assert "…" not in printed


def test_progress_and_table_have_the_same_names(capsys: pytest.CaptureFixture[str]) -> None:
    each = {"acc": 0.5}
    with ProgressDisplay("title", 1, quiet=False) as display:
        display(record(1, test=scores(global_={"acc": 0.25}, trained=each, personal=each)))
    assert "round 1/1  global 25.00 %  personal 50.00 %" in capsys.readouterr().err


def test_clients_on_which_the_guard_acted_are_called_by_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    acted = record(1, shrunk={0: 0.1, 2: 0.5}, dropped=[1], rejected={1: "not finite"})
    with ProgressDisplay(
        "t", 1, quiet=False, read_names=lambda: {0: "north", 1: "west"}
    ) as display:
        display(acted)
    said = capsys.readouterr().err
    assert "left out clients west (not finite)" in said
    assert "limited the influence of clients north, 2 (weight" in said
