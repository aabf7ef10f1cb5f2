"""A run that is killed at any moment ends, after `equipoise resume`, as one that never was: to the
bit.
"""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.experiment.runner import RunSession
from equipoise.simulation.server_loop import FederatedSimulation
from equipoise.utils import io
from helpers import largest_difference

RUN = (
    "--task synthetic --clients 12 --samples 60 --rounds 14 --epochs 2 --batch-size 8 "
    "--participation 0.5 --quiet"
).split()

OWNERS = {"disk": io.Disk, "simulation": FederatedSimulation, "session": RunSession}


def killed_at(where: str, *command: str) -> int | None:
    """Run a command in a process that kills itself with SIGKILL; return its exit code.

    It dies on entering the n-th call of a function, so that the file system is left exactly as a
    crash there would leave it. A fork has PyTorch already: that saves two seconds each.
    """
    process = multiprocessing.get_context("fork").Process(
        target=_run_until_killed, args=(where, command)
    )
    process.start()
    process.join(timeout=120)
    return process.exitcode


def _run_until_killed(where: str, command: tuple[str, ...]) -> None:
    module, name, countdown = where.split(":")
    owner = OWNERS[module]
    original = getattr(owner, name)
    calls = itertools.count(1)

    def fatal(*args, **kwargs):
        if next(calls) == int(countdown):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, fatal)
    sys.exit(main(list(command)))


def _comparable(folder: Path) -> tuple[dict, list, dict]:
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    logs = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for log in logs:
        log.pop("seconds")
        log.pop("crc")
    models = {p.name: load_file(p) for p in sorted((folder / "models").glob("*.safetensors"))}
    return summary, logs, models


def _same(one: Path, other: Path) -> None:
    (s1, l1, m1), (s2, l2, m2) = _comparable(one), _comparable(other)
    assert s1 == s2
    assert l1 == l2
    assert m1.keys() == m2.keys()
    assert largest_difference(m1, m2) == 0


@pytest.fixture(scope="module", params=["fedavg", "finetune"])
def undisturbed(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param) / "run"
    assert main(["run", "--method", request.param, "--out", str(out), *RUN]) == 0
    return request.param, out


@pytest.mark.parametrize(
    "where",
    [
        "simulation:run_round:1",  # before the first round
        "simulation:run_round:9",  # between checkpoints
        "disk:rename:4",  # a checkpoint is written but not yet in place
        "disk:fill:5",  # before writing a later checkpoint
        "session:_model_files:1",  # all rounds done, nothing else written
        "session:_client_tables:1",  # models are written, the rest is not
    ],
)
def test_killed_at_a_chosen_point_then_resumed(undisturbed, where, tmp_path):
    method, whole = undisturbed
    out = tmp_path / "run"
    command = ["run", "--method", method, "--out", str(out), "--checkpoint-every", "4", *RUN]
    assert killed_at(where, *command) == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    assert main(["resume", str(out), "--quiet"]) == 0
    _same(whole, out)


def test_killed_from_outside_at_random_moments_then_resumed(undisturbed, tmp_path):
    method, whole = undisturbed
    out = tmp_path / "run"
    run = ["run", "--method", method, "--out", str(out), *RUN, "--checkpoint-every", "1"]
    process = _in_a_fork(*run)
    deadline = time.monotonic() + 60
    for wanted in (2, 6):
        while time.monotonic() < deadline and process.is_alive() and _rounds(out) < wanted:
            time.sleep(0.002)
        process.kill()
        process.join()
        process = _in_a_fork("resume", str(out), "--quiet")
    process.join(timeout=120)
    assert process.exitcode == 0
    _same(whole, out)


def _in_a_fork(*command: str) -> multiprocessing.process.BaseProcess:
    """Start a command in a process that has PyTorch already."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(command,))
    process.start()
    return process


def _run(command: tuple[str, ...]) -> None:
    sys.exit(main(list(command)))


def _rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_half_written_last_line_is_dropped(undisturbed, tmp_path):
    method, whole = undisturbed
    out = tmp_path / "run"
    command = ["run", "--method", method, "--out", str(out), "--checkpoint-every", "4", *RUN]
    assert killed_at("simulation:run_round:7", *command) == -signal.SIGKILL
    with open(out / "rounds.jsonl", "a") as file:
        file.write('{"round": 7, "clie')
    assert main(["resume", str(out), "--quiet"]) == 0
    _same(whole, out)


def test_ctrl_c_saves_says_how_to_resume_and_resumes(undisturbed, tmp_path):
    method, whole = undisturbed
    out = tmp_path / "run"
    run = ["run", "--method", method, "--out", str(out), *RUN, "--checkpoint-every", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *run], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _rounds(out) < 1:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"equipoise resume {out}" in errors
    assert (out / "checkpoint" / "last.safetensors").exists()
    assert main(["resume", str(out), "--quiet"]) == 0
    _same(whole, out)


def test_resuming_a_finished_run_changes_nothing(undisturbed):
    _, whole = undisturbed
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    assert main(["resume", str(whole), "--quiet"]) == 0
    assert before == {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
