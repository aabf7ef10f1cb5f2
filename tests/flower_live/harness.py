"""A SuperLink and SuperNodes as processes on 127.0.0.1; everything that is started is ended,
whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
START = 240  # seconds within which a SuperLink listens, on a machine that is busy
LIFE = 1800  # seconds after which a process ends by itself, should nobody be left to end it
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fleet:
    """One SuperLink, and a SuperNode for each client that is started."""

    def __init__(
        self, folder: Path, secure: list[str], node_secure: list[str], connection: dict[str, Any]
    ) -> None:
        self.folder, self.node_secure = folder, node_secure
        self.outside = ""  # where nodes connect, if not to the SuperLink itself
        self.address = f"127.0.0.1:{free_port()}"
        self.env = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(folder / "home"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        (folder / "home").mkdir(parents=True)
        table = {"address": self.address, **connection}
        text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
        (folder / "home" / "config.toml").write_text(f"[superlink.here]\n{text}\n")
        host, port = self.address.split(":")
        flags = ["--host", host, "--port", port, "--disable-runtime-dependency-installation"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start(
            "link", ["flower-superlink", *secure, *flags, "--database", str(folder / "state.db")]
        )

    def node(
        self, client: int, *more: str, data: str = "", name: str = "", role: str = "train"
    ) -> subprocess.Popen[bytes]:
        """``client``: who it says it is."""
        about = f'client-id={client} state-dir="{self.folder}/client-{client}" data="{data}"'
        about += f' role="{role}"'
        port = str(free_port())
        command = [
            "equipoise",
            "flower",
            "node",
            *self.node_secure,
            "--superlink",
            self.outside or self.address,
            "--host",
            "127.0.0.1",
        ]
        return self._start(
            name or f"node-{client}", [*command, "--port", port, "--node-config", about, *more]
        )

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "flwr"), *arguments]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=START, check=False
        )

    def submit(self, app: Path) -> str:
        done = self.flwr("run", str(app), "here", "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return str(json.loads(done.stdout)["run-id"])

    def status(self, run: str) -> str:
        done = self.flwr("list", "here", "--run-id", run, "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return str(json.loads(done.stdout)["runs"][0]["status"])

    def traffic(self, run: str) -> int:
        """Bytes of a run, both ways, as Flower counts them."""
        done = self.flwr("list", "here", "--run-id", run, "--format", "json")
        return int(json.loads(done.stdout)["runs"][0]["network-traffic"]["total-bytes"])

    def kill(self, name: str) -> None:
        """kill -9, with everything that it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def app_log(self) -> str:
        """What the last server app said."""
        newest = json.loads(self.flwr("list", "here", "--format", "json").stdout)["runs"][0][
            "run-id"
        ]
        return self.flwr("log", str(newest), "here", "--show").stdout

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        for name in list(self.processes):
            self.kill(name)
        for pid in self.children(""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def children(self, command: str) -> list[int]:
        """Processes of this fleet, and of no other, with this in their command line."""
        ours, found = f"FLWR_HOME={self.folder / 'home'}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = ours in (entry / "environ").read_bytes().split(b"\0")
                if mine and command.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 (the process owns it)
        command = ["timeout", "--kill-after=5", str(LIFE), str(BIN / command[0]), *command[1:]]
        process = subprocess.Popen(
            command,
            env=self.env,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        return process


@contextlib.contextmanager
def fleet(folder: Path, **how: Any) -> Iterator[Fleet]:
    insecure = {
        "secure": ["--insecure"],
        "node_secure": ["--insecure"],
        "connection": {"insecure": True},
    }
    # Asked to end, Python would not clean up by itself: turn it into an exception.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    running = Fleet(folder, **{**insecure, **how})
    try:
        wait_until(lambda: listens(running.address), START, "the SuperLink listens")
        yield running
    finally:
        running.close()
        signal.signal(signal.SIGTERM, before)


def wait_until(holds: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{seconds} s were not enough until {what}"
        time.sleep(0.5)


def listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
