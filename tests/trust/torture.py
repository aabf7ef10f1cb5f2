"""Kill runs at random moments with SIGKILL, resume them, and compare with runs that nobody disturbed, to the bit.

``make torture`` (or ``python tests/trust/torture.py --kills 1000 --minutes 30``) prints one line with what it found;
the exit code is 1 if a single number differs. With ``--add FILE`` what it found is added to what the file says of
earlier sittings, until there are so many kills in all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from equipoise.cli import main  # noqa: E402 (tests are no package)
from trust.test_faults import SMALL, result, same  # noqa: E402

METHODS = ("fedavg", "scaffold", "equilibrium", "ditto")
MOST = 6  # kills of one run


def command(method: str, out: Path) -> list[str]:
    """A short run that saves often; the same command begins and resumes it."""
    options = ["--method", method, "--rounds", "6", "--checkpoint-every", "2", "--out", str(out), *SMALL]
    return ["run", *options, "--resume"]


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
        raise AssertionError(f"'equipoise {' '.join(arguments)}' ended with code {os.WEXITSTATUS(status)}")
    return True


def torture(kills: int, minutes: float, seed: int, folder: Path) -> tuple[int, int, int]:
    """So many kills, or as many as there is time for; gives kills, runs and runs that differ."""
    draw, end = random.Random(seed), time.monotonic() + 60 * minutes
    expected, lasts = {}, {}
    for method in METHODS:
        began = time.monotonic()
        in_a_child(command(method, folder / method), None)
        expected[method], lasts[method] = result(folder / method), time.monotonic() - began
    done = runs = wrong = 0
    while done < kills and time.monotonic() < end:
        method, out = draw.choice(METHODS), folder / "victim"
        for _ in range(draw.randint(1, MOST)):
            if in_a_child(command(method, out), draw.uniform(0, lasts[method])):
                break
            done += 1
        in_a_child(command(method, out), None)
        runs += 1
        try:
            same(result(out), expected[method])
        except AssertionError as difference:
            wrong += 1
            print(f"{method}, after {done} kills: {difference}", file=sys.stderr)
        shutil.rmtree(out)
    return done, runs, wrong


@dataclass
class Found:
    """What all sittings found together."""

    kills: int = 0
    runs: int = 0
    differences: int = 0
    sittings: int = 0

    def in_words(self) -> str:
        return f"{self.kills} kills in {self.runs} runs: {self.differences} differ from runs that nobody disturbed"


def sitting(before: Found, kills: int, minutes: float) -> Found:
    """One more sitting, with kills at other moments than before."""
    with tempfile.TemporaryDirectory() as scratch:
        done, runs, wrong = torture(kills - before.kills, minutes, before.sittings, Path(scratch))
    return Found(before.kills + done, before.runs + runs, before.differences + wrong, before.sittings + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--add", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    earlier = Found(**json.loads(chosen.add.read_text())) if chosen.add and chosen.add.exists() else Found()
    found = sitting(earlier, chosen.kills, chosen.minutes)
    if chosen.add:
        chosen.add.write_text(json.dumps(asdict(found)) + "\n")
    print(found.in_words())
    sys.exit(int(found.differences > 0))
