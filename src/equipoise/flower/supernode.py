"""A SuperNode that answers sooner than ``flower-supernode``.

Flower starts a process for every message. Most of a short round is spent before that process does
any work: it imports Flower and PyTorch (3 to 4 CPU seconds), SuperExec looks for a message every
second, and the SuperNode looks for one every 3 seconds. Here

* the processes are forked from one that has imported everything (:class:`ForkServer`). Each message
  still has a process of its own, so no message sees what another one left in memory;
* SuperExec and SuperNode look more often.

SuperExec starts ``flwr-clientapp`` by its name. A folder with a program of that name, put first in
``PATH``, hands the arguments to the fork server.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from equipoise.flower.doctor import ENVIRONMENT
from equipoise.utils import io
from equipoise.utils.errors import UsageError

CLIENT_COMMAND = "flwr-clientapp"
TASK_POLL_INTERVAL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""Seconds between two looks of SuperExec for a message at this node; Flower's default is 1."""
IMPORTED = (
    "flwr.supernode.cli.flwr_clientapp",
    "equipoise.flower.client_app",
    "equipoise.methods.fedavg",
)
"""Modules that nearly every message needs; they import PyTorch."""
MAX_REQUEST_BYTES = 65536
FOLDER_PREFIX = "equipoise-node-"
STARTING_SECONDS = 60  # a folder that is younger may not have its lock yet
LAUNCHER = """\
#!{python} -IS
import json, os, socket, sys
try:
    server = socket.socket(socket.AF_UNIX)
    server.connect({address!r})
    server.sendall(json.dumps(sys.argv[1:]).encode())
except OSError:  # the fork server is gone: start the process as Flower would
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
"""


def run_supernode(arguments: list[str], poll: float) -> int:
    """Run a SuperNode until it is stopped.

    Args:
        arguments: Options of ``flower-supernode``.
        poll: Seconds between two looks for a message of the SuperLink.

    Returns:
        The exit code.

    Raises:
        UsageError: If ``poll`` is not above 0.
    """
    if not poll > 0:
        raise UsageError(f"poll is {poll}: must be a number of seconds above 0")
    for name, value in (ENVIRONMENT | TASK_POLL_INTERVAL).items():
        os.environ.setdefault(name, value)
    server = _start_fork_server()
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    # Flower has no option for this interval.
    start_client_internal.time = ShortSleep(poll)
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    finally:
        if server is not None:
            server.close()
    return 0


class ShortSleep(ModuleType):
    """The module ``time`` with a limit of ``sleep``."""

    def __init__(self, limit: float) -> None:
        """Set the limit.

        Args:
            limit: Longest sleep in seconds.
        """
        super().__init__("time")
        self._limit = limit

    def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than the limit."""
        time.sleep(min(seconds, self._limit))

    def __getattr__(self, name: str) -> object:
        """Return everything else of the module."""
        return getattr(time, name)


def _start_fork_server() -> ForkServer | None:
    """Start a fork server and make SuperExec use it; return None where ``fork`` is not safe."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = shutil.which(CLIENT_COMMAND, path=search)
    if sys.platform != "linux" or command is None:
        return None
    _remove_folders_of_killed_nodes()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))  # for this user alone
    # The lock is held by this process and those that it forks, until the last of them ends.
    io.DISK.lock(folder / io.LOCK_FILE)
    server = ForkServer(folder)
    launcher = folder / CLIENT_COMMAND
    launcher.write_text(
        LAUNCHER.format(python=sys.executable, address=str(server.address), command=command)
    )
    launcher.chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{search}"
    server.start()
    return server


def _remove_folders_of_killed_nodes() -> None:
    """Remove this user's folders of nodes that ended without removing them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or gone
            has_begun = time.time() - folder.stat().st_mtime > STARTING_SECONDS
            if folder.stat().st_uid != os.getuid() or not has_begun:
                continue
            lock = io.DISK.lock(folder / io.LOCK_FILE)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


class ForkServer:
    """A process that has imported everything and forks itself for each message.

    It ends with the process that started it, however that ends: a pipe between them is closed then.
    """

    def __init__(self, folder: Path) -> None:
        """Create the server; nothing listens yet.

        Args:
            folder: Folder of the socket, for this user alone; removed when the server ends.
        """
        self.folder = folder
        self.address = folder / "socket"
        self._lifeline: int | None = None

    def start(self) -> None:
        """Listen, and fork the process. Call it before this process has threads."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.address))
        listener.listen(64)
        reading, self._lifeline = os.pipe()
        if os.fork():
            os.close(reading)
            listener.close()
            return
        try:
            os.close(self._lifeline)
            _serve(listener, reading)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(0)

    def close(self) -> None:
        """End the process."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _serve(listener: socket.socket, lifeline: int) -> None:
    """Fork a process for every request until the other end of the pipe is closed.

    Args:
        listener: Socket on which requests come: the arguments of ``flwr-clientapp`` as JSON.
        lifeline: Reading end of a pipe to which nobody writes.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # for the SuperNode, with which this ends
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    _import_everything()
    while True:
        ready, _, _ = select.select([listener.fileno(), lifeline], [], [])
        if lifeline in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(lifeline)
            _run_client_app(connection)
        connection.close()


def _import_everything() -> None:
    """Import what a message needs; a request that comes meanwhile waits in the socket."""
    for name in IMPORTED:
        importlib.import_module(name)


def _run_client_app(connection: socket.socket) -> None:
    """Answer one message in this process, as ``flwr-clientapp`` does, and end it."""
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        arguments = json.loads(_receive(connection))
        connection.close()
        from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

        sys.argv = [CLIENT_COMMAND, *map(str, arguments)]
        flwr_clientapp()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _receive(connection: socket.socket) -> bytes:
    """Read a request until the other side closes."""
    data = b""
    while len(data) < MAX_REQUEST_BYTES:
        part = connection.recv(MAX_REQUEST_BYTES)
        if not part:
            break
        data += part
    return data
