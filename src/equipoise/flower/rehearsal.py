"""Rehearse a deployment on one machine, with accidents, and report what survived.

A SuperLink with TLS and node keys, nginx if there is one, and a node for each client are started as
processes. One run goes through delay and loss, a partition, a killed node, a killed server app and
a killed SuperLink. After each accident the rehearsal waits until the run has recovered. Everything
that was started is ended, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.flower import audit, certificates, project, proxy
from equipoise.flower.doctor import ENVIRONMENT
from equipoise.flower.launch import FlowerCli
from equipoise.flower.rehearsal_network import Namespace, Relay, make_namespaces
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.utils.errors import UsageError

DELAY = 0.1  # seconds, in each direction
LOSS = 0.05  # of new connections
MARK = "EQUIPOISE_REHEARSAL"
"""Variable by which the processes of a rehearsal, and their children, are known."""
START_SECONDS = 120.0  # within which a SuperLink listens on a busy machine
RESTART_SECONDS = 15.0  # between attempts: a node with a key is refused until its lease ends
TIME_LIMIT = 30.0  # seconds that a round waits for replies
APP = {
    "task": "synthetic",
    "model": "linear",
    "rounds": 100000,  # the rehearsal stops it
    "epochs": 1,
    "time_limit": TIME_LIMIT,
    "wait": 300.0,
}


@dataclass(frozen=True)
class RehearsalConfig:
    """Options of a rehearsal."""

    nodes: int = 3
    """Number of nodes."""
    minutes: float = 10.0
    """Time after which it is given up."""
    keeps_folder: str = ""
    """Folder for logs and the run; a temporary one if empty."""

    def check(self) -> None:
        """Raise ``UsageError`` if an option is wrong, or this machine cannot rehearse.

        Raises:
            UsageError: If an option is wrong, or this machine cannot rehearse.
        """
        if not 2 <= self.nodes <= 20:
            raise UsageError(f"nodes is {self.nodes}: must be from 2 to 20")
        if not self.minutes > 0:
            raise UsageError(f"minutes is {self.minutes}: must be a number above 0")
        if not sys.platform.startswith("linux"):
            raise UsageError("a rehearsal reads /proc to end what it started: it needs Linux")
        folder = Path(self.keeps_folder)
        if self.keeps_folder and folder.exists() and any(folder.iterdir()):
            raise UsageError(f"'{folder}' is not empty: choose another --out")


@dataclass
class Accident:
    """What happened after one accident."""

    name: str
    survived: bool
    text: str
    seconds: float

    def __str__(self) -> str:
        """Return one line for people."""
        verdict = "survived" if self.survived else "NOT survived"
        return f"{self.name}: {verdict} ({self.seconds:.0f} s): {self.text}"


class OutOfTime(Exception):
    """Something did not happen in time."""


def rehearse(config: RehearsalConfig, say: Callable[[str], None]) -> list[Accident]:
    """Run the rehearsal.

    Args:
        config: Its options.
        say: Called with each line as it is known.

    Returns:
        All accidents; those after one that was not survived are missing.

    Raises:
        UsageError: If an option is wrong, or the deployment could not even begin.
    """
    config.check()
    with contextlib.ExitStack() as stack:
        folder = Path(config.keeps_folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        stage = stack.enter_context(_stage(folder.resolve(), config))
        say(stage.description)
        accidents: list[Accident] = []
        try:
            stage.start()
        except OutOfTime as error:
            raise UsageError(f"the deployment did not begin: {error}") from error
        say(f"{config.nodes} nodes answer: round {stage.last_round}")
        for name, play in stage.accidents().items():
            began = time.monotonic()
            try:
                text = play()
                survived = True
            except (OutOfTime, UsageError) as error:
                text = str(error)
                survived = False
            accidents.append(Accident(name, survived, text, time.monotonic() - began))
            say(str(accidents[-1]))
            if not survived:
                break
        else:
            say(stage.verify())
        return accidents


@contextlib.contextmanager
def _stage(folder: Path, config: RehearsalConfig) -> Iterator[Stage]:
    """Yield a stage, and end everything that it started."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stage = Stage(folder, config)
    try:
        yield stage
    finally:
        stage.close()
        signal.signal(signal.SIGTERM, before)


@dataclass
class Stage:
    """Server, proxy, relays and nodes of a rehearsal."""

    folder: Path
    config: RehearsalConfig
    relays: list[Relay] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make certificates, namespaces and the configuration of nginx."""
        self.deadline = time.monotonic() + 60 * self.config.minutes
        self.label = f"eq{secrets.token_hex(3)}"
        self.namespaces, self.why_loopback = make_namespaces(self.label, self.config.nodes)
        self.certs = self.folder / "certs"
        hosts = ["localhost", "127.0.0.1", *(one.here for one in self.namespaces)]
        certificates.write_certificates(self.certs, hosts, self.config.nodes, days=2)
        self.address = f"127.0.0.1:{_free_port()}"
        self.outside = ("127.0.0.1", _free_port())
        self.nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        self.app = self.folder / "app"
        self.run_folder = RunFolder(self.app / "run")
        self.registered = self.folder / "nodes.json"
        self.home = self.folder / "home"
        self.home.mkdir()
        self.cli = FlowerCli(str(self.home), self.address, self.certs / "ca.pem")
        self.run_number = ""

    @property
    def description(self) -> str:
        """Say what the stage consists of."""
        place_text = "each node in a network namespace"
        if not self.namespaces:
            place_text = f"all on loopback (no network namespaces: {self.why_loopback})"
        front = "behind nginx" if self.nginx else "without nginx, which is not installed"
        return (
            f"rehearsal of a SuperLink with TLS and keys {front}, {self.config.nodes} nodes, "
            f"{place_text}; logs in {self.folder}"
        )

    # ---------------------------------------------------------------- processes

    def start(self) -> None:
        """Start everything, register the keys, start the run and wait for its second round."""
        self._start_link()
        target = self.outside
        if self.nginx:
            listen = f"{self.outside[0]}:{self.outside[1]}"
            conf = proxy.write_nginx_config(self.folder / "proxy", listen, self.address, self.certs)
            self._start("nginx", [self.nginx, "-c", str(conf), "-g", "daemon off;"])
            self._wait(lambda: _listens(listen), START_SECONDS, "nginx listens")
        else:
            host, port = self.address.split(":")
            target = (host, int(port))
        ca = self.certs / "ca.pem"
        for number in range(self.config.nodes):
            host = self.namespaces[number].here if self.namespaces else "127.0.0.1"
            self.relays.append(Relay(host, target))
            key = self.certs / f"node-{number}.pub"
            audit.register_node(key, number, self.registered, self.address, ca)
            self._start_node(number)
        project.write_app(
            self.app, {**APP, "clients": self.config.nodes, "nodes": str(self.registered)}
        )
        self._submit()
        self._wait_for_round(2, self._all_replied)

    def _start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        host, port = self.address.split(":")
        certs = self.certs
        command = ["flower-superlink", "--host", host, "--port", port]
        command += ["--disable-runtime-dependency-installation", "--enable-supernode-auth"]
        command += ["--database", str(self.folder / "link.db"), f"--ssl-ca-certfile={certs}/ca.pem"]
        command += [f"--ssl-certfile={certs}/server.pem", f"--ssl-keyfile={certs}/server.key"]
        self._start("link", [_program(command[0]), *command[1:]])
        self._wait(lambda: _listens(self.address), START_SECONDS, "the SuperLink listens")

    def _start_node(self, number: int) -> None:
        """Start a node behind its relay."""
        relay = self.relays[number]
        host = self.namespaces[number].here if self.namespaces else "127.0.0.1"
        prefix = self.namespaces[number].prefix if self.namespaces else []
        about = f'client-id={number} state-dir="{self.folder}/node-{number}"'
        command = [sys.executable, "-m", "equipoise", "flower", "node"]
        command += ["--superlink", f"{host}:{relay.port}", "--host", "127.0.0.1"]
        command += ["--port", str(_free_port()), "--node-config", about]
        command += ["--root-certificates", str(self.certs / "ca.pem")]
        command += ["--auth-supernode-private-key", str(self.certs / f"node-{number}")]
        self._start(f"node-{number}", [*prefix, *command])

    def _start(self, name: str, command: list[str]) -> None:
        """Start a process that ends by itself when the rehearsal should be long over."""
        life = int(60 * self.config.minutes) + 60
        env = {
            **os.environ,
            **ENVIRONMENT,
            "FLWR_HOME": str(self.home),
            MARK: str(self.folder / name),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["timeout", "--kill-after=5", str(life), *command],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self.started.append(process)

    def _processes(self, name: str, command: str = "") -> list[int]:
        """Return the processes that were started under a name, and all their children."""
        mark = f"{MARK}={self.folder / name}".encode()
        processes = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if is_ours and command.encode() in (entry / "cmdline").read_bytes():
                    processes.append(int(entry.name))
        return processes

    def _kill(self, name: str, command: str = "") -> None:
        """Kill processes of this rehearsal at once, without any chance to clean up."""
        for process in self._processes(name, command):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """End everything that was started."""
        names = ["nginx", "link", *(f"node-{number}" for number in range(self.config.nodes))]
        for _ in range(2):  # a process may have been about to start another one
            for name in names:
                self._kill(name)
            time.sleep(0.2)
        for process in self.started:  # nginx overwrites its environment, and the mark in it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for relay in self.relays:
            relay.close()
        for namespace in self.namespaces:
            namespace.close()

    # ---------------------------------------------------------------- the run

    def _submit(self) -> None:
        """Start the run, or resume it."""
        done = self.cli.run_json("did not take the app", "run", str(self.app.resolve()))
        self.run_number = str(done["run-id"])

    def _records(self) -> list[RoundRecord]:
        with contextlib.suppress(UsageError):  # it is being written
            return self.run_folder.records()
        return []

    @property
    def last_round(self) -> int:
        """Number of the last round."""
        records = self._records()
        return records[-1].round if records else 0

    def _all_replied(self, record: RoundRecord) -> bool:
        """Return whether all clients replied."""
        return not record.absent and not record.dropped and not record.skipped

    def _wait(self, holds: Callable[[], object], seconds: float, event: str) -> None:
        """Wait until something holds.

        Raises:
            OutOfTime: If it does not in time.
        """
        end = min(time.monotonic() + seconds, self.deadline)
        while not holds():
            if time.monotonic() > end:
                raise OutOfTime(f"{event}: not within {seconds:.0f} s")
            time.sleep(0.5)

    def _wait_for_round(
        self, first: int, fits: Callable[[RoundRecord], bool], seconds: float = 240.0
    ) -> RoundRecord:
        """Wait for a round from ``first`` on that fits, and return it."""
        records: list[RoundRecord] = []

        def look() -> bool:
            records[:] = [one for one in self._records() if one.round >= first and fits(one)][:1]
            return bool(records)

        self._wait(look, seconds, f"no such round after round {first - 1}")
        return records[0]

    # ---------------------------------------------------------------- accidents

    def accidents(self) -> dict[str, Callable[[], str]]:
        """Return all accidents in their order, by name."""
        return {
            f"delay of {1000 * DELAY:.0f} ms each way and {100 * LOSS:.0f} % loss": self._slow,
            "partition of client 1": self._partition,
            "node of client 0 killed": self._kill_node,
            "server app killed": self._kill_server_app,
            "SuperLink killed": self._kill_link,
        }

    def _slow(self) -> str:
        """Delay bytes and drop connections."""
        for relay in self.relays:
            relay.delay = DELAY
            relay.loss = LOSS
        first = self.last_round + 2
        record = self._wait_for_round(first, self._all_replied)
        for relay in self.relays:
            relay.delay = 0.0
            relay.loss = 0.0
        return f"round {record.round} was complete after {record.seconds:.1f} s"

    def _partition(self) -> str:
        """Cut one node off, then connect it again."""
        cable = self.namespaces[1] if self.namespaces else self.relays[1]
        first = self.last_round + 1
        cable.disconnect()
        missed = self._wait_for_round(first, lambda one: 1 in one.absent)
        cable.heal()
        back = self._wait_for_round(missed.round + 1, self._all_replied)
        return (
            f"round {missed.round} went on without it after {missed.seconds:.0f} s "
            f"({missed.absent[1]}); it was back in round {back.round}"
        )

    def _kill_node(self) -> str:
        """Kill a node and restart it as a supervisor does, until it is let in again."""
        first = self.last_round + 1
        self._kill("node-0")
        missed = self._wait_for_round(first, lambda one: 0 in one.absent)
        attempts = 0
        started = 0.0

        def is_back(record: RoundRecord) -> bool:
            nonlocal attempts, started
            if not self._processes("node-0") and time.monotonic() - started > RESTART_SECONDS:
                attempts += 1
                started = time.monotonic()
                self._start_node(0)
            return self._all_replied(record)

        back = self._wait_for_round(missed.round + 1, is_back)
        return (
            f"round {missed.round} went on without it after {missed.seconds:.0f} s; it was back in "
            f"round {back.round}, after {attempts} restarts"
        )

    def _kill_server_app(self) -> str:
        """Kill the server's app and start the run again."""
        self._kill("link", "flwr-serverapp")
        return self._resume()

    def _kill_link(self) -> str:
        """Kill the SuperLink with its app, and start both again."""
        self._kill("link")
        self._start_link()
        return self._resume()

    def _resume(self) -> str:
        """Start the run again once Flower knows that it ended."""
        last = self.last_round
        number = self.run_number
        self._wait(
            lambda: not self.cli.status(number).startswith(("running", "pending", "starting")),
            150.0,
            "Flower sees that the run has ended",
        )
        self._submit()
        record = self._wait_for_round(last + 2, self._all_replied)
        return f"resumed after round {last}; round {record.round} was complete"

    def verify(self) -> str:
        """Check the log of the whole run: no round is missing or there twice.

        Returns:
            A line for the report.

        Raises:
            UsageError: If a round is missing or there twice.
        """
        rounds = [record.round for record in self._records()]
        if rounds != list(range(1, len(rounds) + 1)):
            raise UsageError(f"the log of rounds has gaps: {rounds}")
        return f"the run has {len(rounds)} rounds in order, none twice and none missing"


def _program(name: str) -> str:
    """Return the path of a program of this environment."""
    return str(Path(sys.executable).parent / name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
