"""The list of runs: states, progress and curves, read from the folders alone."""

import json
import os
import time

import pytest

from equipoise.studio.jobs import JobStore
from equipoise.studio.run_library import RunLibrary


@pytest.fixture
def library(tmp_path):
    return RunLibrary(tmp_path, JobStore(tmp_path / ".studio" / "jobs"))


def write_run(folder, rounds, done, *, finished=False, **config):
    folder.mkdir(parents=True, exist_ok=True)
    config = {"method": "fedavg", "task": "tables", "seed": 0, "rounds": rounds, **config}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        json.dumps({"round": k, "personal": {"acc": k / 10, "loss": 1.0}, "global": {"acc": 0.5}})
        for k in range(1, done + 1)
    ]
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if finished:
        (folder / "summary.json").write_text(json.dumps({"personal": {"acc": 0.876}}))


def test_states_and_scores(library, tmp_path):
    write_run(tmp_path / "done", 3, 3, finished=True, data="/x/heart.csv")
    write_run(tmp_path / "half", 4, 2)
    (tmp_path / "notes").mkdir()
    entries = {entry.name: entry for entry in library.entries()}
    assert set(entries) == {"done", "half"}
    assert (entries["done"].state, entries["done"].score) == ("finished", "87.6 %")
    assert entries["done"].data == "heart.csv"
    assert (entries["half"].state, entries["half"].score) == ("stopped", "")


def test_a_comparison_is_one_entry_with_all_its_runs(library, tmp_path):
    write_run(tmp_path / "both" / "fedavg" / "seed-0", 4, 4, finished=True)
    write_run(tmp_path / "both" / "local" / "seed-0", 4, 2, method="local")
    (entry,) = library.entries()
    assert (entry.kind, entry.state) == ("comparison", "stopped")
    assert entry.methods == ("fedavg", "local")
    cells = library.cells(tmp_path / "both")
    assert [cell.fraction for cell in cells] == [1.0, 0.5]
    assert cells[1].personal == ((1, 0.1), (2, 0.2))
    assert cells[1].last_score == "20.0 %"


def test_a_log_is_read_as_it_grows_and_half_lines_wait(library, tmp_path):
    write_run(tmp_path / "run", 4, 1)
    assert library.cells(tmp_path / "run")[0].rounds_done == 1
    with open(tmp_path / "run" / "rounds.jsonl", "a") as log:
        log.write('{"round": 2, "personal": {"acc"')
    assert library.cells(tmp_path / "run")[0].rounds_done == 1
    with open(tmp_path / "run" / "rounds.jsonl", "a") as log:
        log.write(': 0.25}}\n"damaged"\n')
    cell = library.cells(tmp_path / "run")[0]
    assert cell.personal == ((1, 0.1), (2, 0.25))
    write_run(tmp_path / "run", 4, 1)  # started again
    assert library.cells(tmp_path / "run")[0].rounds_done == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"personal": 3}'])
def test_damaged_files_do_not_end_the_list(library, tmp_path, text):
    write_run(tmp_path / "good", 2, 2, finished=True)
    write_run(tmp_path / "bad", 2, 2, finished=True)
    (tmp_path / "bad" / "summary.json").write_text(text)
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "config.json").write_text(text)
    names = {entry.name for entry in library.entries()}
    assert {"good", "bad"} <= names


def test_a_changed_file_is_read_again(library, tmp_path):
    write_run(tmp_path / "run", 2, 2, finished=True)
    library.entries()
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(json.dumps({"personal": {"acc": 0.5}}))
    os.utime(summary, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert library.entries()[0].score == "50.0 %"
