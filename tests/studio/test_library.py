"""The list of runs: states, progress and curves, read from the folders alone."""

import json

import pytest

from equipoise.studio.jobs import JobStore
from equipoise.studio.run_library import RunLibrary
from helpers_records import NO_SUMMARY, line, scores, write_run


@pytest.fixture
def library(tmp_path):
    return RunLibrary(tmp_path, JobStore(tmp_path / ".studio" / "jobs"))


def write(folder, rounds, done, *, finished=False, **config):
    config = {"method": "fedavg", "task": "tables", "seed": 0, "rounds": rounds, **config}
    lines = "".join(
        line(k, test=scores(personal={"acc": k / 10}, global_={"acc": 0.5}))
        for k in range(1, done + 1)
    )
    contents = {}
    if finished:
        contents["summary_json"] = json.dumps({**NO_SUMMARY, "personal": {"acc": 0.876}})
    write_run(folder, config, lines, **contents)


def test_states_and_scores(library, tmp_path):
    write(tmp_path / "done", 3, 3, finished=True, data="/x/heart.csv")
    write(tmp_path / "half", 4, 2)
    (tmp_path / "notes").mkdir()
    entries = {entry.name: entry for entry in library.entries()}
    assert set(entries) == {"done", "half"}
    assert (entries["done"].state, entries["done"].score) == ("finished", "87.6 %")
    assert entries["done"].data == "heart.csv"
    assert (entries["half"].state, entries["half"].score) == ("stopped", "")


def test_a_comparison_is_one_entry_with_all_its_runs(library, tmp_path):
    write(tmp_path / "both" / "fedavg" / "seed-0", 4, 4, finished=True)
    write(tmp_path / "both" / "local" / "seed-0", 4, 2, method="local")
    (entry,) = library.entries()
    assert (entry.kind, entry.state) == ("comparison", "stopped")
    assert entry.methods == ("fedavg", "local")
    cells = library.cells(tmp_path / "both")
    assert [cell.fraction for cell in cells] == [1.0, 0.5]
    assert cells[1].personal == ((1, 0.1), (2, 0.2))
    assert cells[1].last_score == "20.0 %"
    write(tmp_path / "both" / "local" / "seed-0", 4, 4, method="local", finished=True)
    assert library.entries()[0].state == "stopped"  # more runs may have been asked for
    (tmp_path / "both" / "report.html").touch()
    assert library.entries()[0].state == "finished"


def test_a_method_with_two_models_has_two_names_in_a_comparison(library, tmp_path):
    for label in ("autopilot", "autopilot@linear"):
        write(tmp_path / "both" / label / "seed-0", 4, 4, method="autopilot", finished=True)
    (entry,) = library.entries()
    assert entry.methods == ("autopilot", "autopilot@linear")
    cells = library.cells(tmp_path / "both")
    assert [cell.method for cell in cells] == ["autopilot", "autopilot@linear"]


def test_a_log_is_read_as_it_grows(library, tmp_path):
    write(tmp_path / "run", 4, 1)
    assert library.cells(tmp_path / "run")[0].rounds_done == 1
    write(tmp_path / "run", 4, 3)
    assert library.cells(tmp_path / "run")[0].personal == ((1, 0.1), (2, 0.2), (3, 0.3))
    write(tmp_path / "run", 4, 1)  # started again
    assert library.cells(tmp_path / "run")[0].rounds_done == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '{"personal": 3}'])
@pytest.mark.parametrize("file", ["summary.json", "config.json", "rounds.jsonl", "manifest.json"])
def test_damaged_files_do_not_end_the_list_and_show_no_score(library, tmp_path, file, text):
    write(tmp_path / "good", 2, 2, finished=True)
    write(tmp_path / "bad", 2, 2, finished=True)
    (tmp_path / "bad" / file).write_text(text)
    entries = {entry.name: entry for entry in library.entries()}
    assert entries["good"].score == "87.6 %"
    if file != "rounds.jsonl":
        assert entries["bad"].score == ""
    library.cells(tmp_path / "bad")


def test_a_changed_run_is_read_again(library, tmp_path):
    write(tmp_path / "run", 2, 2)
    assert library.entries()[0].state == "stopped"
    write(tmp_path / "run", 2, 2, finished=True)
    assert library.entries()[0].state == "finished"
