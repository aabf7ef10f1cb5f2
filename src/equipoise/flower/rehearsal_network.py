"""The network of a rehearsal: a relay with delay and loss for each node, and namespaces.

A relay passes bytes on without reading them, so TLS works through it. Where network namespaces may
be made (Linux, root), each node has one of its own and reaches its relay over a virtual cable;
otherwise everything is on loopback.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import threading

CHUNK_BYTES = 65536
START_SECONDS = 10.0
COMMAND_SECONDS = 10.0  # within which 'ip' answers
NETWORK = "10.231"
"""First half of the addresses of virtual cables; private, and rarely used."""


class Relay:
    """A TCP relay to one address, in a thread of its own.

    Attributes:
        delay: Seconds that each chunk of bytes waits, in both directions.
        loss: Probability that a new connection is dropped.
        is_disconnected: Whether nothing passes.
        port: Port on which it listens.
    """

    def __init__(self, host: str, target: tuple[str, int]) -> None:
        """Listen.

        Args:
            host: Address on which it listens.
            target: Address to which it connects.
        """
        self.delay = 0.0
        self.loss = 0.0
        self.is_disconnected = False
        self._target = target
        self._random = random.Random(0)
        listener = socket.create_server((host, 0))
        self.port = int(listener.getsockname()[1])
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._listen(listener)), daemon=True
        )
        self._thread.start()
        self._is_ready.wait(START_SECONDS)

    def disconnect(self) -> None:
        """Drop all connections, and new ones until :meth:`heal`."""
        self.is_disconnected = True
        self._loop.call_soon_threadsafe(self._drop_all)

    def heal(self) -> None:
        """Let connections through again."""
        self.is_disconnected = False

    def close(self) -> None:
        """Stop to listen, and drop all connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(START_SECONDS)

    async def _listen(self, listener: socket.socket) -> None:
        """Listen until :meth:`close`."""
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._connect, sock=listener)
        self._is_ready.set()
        await self._stopped.wait()
        server.close()
        self._drop_all()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=START_SECONDS)
        await asyncio.sleep(0)  # transports close their sockets in the next turn

    def _drop_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on until one side ends it."""
        if self.is_disconnected or self._random.random() < self.loss:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        tasks = {
            asyncio.create_task(self._pump(reader, there_writer)),
            asyncio.create_task(self._pump(there_reader, writer)),
        }
        self._tasks |= tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._tasks -= tasks
            writer.transport.abort()
            there_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes in one direction."""
        while data := await reader.read(CHUNK_BYTES):
            if self.delay:
                await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()


class Namespace:
    """A network namespace with a virtual cable to this machine."""

    def __init__(self, label: str, number: int) -> None:
        """Make it.

        Args:
            label: Start of its name; different in every rehearsal.
            number: Number of the node, below 250.

        Raises:
            OSError: If this machine or user may not.
        """
        self.name = f"{label}-{number}"
        self.cable = f"{label[:9]}-{number}"
        self.here = f"{NETWORK}.{number}.1"
        there = f"{NETWORK}.{number}.2"
        inside = ["netns", "exec", self.name, "ip"]
        steps = [
            ["netns", "add", self.name],
            ["link", "add", self.cable, "type", "veth", "peer", "name", "eq0", "netns", self.name],
            ["addr", "add", f"{self.here}/30", "dev", self.cable],
            ["link", "set", self.cable, "up"],
            [*inside, "addr", "add", f"{there}/30", "dev", "eq0"],
            [*inside, "link", "set", "eq0", "up"],
            [*inside, "link", "set", "lo", "up"],
        ]
        try:
            for step in steps:
                _ip(step)
        except OSError:
            self.close()
            raise

    @property
    def prefix(self) -> list[str]:
        """Words in front of a command that runs inside."""
        return ["ip", "netns", "exec", self.name]

    def disconnect(self) -> None:
        """Pull the cable."""
        _ip(["link", "set", self.cable, "down"])

    def heal(self) -> None:
        """Plug the cable in again."""
        _ip(["link", "set", self.cable, "up"])

    def close(self) -> None:
        """Remove the namespace and its cable."""
        for step in (["link", "del", self.cable], ["netns", "del", self.name]):
            try:
                _ip(step)
            except OSError:
                continue


def _ip(arguments: list[str]) -> None:
    """Run ``ip``.

    Raises:
        OSError: If it is missing or fails.
    """
    command = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if command is None:
        raise OSError("there is no command 'ip'")
    result = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if result.returncode:
        raise OSError(result.stderr.strip() or f"ip ended with {result.returncode}")


def make_namespaces(label: str, count: int) -> tuple[list[Namespace], str]:
    """Make a namespace for each node, or none.

    Args:
        label: Start of their names.
        count: Number of nodes.

    Returns:
        The namespaces, and why there are none if they could not be made.
    """
    namespaces: list[Namespace] = []
    try:
        for number in range(count):
            namespaces.append(Namespace(label, number))  # noqa: PERF401 (closed if one fails)
    except (OSError, subprocess.TimeoutExpired) as error:
        for one in namespaces:
            one.close()
        return [], str(error)
    return namespaces, ""
