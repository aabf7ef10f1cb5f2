"""Kill runs at random moments with SIGKILL, resume them, and compare with runs that nobody
disturbed, to the bit.

``PYTHONPATH=tests python -m trust.torture --kills 2000 --minutes 30`` prints one line with what it
found; the exit code is 1 if a single number differs. With ``--add FILE`` what it found is added to
what the file says of earlier sittings, until there are so many kills in all.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from equipoise.cli import main
from trust.sittings import Found, sit
from trust.test_faults import SMALL, result, same

SETUPS = {
    "fedavg": ["--method", "fedavg"],
    "scaffold": ["--method", "scaffold"],
    "autopilot": ["--method", "autopilot"],
    "ditto": ["--method", "ditto"],
    "page": ["--method", "page"],
    "async": ["--method", "fedavg", "--mode", "async", "--buffer", "2"],
    "fedper": ["--method", "fedper", "--model", "mlp"],
}
MOST = 12  # kills of one run
LATEST = 0.5  # of a run's time: a run that was resumed has less to do


@dataclass
class Killed(Found):
    kills: int = 0
    runs: int = 0
    differences: int = 0
    sittings: int = 0

    def in_words(self) -> str:
        differ = f"{self.differences} differ from runs that nobody disturbed"
        return f"{self.kills} kills in {self.runs} runs: {differ}"

    @property
    def failed(self) -> bool:
        return self.differences > 0


def command(setup: str, out: Path) -> list[str]:
    """A short run that saves often; the same command begins and resumes it."""
    options = [
        *SETUPS[setup],
        "--rounds",
        "6",
        "--checkpoint-every",
        "2",
        "--out",
        str(out),
        *SMALL,
    ]
    return ["run", *options, "--threads", "1", "--resume"]


def in_a_child(arguments: list[str], seconds: float | None) -> bool:
    """Run in a process of its own, killed after so many seconds; whether it came to its end."""
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os._exit(main(arguments))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise AssertionError(
            f"'equipoise {' '.join(arguments)}' ended with code {os.WEXITSTATUS(status)}"
        )
    return True


def torture(kills: int, minutes: float, seed: int, folder: Path) -> Killed:
    """So many kills, or as many as there is time for."""
    draw, end = random.Random(seed), time.monotonic() + 60 * minutes
    torch.set_num_threads(1)  # a process with threads of its own cannot be forked
    assert (
        main(command(next(iter(SETUPS)), folder / "warm")) == 0
    )  # children start with all that this has loaded
    expected, lasts = {}, {}
    for setup in SETUPS:
        began = time.monotonic()
        in_a_child(command(setup, folder / setup), None)
        expected[setup], lasts[setup] = result(folder / setup), time.monotonic() - began
    found = Killed(sittings=1)
    while found.kills < kills and time.monotonic() < end:
        setup, out = draw.choice(list(SETUPS)), folder / "victim"
        for _ in range(draw.randint(1, MOST)):
            if in_a_child(command(setup, out), draw.uniform(0, LATEST * lasts[setup])):
                break
            found.kills += 1
        in_a_child(command(setup, out), None)
        found.runs += 1
        try:
            same(result(out), expected[setup])
        except AssertionError as difference:
            found.differences += 1
            print(f"{setup}, after {found.kills} kills: {difference}", file=sys.stderr)
        shutil.rmtree(out)
    return found


def sitting(kills: int, minutes: float, seed: int) -> Killed:
    with tempfile.TemporaryDirectory() as scratch:
        return torture(kills, minutes, seed, Path(scratch))


if __name__ == "__main__":
    sit(Killed, sitting, wanted=2000, minutes=30.0, about=__doc__)
