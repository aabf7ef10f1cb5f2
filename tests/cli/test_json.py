"""``--json``: every command that prints a result prints one object, in its documented shape."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from equipoise.cli import COMMANDS, main

PAGE = Path(__file__).parents[2] / "docs" / "for-programs.md"
WITHOUT_RESULT = {"studio", "flower run", "flower node"}
"""They serve until they are stopped."""
IN_OTHER_TESTS = {"play", "flower certs", "flower register", "flower proxy", "flower rehearse"}

"""`play` needs a trained agent, the others need Flower."""


def all_commands(capsys) -> set[str]:
    """List the commands, with those below a command, such as ``data describe``."""
    names = set()
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        usage = capsys.readouterr().out
        found = re.search(r"^usage: equipoise \w+ \[-h\]\s+\{([a-z,-]+)\}\n", usage)
        is_group = found and name != "list"
        names |= {f"{name} {part}" for part in found[1].split(",")} if is_group else {name}
    return names - WITHOUT_RESULT


def documented_entries() -> dict[str, set[str]]:
    """Read the names of entries that the page promises, by command."""
    rows = re.findall(r"^\| `([\w -]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {command: set(re.findall(r"`(\w+)`", text)) for command, text in rows}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A finished run on sample tables; beside it the tables and two sites with their summaries."""
    folder = tmp_path_factory.mktemp("json")
    assert main(["data", "sample", str(folder / "clinics")]) == 0
    options = ["--target", "readmitted", "--rounds", "2", "--quiet"]
    data = ["--data", str(folder / "clinics")]
    assert main(["run", *data, *options, "--out", str(folder / "run")]) == 0
    rows = (folder / "clinics" / "north.csv").read_text()
    (folder / "newcomer.csv").write_text(rows)
    for name in ("north", "west"):
        (folder / name).mkdir()
        shutil.copy(folder / "clinics" / f"{name}.csv", folder / name / "train.csv")
        call = f"data summarise --data {folder / name} --target readmitted --client {name}"
        assert main([*call.split(), "--out", str(folder / f"{name}.json")]) == 0
    app = ["flower", "init", str(folder / "app"), "--task", "remote-tables"]
    assert main([*app, "--target", "readmitted", "--clients", "2"]) == 0
    return folder / "run"


DATA = "--data {all}/clinics --target readmitted"
CALLS = {
    "run": "--clients 4 --samples 40 --rounds 1 --out {tmp}/first",
    "compare": f"{DATA} --methods fedavg,local --seeds 1 --rounds 1 --out {{tmp}}/compared",
    "tune": f"{DATA} --methods fedavg --trials 1 --rounds 1 --out {{tmp}}/tune",
    "resume": "{all}/run",
    "watch": "{all}/run",
    "report": "{all}/run --out {tmp}/page.html",
    "choose": "{all}/run --refit none --out {tmp}/chosen",
    "adapt": "{all}/run {all}/newcomer.csv --out {tmp}/newcomer",
    "evaluate": "{all}/run {all}/clinics/north.csv --client north --by age --report {tmp}/e.html",
    "explain": "{all}/run --n-repeats 1",
    "predict": "{all}/run {all}/clinics/north.csv --client north --out {tmp}/p.csv",
    "export": "{all}/run --out {tmp}/model.safetensors",
    "certify": "{all}/run --samples 2",
    "train-policy": "--batches 1 --federations 1 --clients 2 --rounds 2 --out {tmp}/policy.json",
    "data describe": DATA,
    "data sample": "{tmp}/more",
    "data summarise": "--data {all}/west --target readmitted --client west --out {tmp}/west.json",
    "data merge": "{all}/north.json {all}/west.json --target readmitted --out {tmp}/merged.json",
    "config show": "{all}/run",
    "schema": "",
    "list": "methods",
    "flower init": "{tmp}/app --task remote-tables --target readmitted --clients 2",
    "flower doctor": "",
    "flower dry-run": "{all}/app --data {all}/north",
    "privacy plan": "--clients 100 --dp-noise 1 --rounds 4",
}
"""One call of every command: ``all`` is the folder of the fixture, ``tmp`` an empty one."""


def test_the_calls_are_those_of_all_commands(capsys):
    assert set(CALLS) == all_commands(capsys) - IN_OTHER_TESTS


@pytest.mark.parametrize("command", CALLS)
def test_a_command_prints_one_object_in_the_documented_shape(command, run_folder, tmp_path, capsys):
    text = CALLS[command].format(all=run_folder.parent, tmp=tmp_path)
    capsys.readouterr()
    expected = 1 if command == "flower doctor" else 0  # no SuperLink answers
    assert main([*command.split(), *text.split(), "--json"]) == expected, capsys.readouterr().err
    tree = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert isinstance(tree, dict)
    if command in ("config show", "schema"):
        return
    promised = documented_entries()["run" if command == "resume" else command]
    assert set(tree) <= promised
    assert tree


def test_every_command_is_on_the_page(capsys):
    assert all_commands(capsys) <= set(documented_entries())


def test_an_error_leaves_standard_output_empty(tmp_path, capsys):
    assert main(["run", "--method", "fedavgg", "--out", str(tmp_path / "x"), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("equipoise: ")
    assert len(printed.err.splitlines()) == 1


def test_scores_are_those_of_the_folder(run_folder, capsys):
    capsys.readouterr()
    assert main(["resume", str(run_folder), "--json", "--quiet"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["summary"] == json.loads((run_folder / "summary.json").read_text())
    assert tree["decision"] == json.loads((run_folder / "decision.json").read_text())


def test_a_comparison_is_resumed_as_json(run_folder, tmp_path, capsys):
    data = ["--data", str(run_folder.parent / "clinics"), "--target", "readmitted"]
    options = "--methods fedavg,local --seeds 1 --rounds 1".split()
    out = tmp_path / "compared"
    capsys.readouterr()
    assert main(["compare", *data, *options, "--out", str(out), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert set(first["methods"]) == {"fedavg", "local"}
    assert main(["resume", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
