"""Commands that the studio starts: child processes that outlive it.

A job is a folder with `job.json` and `output.log`. The child is an ordinary `equipoise` command in
a session of its own: a closed browser or a restarted studio does not touch it, and a studio that
starts later finds it by its process number and start time.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from equipoise.utils import io
from equipoise.utils.errors import UsageError

MAX_OUTPUT_BYTES = 64_000  # of a job's output that a page shows
STOP_SECONDS = 10.0  # until a child that was asked to stop is ended


class Job(msgspec.Struct, frozen=True):
    """One command that the studio started.

    Attributes:
        id: Name of the job's folder.
        arguments: Arguments of `equipoise`.
        out: Folder of the result.
        folder: Folder in which the command runs.
        pid: Process number of the child.
        started: Start time of the process in clock ticks since boot, to recognise the process.
        time: Unix time of the start.
    """

    id: str
    arguments: list[str]
    out: str
    folder: str
    pid: int
    started: int
    time: float

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return shlex.join(["equipoise", *self.arguments])

    @property
    def is_running(self) -> bool:
        """Whether the child still works."""
        return _start_time(self.pid) == self.started


@dataclass(frozen=True)
class JobStore:
    """All jobs of a studio.

    Attributes:
        folder: Folder that holds one folder per job.
    """

    folder: Path

    def start(self, arguments: list[str], out: Path, folder: Path) -> Job:
        """Start a command.

        Args:
            arguments: Arguments of `equipoise`.
            out: Folder of its result.
            folder: Folder in which it runs.

        Returns:
            The job, which runs.

        Raises:
            UsageError: If a job that runs already writes to the same folder.
        """
        busy = [job for job in self.all() if job.out == str(out) and job.is_running]
        if busy:
            raise UsageError(f"'{out.name}' is already running: stop it first")
        id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
        home = self.folder / id
        io.make_folder(home)
        with open(home / "output.log", "wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "equipoise", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "100"},
            )
        started = _start_time(child.pid) or 0
        threading.Thread(target=child.wait, daemon=True).start()  # so that it leaves no zombie
        job = Job(id, arguments, str(out), str(folder), child.pid, started, time.time())
        io.write_bytes(home / "job.json", msgspec.json.encode(job))
        return job

    def all(self) -> list[Job]:
        """Return all jobs, the newest first. A damaged record is skipped."""
        jobs = []
        for file in self.folder.glob("*/job.json"):
            try:
                jobs.append(msgspec.json.decode(file.read_bytes(), type=Job))
            except (OSError, msgspec.DecodeError):
                continue
        return sorted(jobs, key=lambda job: job.time, reverse=True)

    def find(self, id: str) -> Job:
        """Return a job.

        Raises:
            UsageError: If there is no such job.
        """
        for job in self.all():
            if job.id == id:
                return job
        raise UsageError("this job is not known any more: look at the list of runs")

    def latest(self, out: Path) -> Job | None:
        """Return the newest job that wrote to a folder; None if there is none."""
        return next((job for job in self.all() if job.out == str(out)), None)

    def output(self, job: Job) -> str:
        """Return the end of a job's output."""
        try:
            with open(self.folder / job.id / "output.log", "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_OUTPUT_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def stop(self, job: Job) -> None:
        """Ask a child to stop after its round, and end it if it does not."""
        if not job.is_running:
            return
        _signal(job.pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        while job.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        if job.is_running:
            _signal(job.pid, signal.SIGKILL)

    def forget(self, out: Path) -> None:
        """Remove the records of the jobs that wrote to a folder."""
        for job in self.all():
            if job.out == str(out):
                io.remove(self.folder / job.id)


def _signal(pid: int, number: int) -> None:
    """Send a signal to a child and its own children; one that has ended is ignored."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    if fields[0] == "Z":  # ended, and its parent has not looked yet
        return None
    return int(fields[19])
