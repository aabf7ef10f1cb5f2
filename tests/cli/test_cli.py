"""The command line as a user types it."""

import csv
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import equipoise
from equipoise.cli import COMMANDS, main
from equipoise.experiment import compare as comparing
from equipoise.methods import all_methods, find_method
from equipoise.methods.families import Family, by_family
from equipoise.records.codec import encode
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.option_registry import options
from equipoise.tasks import all_tasks, find_task
from helpers_disk import Died
from helpers_records import unfinish

SMALL = ["--clients", "5", "--samples", "50", "--rounds", "6", "--epochs", "1"]


def equipoise_cli(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def help_of(capsys, *arguments):
    """Return a help text, without starting a process."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert not end.value.code
    return capsys.readouterr().out


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_run_is_a_folder(tmp_path):
    out = tmp_path / "x"
    done = equipoise_cli(
        "run", "--method", "fedavg", "--task", "synthetic", "--out", str(out), *SMALL
    )
    assert done.returncode == 0, done.stderr
    assert "round 6/6" in done.stderr  # plain lines, since this is not a terminal
    assert "personal" in done.stdout
    assert str(out) in done.stdout
    logs = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [log["round"] for log in logs] == list(range(1, 7))
    summary = json.loads((out / "summary.json").read_text())
    for key in (
        "method task seed rounds global trained personal received best_round bytes seconds".split()
    ):
        assert key in summary
    assert {"acc", "loss"} <= summary["global"].keys()
    assert {"acc", "std", "p10"} <= summary["trained"].keys() & summary["personal"].keys()
    assert summary["bytes"]["up"] == summary["bytes"]["down"] == 6 * 5 * (30 * 30 + 30) * 4
    assert summary["best_round"] in range(1, 7)
    whole = load_file(out / "models" / "global.safetensors")
    personal = load_file(out / "models" / "personal.safetensors")
    assert personal["client_ids"].tolist() == list(range(5))
    assert personal["weight"].shape == (5, *whole["weight"].shape)
    clients = read_csv(out / "clients.csv")
    assert len(clients) == 5
    assert int(clients[0]["bytes_up"]) == 6 * (30 * 30 + 30) * 4


def test_config_json_repeats_the_run(tmp_path):
    assert (
        main(
            [
                "run",
                "--out",
                str(tmp_path / "a"),
                "--quiet",
                "--lr",
                "0.03",
                "--model",
                "mlp",
                *SMALL,
            ]
        )
        == 0
    )
    assert (
        main(
            [
                "run",
                "--out",
                str(tmp_path / "b"),
                "--quiet",
                "--config",
                str(tmp_path / "a" / "config.json"),
            ]
        )
        == 0
    )
    a, b = (load_file(tmp_path / d / "models" / "global.safetensors") for d in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_toml_config_with_the_command_line_on_top(tmp_path):
    (tmp_path / "c.toml").write_text(
        'method = "finetune"\nrounds = 2\nclients = 4\nsamples = 40\n'
        "batch-size = 7\ntune_lr = 0.5\nepochs = 1\n"
    )
    config = ["--config", str(tmp_path / "c.toml")]
    assert main(["run", *config, "--rounds", "3", "--out", str(tmp_path / "x"), "--quiet"]) == 0
    written = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (written["method"], written["rounds"], written["batch_size"], written["tune_lr"]) == (
        "finetune",
        3,
        7,
        0.5,
    )


def test_python_gives_the_same_as_the_command_line(tmp_path):
    equipoise.run(tmp_path / "p", method="fedavg", clients=5, samples=50, rounds=6, epochs=1)
    summary = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert main(["run", "--out", str(tmp_path / "c"), "--quiet", *SMALL]) == 0
    other = json.loads((tmp_path / "c" / "summary.json").read_text())
    assert {**encode(summary), "seconds": 0} == {**other, "seconds": 0}


def test_compare_makes_tables_and_resumes(tmp_path, capsys):
    out = tmp_path / "cmp"
    command = [
        "compare",
        "--methods",
        "fedavg,local,finetune",
        "--seeds",
        "2",
        "--out",
        str(out),
        *SMALL,
    ]
    assert main(command) == 0
    assert "finetune" in capsys.readouterr().out
    rows = read_csv(out / "table.csv")
    assert [row["method"] for row in rows] == ["fedavg", "local", "finetune"]
    assert rows[1]["global % mean"] == ""  # Local has no global model
    both = [
        json.loads((out / "fedavg" / f"seed-{s}" / "summary.json").read_text())["personal"]["acc"]
        for s in (0, 1)
    ]
    assert float(rows[0]["personal % mean"]) == pytest.approx(50 * sum(both), rel=1e-5)
    assert float(rows[0]["personal % std"]) == pytest.approx(
        100 * abs(both[0] - both[1]) / 2**0.5, rel=1e-4
    )
    assert "± " in (out / "table.md").read_text()
    assert set(json.loads((out / "compare.json").read_text())["summaries"]) == {
        "fedavg",
        "local",
        "finetune",
    }
    assert main([*command, "--quiet"]) == 2  # exists already
    before = (out / "local" / "seed-1" / "summary.json").stat().st_mtime_ns
    unfinish(out / "fedavg" / "seed-1")
    assert main([*command, "--resume", "--quiet"]) == 0
    assert (out / "local" / "seed-1" / "summary.json").stat().st_mtime_ns == before
    assert read_csv(out / "table.csv")[0]["personal % mean"] == rows[0]["personal % mean"]


def test_all_methods_means_those_that_suit(tmp_path, capsys):
    out = tmp_path / "cmp"
    command = [
        "compare",
        "--methods",
        "all",
        "--seeds",
        "1",
        "--out",
        str(out),
        *SMALL,
        "--rounds",
        "1",
        "--quiet",
    ]
    assert main(command) == 0
    methods = {row["method"] for row in read_csv(out / "table.csv")}
    assert {"fedavg", "local", "finetune", "scaffold"} <= methods
    assert "fedper" not in methods  # the default model is one layer
    assert "left out: fedper" in capsys.readouterr().err


def test_the_method_of_the_guide_runs(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "tutorials" / "own-method.md").read_text()
    (tmp_path / "cautious.py").write_text(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1])
    run = [
        "run",
        "--method",
        f"{tmp_path / 'cautious.py'}:Cautious",
        "--sharpness",
        "3",
        "--quiet",
        *SMALL,
    ]
    for executor in ("stacked", "loop"):
        assert main([*run, "--executor", executor, "--out", str(tmp_path / executor)]) == 0
    one, other = (
        json.loads((tmp_path / e / "summary.json").read_text()) for e in ("stacked", "loop")
    )
    assert one["personal"]["acc"] == pytest.approx(other["personal"]["acc"], abs=0.02)


def test_help_shows_the_usual_options_and_those_of_a_named_method_and_task(capsys):
    short = help_of(capsys, "run", "--help")
    assert {"--method", "--rounds", "--participation", "--epochs", "--out", "--help-all"} <= shown(
        short
    )
    assert not {"--weight-decay", "--dp-clip", "--checkpoint-every", "--clients"} & shown(short)
    assert {"--data", "--target", "--client-column", "--event", "--folds"} <= shown(short)
    named = help_of(capsys, "run", "--method", "finetune", "--task", "synthetic", "--help")
    assert {"--tune-lr", "--tune-epochs", "--clients", "--beta"} <= shown(named)
    assert shown(named) - shown(short) == {"--tune-lr", "--tune-epochs", *of_task("synthetic")}
    assert "equipoise run --task tables --help" in " ".join(short.split())
    assert "--task tables" not in named


def test_help_all_shows_every_option(capsys):
    text = help_of(capsys, "run", "--method", "finetune", "--help-all")
    known = options(find_method("finetune"), find_task("synthetic"))
    assert {f"--{name.replace('_', '-')}" for name in known} <= shown(text)
    text = help_of(capsys, "run", "--method", "fedavg", "--help-all")
    assert "--tune-lr" not in shown(text)
    text = help_of(capsys, "compare", "--methods", "fedprox,ditto", "--help-all")
    assert {"--mu", "--lam", "--dp-noise"} <= shown(text)


def test_help_of_compare_names_the_methods_of_tables_too(capsys):
    tables = ",".join(find_task("tables").first_methods)
    synthetic = ",".join(find_task("synthetic").first_methods)
    assert tables != synthetic
    text = "".join(help_of(capsys, "compare", "--help").split())
    assert f"(default:{tables}with--data,{synthetic}ontasksynthetic)" in text
    named = "".join(help_of(capsys, "compare", "--task", "tables", "--help").split())
    assert f"(default:{tables})" in named


def shown(help):
    return set(re.findall(r"^  (?:-h, )?(--[\w.-]+)", help, re.MULTILINE))


def of_task(name):
    known = options(find_method("finetune"), find_task(name))
    return {f"--{item.name.replace('_', '-')}" for item in known.values() if item.owner == "task"}


@pytest.mark.parametrize(
    "asked", [[], ["--help"], ["--version"], ["--hepl"], ["rnu"], ["report", "--help"]]
)
def test_first_contact_loads_no_pytorch(asked):
    code = (
        "import sys; from equipoise.cli import main\n"
        f"try: main({asked})\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_has_a_line_for_every_command():
    done = equipoise_cli()
    assert done.returncode == 0
    assert done.stdout == equipoise_cli("--help").stdout
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(COMMANDS)
    for command in COMMANDS.values():
        module = importlib.import_module(f"equipoise.cli.{command.module}")
        assert callable(getattr(module, command.function))
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("what", ["tasks", "models"])
def test_list_names_and_explains(what, capsys):
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
    assert any(line.split()[0] == {"tasks": "synthetic", "models": "mlp"}[what] for line in lines)


def test_methods_are_listed_by_family(capsys):
    assert main(["list", "methods"]) == 0
    text = capsys.readouterr().out
    families = by_family()
    assert Family.OTHER not in families  # every method that ships names its family
    assert sorted(name for members in families.values() for name in members) == list(all_methods())
    for family, members in families.items():
        part = text.partition(f"{family.title}: ")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines()[1:]] == list(members)


BAD = [
    (["run", "--method", "fedvag"], "unknown method 'fedvag' (did you mean 'fedavg'"),
    (["run", "--task", "sinthetic"], "unknown task 'sinthetic' (did you mean 'synthetic'"),
    (["run", "--model", "mpl"], "unknown model 'mpl' for task 'synthetic' (did you mean 'mlp'"),
    (["run", "--participaton", "0.5"], "(did you mean '--participation'"),
    (["run", "--rounds", "0"], "rounds is 0: must be a whole number of at least 1"),
    (["run", "--rounds", "many"], "rounds is 'many': must be a whole number"),
    (["run", "--lr", "nan"], "lr is nan"),
    (["run", "--lr", "-1"], "lr is -1.0"),
    (["run", "--momentum", "1"], "momentum is 1.0"),
    (["run", "--participation", "0"], "participation is 0.0: must be a number in (0, 1]"),
    (["run", "--participation", "1.5"], "participation is 1.5"),
    (["run", "--executor", "fast"], "executor is 'fast': must be one of auto, stacked, loop"),
    (["run", "--clients", "0"], "clients is 0"),
    (["run", "--config", "nowhere.toml"], "no config file 'nowhere.toml'"),
    (["run", "--method", "nowhere.py:Mine"], "no file 'nowhere.py'"),
    (["run", "--method", "math:Mine"], "no class 'Mine'"),
    (["run", "--method", "finetune", "--tune-epochs", "0"], "tune_epochs"),
    (["compare", "--methods", "fedavg,fedavg"], "each method once"),
    (["compare", "--seeds", "0"], "seeds is 0"),
    (["resume", "nowhere"], "'nowhere' is not a run folder"),
    (["rnu"], "unknown command 'rnu' (did you mean 'run'"),
    (["list", "things"], "things"),
    (["list"], "what"),
    (["list", "methods", "more"], "unknown argument 'more'"),
    (["report"], "DIR"),
    (["report", "nowhere"], "'nowhere' is not a folder"),
    (["report", ".", "--out"], "--out: expected one argument"),
    (["report", ".", "--oot", "x"], "(did you mean '--out'"),
    (["report", ".", "--out", "."], "'.' is a folder: --out must name a file"),
    (["report", ".", "--out", "nowhere/x.html"], "there is no folder 'nowhere'"),
    (["report", "."], "holds no run"),
    (["watch"], "folder"),
    (["watch", "nowhere"], "'nowhere' holds no run"),
    (["watch", ".", "--every", "often"], "invalid float value: 'often'"),
    *(
        (["watch", ".", "--every", bad], "must be a number of seconds above 0")
        for bad in ("0", "-1", "nan", "inf")
    ),
    (["export"], "folder"),
    (["export", "nowhere"], "'nowhere' is not a run folder"),
    (["export", ".", "--client", "me"], "no client 'me'"),
    (["export", ".", "--format", "onxx"], "unknown format 'onxx'"),
    (["export", ".", "--out", "."], "is a folder"),
    (["data"], "command"),
    (["data", "descrbe"], "descrbe"),
    (["data", "describe", "--task", "fmnst"], "unknown task 'fmnst' (did you mean 'fmnist'"),
    (["data", "describe", "--clients", "few"], "clients is 'few': must be a whole number"),
    (["data", "describe", "--jsn"], "(did you mean '--json'"),
    (["data", "describe", "--val-share", "2"], "val_share is 2"),
    (["data", "describe", "--task", "two-state"], "has environments, not data"),
    (["resume", "nowhere", "--log", "x"], "'nowhere' is not a run folder"),
    (["run", "--log", "tensorbord"], "unknown tracker 'tensorbord' (did you mean 'tensorboard'"),
    (["certify", "nowhere"], "'nowhere' is not a run folder"),
    (["--hepl"], "unknown argument '--hepl'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # nothing was made


def test_an_existing_folder_is_refused_kept_resumed_or_replaced(tmp_path, capsys):
    out = tmp_path / "x"
    run = ["run", "--out", str(out), "--quiet", *SMALL]
    assert main(run) == 0
    before = (out / "summary.json").read_bytes()
    assert main(run) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (out / "summary.json").read_bytes() == before
    assert main([*run, "--resume"]) == 0
    assert main([*run, "--resume", "--lr", "0.5"]) == 2
    assert "other options" in capsys.readouterr().err
    assert main([*run, "--overwrite", "--lr", "0.5"]) == 0
    assert (out / "summary.json").read_bytes() != before


def test_overwrite_refuses_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["run", "--out", str(tmp_path), "--overwrite", "--quiet", *SMALL]) == 2
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_bad_options_do_not_cost_an_existing_run(tmp_path):
    out = tmp_path / "x"
    assert main(["run", "--out", str(out), "--quiet", *SMALL]) == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert main(["run", "--out", str(out), "--overwrite", "--rounds", "0"]) == 2
    assert main(["run", "--out", str(out), "--overwrite", "--method", "fedavgg"]) == 2
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "text", ["rounds = [", "[section]\nrounds = 3", 'rounds = "three"', "rounds = 3.5", "rouds = 3"]
)
def test_a_bad_config_file_is_refused(tmp_path, capsys, text):
    (tmp_path / "c.toml").write_text(text)
    assert main(["run", "--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_method_of_ones_own_runs_from_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from equipoise.core import Method, option\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        "    name: ClassVar[str] = 'mine'\n"
        "    strength: float = option(0.5, 'how much')\n"
    )
    out = tmp_path / "x"
    run = [
        "run",
        "--method",
        f"{tmp_path / 'mine.py'}:Mine",
        "--strength",
        "0.7",
        "--out",
        str(out),
        "--quiet",
        *SMALL,
    ]
    assert main(run) == 0
    assert json.loads((out / "config.json").read_text())["strength"] == 0.7


def test_patience_stops_early_and_says_so(tmp_path):
    out = tmp_path / "x"
    run = [
        "run",
        "--out",
        str(out),
        "--quiet",
        "--patience",
        "2",
        *SMALL,
        "--lr",
        "1e-9",
        "--rounds",
        "30",
    ]
    assert main(run) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == summary["best_round"] + 2
    assert "2 evaluations" in summary["stopped"]


def test_a_diverging_run_names_the_clients_and_ends_well(tmp_path, capsys):
    out = tmp_path / "x"
    assert main(["run", "--out", str(out), "--model", "mlp", "--lr", "1e30", *SMALL]) == 0
    assert "left out clients 0, 1, 2, 3, 4 (not finite)" in capsys.readouterr().err
    assert json.loads((out / "summary.json").read_text())["dropped_updates"] == 30


def test_every_option_of_every_method_and_task_has_a_name_of_its_own_and_a_help():
    for method in all_methods().values():
        for task in all_tasks().values():
            for item in options(method, task).values():
                assert item.help, item.name


def test_settings_survive_their_own_file():
    for name in all_methods():
        settings = ExperimentConfig.from_options({"method": name})
        assert ExperimentConfig.from_options(json.loads(json.dumps(settings.to_dict))) == settings
        assert find_method(name).name == name


def test_a_comparison_that_is_cut_short_leaves_the_table_of_what_is_finished(
    tmp_path, capsys, monkeypatch
):
    """Killed in the third of four runs; the folder alone is enough to continue."""
    real, out, started = comparing.run, tmp_path / "cmp", []

    def cut(settings, folder, **how):
        started.append(folder)
        if len(started) == 3:
            raise Died("the machine went down")
        return real(settings, folder, **how)

    monkeypatch.setattr(comparing, "run", cut)
    command = [
        "compare",
        "--methods",
        "fedavg,local",
        "--seeds",
        "2",
        "--out",
        str(out),
        "--quiet",
        *SMALL,
    ]
    with pytest.raises(Died, match="went down"):
        main(command)
    text = (out / "table.md").read_text()
    assert text.startswith("# synthetic: 6 rounds, 2 seeds; 2 of 4 runs finished\n")
    assert "| fedavg |" in text
    assert "| local |" not in text
    assert [row["method"] for row in read_csv(out / "table.csv")] == ["fedavg"]
    before = (out / "fedavg" / "seed-1" / "summary.json").stat().st_mtime_ns
    assert main(["resume", str(out), "--quiet"]) == 0
    assert (out / "fedavg" / "seed-1" / "summary.json").stat().st_mtime_ns == before
    assert (out / "table.md").read_text().startswith("# synthetic: 6 rounds, 2 seeds\n")
    assert "--resume" not in (out / "table.md").read_text()
    whole = (out / "table.csv").read_bytes()
    assert main(["compare", "--resume", "--out", str(out), "--quiet"]) == 0  # nothing is left to do
    assert (out / "table.csv").read_bytes() == whole
    (out / "compare.json").write_text("{")
    assert main(["compare", "--resume", "--out", str(out), "--quiet"]) == 2
    assert "is damaged" in capsys.readouterr().err
