"""Every write, sync and rename of every command fails once, tears once, and is the process's last
once.

Afterwards the command goes on to the same result, or says in one line what is wrong, and what was
there is there.
"""

import json
import shutil

import pytest
from safetensors.torch import load_file

from equipoise.cli import main
from helpers import largest_difference
from helpers_disk import Died, Faulty, contents, on

SMALL = "--clients 3 --samples 30 --epochs 1 --batch-size 10 --executor stacked --quiet".split()
RUN = ["run", "--rounds", "3", "--checkpoint-every", "2", "--method", "scaffold", *SMALL]
COMPARE = ["compare", "--methods", "fedavg,local", "--seeds", "1", "--rounds", "2", *SMALL]
TUNE = ["tune", "--methods", "fedavg", "--trials", "2", "--rounds", "2", *SMALL]
WAYS = [pytest.param(how, marks=pytest.mark.slow) for how in ("full", "dies", "after")] + ["torn"]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures take longer than the runs that they show: a run has none here, and that of a
    comparison is empty.
    """
    monkeypatch.setattr("equipoise.report.html.try_write_report", lambda path: "")
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, file, **options: file.write_text("")
    )


def attempt(arguments, disk, capsys):
    """The exit code and what was printed as an error; ``None`` for a process that died."""
    capsys.readouterr()
    try:
        with on(disk):
            code = main(arguments)
    except Died:
        code = None
    return code, capsys.readouterr().err


def result(folder):
    """What a run's folder says, without times; of a comparison or search: of all runs in it, and
    its tables.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "rounds.jsonl":
            found[name] = [
                {**json.loads(line), "seconds": 0, "crc": ""}
                for line in path.read_text().splitlines()
            ]
        elif path.name in ("summary.json", "best.json", "clients.csv", "labels.csv", "config.json"):
            text = path.read_text()
            found[name] = {**json.loads(text), "seconds": 0} if path.suffix == ".json" else text
        elif path.parent.name == "models" and path.suffix == ".safetensors":
            found[name] = load_file(path)
    return found


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        if "models/" in name:
            assert one[name].keys() == other[name].keys()
            assert largest_difference(one[name], other[name]) == 0
        else:
            assert one[name] == other[name], name


def operations(arguments, capsys):
    disk = Faulty()
    code, errors = attempt(arguments, disk, capsys)
    assert code == 0, errors
    return disk.count


def one_line(code, errors):
    assert code in (0, 1, 2, None)
    if code:
        assert errors.startswith("equipoise: ")
        assert "Traceback" not in errors
        assert errors.count("\n") == 1


@pytest.mark.parametrize("how", WAYS)
def test_a_run_that_fails_at_any_operation_goes_on_to_the_same_result(how, tmp_path, capsys):
    whole = tmp_path / "whole"
    count = operations([*RUN, "--out", str(whole)], capsys)
    assert count > 30
    expected = result(whole)
    for n in range(1, count + 1):
        out = tmp_path / f"run-{n}"
        code, errors = attempt([*RUN, "--out", str(out)], Faulty(n, how), capsys)
        one_line(code, errors)
        again, errors = attempt([*RUN, "--out", str(out), "--resume"], Faulty(), capsys)
        assert again == 0, (n, errors)
        same(result(out), expected)
        shutil.rmtree(out)


@pytest.mark.parametrize("how", WAYS)
def test_a_resume_that_fails_at_any_operation_goes_on_to_the_same_result(how, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    count = operations([*RUN, "--out", str(whole)], capsys)
    attempt([*RUN, "--out", str(cut)], Faulty(count * 2 // 3, "dies"), capsys)
    assert (cut / "checkpoint" / "last.safetensors").exists()
    assert not (cut / "summary.json").exists()
    expected = result(whole)
    shutil.copytree(cut, tmp_path / "copy")
    count = operations(["resume", str(tmp_path / "copy"), "--quiet"], capsys)
    for n in range(1, count + 1):
        out = tmp_path / f"run-{n}"
        shutil.copytree(cut, out)
        one_line(*attempt(["resume", str(out), "--quiet"], Faulty(n, how), capsys))
        again, errors = attempt(["resume", str(out), "--quiet"], Faulty(), capsys)
        assert again == 0, (n, errors)
        same(result(out), expected)
        shutil.rmtree(out)


@pytest.mark.parametrize(
    ("command", "again"), [(COMPARE, ["--resume"]), (TUNE, [])], ids=["compare", "tune"]
)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.slow
def test_a_comparison_or_search_that_fails_at_any_operation_goes_on(
    command, again, how, tmp_path, capsys
):
    whole = tmp_path / "whole"
    count = operations([*command, "--out", str(whole)], capsys)
    expected = result(whole)
    for n in range(1, count + 1):
        out = tmp_path / f"out-{n}"
        one_line(*attempt([*command, "--out", str(out)], Faulty(n, how), capsys))
        code, errors = attempt([*command, "--out", str(out), *again], Faulty(), capsys)
        assert code == 0, (n, errors)
        same(result(out), expected)
        shutil.rmtree(out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    assert main(["run", "--rounds", "2", "--out", str(out), *SMALL]) == 0
    return out


@pytest.mark.parametrize(
    "command",
    [
        ["export"],
        ["export", "--client", "1", "--format", "torchscript"],
        ["report"],
        ["certify", "--quiet", "--samples", "2"],
    ],
    ids=lambda command: "-".join(command),
)
@pytest.mark.parametrize("how", WAYS)
def test_what_reads_a_run_loses_nothing_of_it(finished, command, how, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "copy")
    count = operations([*command, str(tmp_path / "copy")], capsys)
    assert count >= 4
    for n in range(1, count + 1):
        out = tmp_path / f"run-{n}"
        shutil.copytree(finished, out)
        before = contents(out)
        one_line(*attempt([*command, str(out)], Faulty(n, how), capsys))
        after = contents(out)
        for name, content in before.items():
            if name.name == "summary.json":
                assert json.loads(content).items() <= json.loads(after[name]).items()
            elif name.name not in ("report.html", "manifest.json"):
                assert after[name] == content, name
        code, errors = attempt([*command, str(out)], Faulty(), capsys)
        assert code == 0, errors
        shutil.rmtree(out)
