"""Compare the speed of this working tree with an older commit on W1, and fail if it became slower.

The older commit is checked out into a temporary git worktree. Each checkout runs W1 through its own
benchmark module in a process of its own (:mod:`benchmarks.speed.beside_worker`). The two processes
take turns in short slices, so that other work on the machine slows both down alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.lab.provenance import ROOT, measured

MIN_SPEED_RATIO = 0.95  # noise of a shared machine moves medians of this many slices by 2 to 3 %
SLICE_SECONDS = 0.15
WORKER = Path(__file__).with_name("beside_worker.py")


class Workload(NamedTuple):
    """One way to run a round of W1."""

    epochs: int
    closed_form: bool

    def __str__(self) -> str:
        engine = "closed form" if self.closed_form else "general engine"
        return f"{engine}, {self.epochs} epoch(s)"


WORKLOADS = [Workload(*values) for values in product((1, 5), (False, True))]


class Worker:
    """A process that runs rounds of one checkout when it is asked to."""

    def __init__(self, checkout: Path, threads: int) -> None:
        """Start the process and wait until it has run its first rounds."""
        command = [sys.executable, str(WORKER), str(checkout), str(threads)]
        environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
        self._process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._receive()

    def round_seconds(self, workload: Workload) -> float:
        """Run rounds for one slice of time.

        Returns:
            The median seconds of a round.
        """
        assert self._process.stdin is not None
        request = {
            "epochs": workload.epochs,
            "closed_form": workload.closed_form,
            "seconds": SLICE_SECONDS,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        rounds: list[float] = self._receive()
        return statistics.median(rounds)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"a worker ended with code {self._process.wait()}: its error is printed above"
            )
        return json.loads(line)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary worktree, which is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        _git("worktree", "add", "--detach", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def compare(older: Path, threads: int, seconds: float) -> dict[str, dict[str, float]]:
    """Measure both checkouts by turns.

    Args:
        older: The checkout of the older commit.
        threads: Threads of torch in each process.
        seconds: How long to measure all workloads together.

    Returns:
        For each workload the median milliseconds of a round and the ratio of speeds. The ratio is
        the median over pairs of neighbouring slices.
    """
    pairs: dict[Workload, list[tuple[float, float]]] = {workload: [] for workload in WORKLOADS}
    turns = max(3, round(seconds / (2 * SLICE_SECONDS * len(WORKLOADS))))
    workers = [Worker(checkout, threads) for checkout in (ROOT, older)]
    try:
        for turn in range(turns):
            order = (0, 1) if turn % 2 == 0 else (1, 0)  # neither always runs first
            for workload in WORKLOADS:
                found = {place: workers[place].round_seconds(workload) for place in order}
                pairs[workload].append((found[0], found[1]))
    finally:
        for worker in workers:
            worker.close()
    return {str(workload): _summary(values) for workload, values in pairs.items()}


def _summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Medians of slices ``(present, older)``."""
    return {
        "present ms": round(1e3 * statistics.median(present for present, _ in pairs), 2),
        "older ms": round(1e3 * statistics.median(older for _, older in pairs), 2),
        "speed: present / older": round(
            statistics.median(older / present for present, older in pairs), 3
        ),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> None:
    """Compare, write ``results/beside.json``, and exit with 1 if any workload became slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="time for each number of threads"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to measure with"
    )
    options = parser.parse_args()
    commit = _git("rev-parse", "--verify", f"{options.commit}^{{commit}}")
    with checked_out(commit) as older:
        found = {f"{n} thread(s)": compare(older, n, options.seconds) for n in options.threads}
    measured("beside", {"older commit": commit, **found})
    slower = [
        f"{workload} with {threads} ({values['speed: present / older']})"
        for threads, workloads in found.items()
        for workload, values in workloads.items()
        if values["speed: present / older"] < MIN_SPEED_RATIO
    ]
    if slower:
        raise SystemExit(
            f"W1 is slower than at {commit[:7]} (ratio below {MIN_SPEED_RATIO}): "
            f"{'; '.join(slower)}"
        )


if __name__ == "__main__":
    main()
