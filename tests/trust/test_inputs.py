"""Hostile values and files: one line, exit code 2, before any work; Ctrl-C ends within seconds."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.experiment import memory
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import small_task

SMALL = "--clients 3 --samples 30 --rounds 2 --epochs 1 --quiet".split()


def one_line(arguments, capsys, code=2):
    capsys.readouterr()
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("equipoise: ")
    assert error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--seed", str(10**30)), ("--clients", str(10**30)), ("--batch-size", str(10**19))),
        *(("--epochs", str(10**19)), ("--rounds", str(10**19)), ("--threads", str(10**19))),
        *(("--threads", str(10**6)), ("--processes", str(10**6)), ("--seed", "9" * 400)),
        *(("--client-memory-gib", "1e308"), ("--size-sigma", "1e308"), ("--metric", "a\0b")),
        *(("--out", "a\0b"), ("--dp-noise", "1e-300")),
    ],
)
def test_numbers_beyond_measure_are_one_line(option, value, tmp_path, capsys):
    extra = ["--dp-clip", "1"] if option == "--dp-noise" else []
    one_line(["run", "--out", str(tmp_path / "r"), *SMALL, option, value, *extra], capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples", str(10**9)], "rows of data"),
        (["--clients", str(10**9)], "1,000,000,000 clients"),
        (["--features", str(10**9)], "--features"),
        (["--classes", str(10**9)], "--classes"),
        (["--epochs", str(10**8)], "--epochs"),
        (["--batch-size", str(10**12)], "--batch-size"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_the_figure(options, words, tmp_path, capsys):
    error = one_line(["run", "--out", str(tmp_path / "r"), *SMALL, *options], capsys)
    assert "GiB of memory" in error
    assert "lower" in error
    assert words in error
    assert not (tmp_path / "r").exists()


def test_the_estimate_of_batch_plans_is_that_of_their_arrays(monkeypatch):
    """6 clients, 2 epochs: three copies of int64 orders [6, 2, rows], in full batches of 8."""
    task = small_task()
    sizes = task.data.sizes(np.arange(6), "train")
    needed = 3 * 8 * 6 * 2 * 8 * math.ceil(sizes.max() / 8)
    settings = ExperimentConfig.from_options({"epochs": 2, "clients": 6, "batch_size": 8})
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    memory.check_training(settings, task)
    monkeypatch.setattr(memory, "available_memory", lambda: needed - 1)
    with pytest.raises(UsageError, match="the batches of 6 clients with 2 epochs each"):
        memory.check_training(settings, task)


def test_the_memory_of_this_machine_is_known():
    assert 2**20 < memory.available_memory() < 2**50


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", "[" * 100_000),
        ("deep.json", '{"a":' * 100_000),
        ("deep.toml", "x=" + "[" * 100_000),
        ("dots.toml", ".".join("a" * 100_000) + "=1"),
        ("dots.toml", 'x = {"a"' + '."a"' * 50_000 + "=1}"),
        ("big.toml", "x = 1 # " + "a" * 2**20),
        ("long.json", '{"seed": ' + "9" * 10_000 + "}"),
    ],
)
def test_config_files_beyond_measure_are_one_line(name, content, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    start = time.monotonic()
    error = one_line(["run", "--config", str(tmp_path / name), *SMALL], capsys)
    assert name in error
    assert time.monotonic() - start < 30


OWN = """
from dataclasses import dataclass
from equipoise.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "mine"
    def configure_training(self, client):
        return undefined_name
"""


def test_an_error_in_the_users_own_method_names_file_and_line(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    command = ["run", "--method", f"{file}:Mine", "--out", str(tmp_path / "r"), *SMALL]
    error = one_line(command, capsys, code=1)
    assert f"{file}:9 in configure_training: NameError: " in error
    file.write_text("def broken(:\n")
    assert f"{file}:1: SyntaxError" in one_line(command, capsys, code=1)


LONG_ROUND = "--clients 20 --samples 400 --epochs 3000 --rounds 3 --executor stacked"
SHORT_ROUNDS = "--clients 20 --samples 40 --rounds 3000 --executor stacked --processes 2"


def cpu_seconds(pid):
    """CPU time of a process so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time is read from /proc")
@pytest.mark.parametrize("phase", ["training", "start", "two processes"])
def test_ctrl_c_ends_within_two_seconds_in_any_phase(phase, tmp_path):
    """In a round that would take minutes, before the first round, and between short rounds.

    The bound is on CPU time: other work of the machine does not count.
    """
    out = tmp_path / "run"
    options = (SHORT_ROUNDS if phase == "two processes" else LONG_ROUND).split()
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", "run", *options, "--threads", "1", "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 60
    log = out / "rounds.jsonl"
    if phase == "start":
        time.sleep(0.7)
    else:
        while time.monotonic() < deadline and not log.exists():
            time.sleep(0.01)
        time.sleep(1)
    before = cpu_seconds(process.pid)
    start = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    with process.stderr as stream:
        errors = stream.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (1, -signal.SIGINT)
    assert used.ru_utime + used.ru_stime - before < 2
    assert time.monotonic() - start < 10  # on a machine that is not idle
    assert "Traceback" not in errors


def test_a_cell_of_1e308_is_refused_by_the_name_of_its_column(tmp_path, capsys):
    for site in ("a", "b", "c"):
        cells = [f"{i},{'1e308' if i == 3 else i},{'ill' if i % 3 else 'well'}" for i in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,dose,label", *cells]) + "\n")
    for command in (["run", "--out", str(tmp_path / "r")], ["data", "describe"]):
        options = ["--task", "tables", "--data", str(tmp_path)]
        error = one_line([*command, *options], capsys)
        assert "column 'dose' has the number 1e+308" in error
