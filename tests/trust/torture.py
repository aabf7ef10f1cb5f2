"""Kill runs at random moments with SIGKILL, resume them, and compare with runs that nobody
disturbed, to the bit.

Half of the kills come at a random time, half at a random operation of the write layer: before it,
in the middle of what it writes, or after it. Children are forked from a process that has imported
everything, so that a kill costs a fraction of a run.

``PYTHONPATH=tests python -m trust.torture --kills 2000 --minutes 30`` prints one line with what it
found; the exit code is 1 if a single number differs. With ``--add FILE`` what it found is added to
what the file says of earlier sittings, until there are so many kills in all.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equipoise.cli import main
from equipoise.utils import io
from equipoise.utils.io import Disk
from helpers_disk import OPERATIONS
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
LATEST = 0.5  # of a run's time or operations: a run that was resumed has less to do


class Deadly(Disk):
    """The process is killed at the n-th operation (0: never, and ``count`` tells how many)."""

    def __init__(self, n: int, moment: str) -> None:
        self.n = n
        self.moment = moment
        self.count = 0


def _deadly(name: str) -> Callable[..., object]:
    def operation(self: Deadly, path: Path, *arguments: Any) -> object:
        self.count += 1
        dies = self.count == self.n
        if dies and self.moment == "middle" and name == "fill":
            Disk.fill(self, path, *arguments)
            os.truncate(path, path.stat().st_size // 2)
        if dies and self.moment == "middle" and name == "append":
            Disk.append(self, path, arguments[0][: len(arguments[0]) // 2])
        if dies and self.moment != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result: object = getattr(Disk, name)(self, path, *arguments)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return operation


for _name in OPERATIONS:
    setattr(Deadly, _name, _deadly(_name))


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


def in_a_child(
    arguments: list[str], seconds: float | None = None, disk: Disk | None = None
) -> bool:
    """Run in a process of its own, killed after so many seconds or by its disk; whether it came to
    its end.
    """
    child = os.fork()
    if not child:
        if disk is not None:
            io.DISK = disk
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
    draw = random.Random(seed)
    torch.set_num_threads(1)  # a process with threads of its own cannot be forked
    # Children start with all that this has loaded.
    assert main(command(next(iter(SETUPS)), folder / "warm")) == 0
    expected, lasts, operations = {}, {}, {}
    for setup in SETUPS:
        began = time.monotonic()
        operations[setup] = count_operations(command(setup, folder / setup))
        expected[setup], lasts[setup] = result(folder / setup), time.monotonic() - began
    end = time.monotonic() + 60 * minutes
    found = Killed(sittings=1)
    rarely = [1 / lasts[setup] for setup in SETUPS]  # what takes long is drawn less often
    while found.kills < kills and time.monotonic() < end:
        setup, out = draw.choices(list(SETUPS), rarely)[0], folder / "victim"
        for _ in range(draw.randint(1, MOST)):
            if draw.random() < 0.5:
                n = draw.randint(1, max(1, int(LATEST * operations[setup])))
                disk = Deadly(n, draw.choice(["before", "middle", "after"]))
                ended = in_a_child(command(setup, out), disk=disk)
            else:
                ended = in_a_child(command(setup, out), draw.uniform(0, LATEST * lasts[setup]))
            if ended:
                break
            found.kills += 1
        in_a_child(command(setup, out))
        found.runs += 1
        try:
            same(result(out), expected[setup])
        except AssertionError as difference:
            found.differences += 1
            print(f"{setup}, after {found.kills} kills: {difference}", file=sys.stderr)
        shutil.rmtree(out)
    return found


def count_operations(arguments: list[str]) -> int:
    """The operations of the write layer in a whole run."""
    before, io.DISK = io.DISK, (disk := Deadly(0, ""))
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            assert main(arguments) == 0
    finally:
        io.DISK = before
    return disk.count


def sitting(kills: int, minutes: float, seed: int) -> Killed:
    with tempfile.TemporaryDirectory() as scratch:
        return torture(kills, minutes, seed, Path(scratch))


if __name__ == "__main__":
    sit(Killed, sitting, wanted=2000, minutes=30.0, about=__doc__)
