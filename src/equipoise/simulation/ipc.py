"""Messages between the processes of a run: lengths, a JSON header, then aligned tensors."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from equipoise.simulation.executor_selection import available_cores
from equipoise.utils.pytree import State, to_dict
from equipoise.utils.serialization import align_up, flatten, tensor_bytes, unflatten

LENGTH_HEADER_BYTES = 16  # two numbers: the length of the message, and of its JSON header
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)  # until all processes have joined
MESSAGE_TIMEOUT = timedelta(hours=2)  # between two messages; a process that dies is noticed at once
FIRST_PART_BYTES = 2**14  # of a message, sent with its length: most messages have no more
MAX_SHORT_BYTES = 2**15  # a socket buffers several such messages before they are read
SPIN_SECONDS = 0.002  # most answers arrive within it, and waking a process costs more
POLL_SECONDS = 0.2  # between two checks that the other process is still alive
CPU = torch.device("cpu")
GLOO = "gloo"


def pack(tree: State, min_bytes: int = 0) -> Tensor:
    """Serialise a tree of tensors and JSON values, padded to at least `min_bytes`."""
    structure, tensors = flatten(to_dict(tree))
    kinds = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors.values()]
    head = json.dumps([structure, kinds]).encode()
    place = align_up(LENGTH_HEADER_BYTES + len(head))
    size = place + sum(align_up(tensor.nbytes) for tensor in tensors.values())
    buffer = torch.empty(max(min_bytes, size), dtype=torch.uint8)
    content = buffer.numpy().data
    content[:LENGTH_HEADER_BYTES] = np.array([size, len(head)], np.int64).tobytes()
    content[LENGTH_HEADER_BYTES : LENGTH_HEADER_BYTES + len(head)] = head
    for tensor in tensors.values():
        content[place : place + tensor.nbytes] = tensor_bytes(tensor)
        place += align_up(tensor.nbytes)
    return buffer


def unpack(buffer: Tensor) -> State:
    """Restore the tree of :func:`pack`; tensors are views of the buffer."""
    data = buffer.numpy().data
    end = LENGTH_HEADER_BYTES + _lengths(data)[1]
    structure, kinds = json.loads(bytes(data[LENGTH_HEADER_BYTES:end]))
    place = align_up(end)
    views: dict[str, Tensor] = {}  # the buffer as numbers of each type
    tensors: dict[str, Tensor] = {}
    for name, shape in kinds:
        if name not in views:
            views[name] = buffer.view(getattr(torch, name))
        numbers = views[name]
        first = place // numbers.itemsize
        tensor = numbers[first : first + math.prod(shape)].view(shape)
        tensors[str(len(tensors))] = tensor
        place += align_up(tensor.nbytes)
    return unflatten(structure, tensors, with_values=True)


def message_length(beginning: bytearray | memoryview) -> int:
    """Return the length in bytes of a message from its first bytes."""
    return _lengths(beginning)[0]


def _lengths(beginning: bytearray | memoryview) -> list[int]:
    """Return the lengths in bytes of a message and of its JSON header."""
    numbers: list[int] = np.frombuffer(beginning, np.int64, 2).tolist()
    return numbers


def backend_of(device: torch.device) -> str:
    """Return the backends of `torch.distributed` for main memory and for this device."""
    return f"cpu:{GLOO},cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else GLOO


class WorkerLost(RuntimeError):
    """Another process of the run has ended or cannot be reached."""


class ProcessGroup(ABC):
    """The processes of a run, as one of them sees them. Rank 0 leads."""

    def __init__(self, rank: int, size: int) -> None:
        """Create the group of one process.

        Args:
            rank: Rank of this process.
            size: Number of processes.
        """
        self.rank = rank
        self.size = size

    @staticmethod
    def launched_rank() -> tuple[int, int]:
        """Return rank and world size, as `torchrun` sets them."""
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    @abstractmethod
    def send(self, to: int, tree: State, crossing: bool = False) -> Any:
        """Send a message to another process.

        Args:
            to: Rank of the receiver.
            tree: The message.
            crossing: Whether the receiver may send one here at the same time.

        Returns:
            The pending transfer, to be passed to :meth:`wait_sent`.
        """

    @abstractmethod
    def wait_sent(self, transfer: Any, to: int) -> None:
        """Wait until a message has left."""

    @abstractmethod
    def receive(self, sender: int, crossing: bool = False) -> State:
        """Receive the next message of another process, sent with the same ``crossing``."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group: no more messages are sent or received."""

    def worker_lost(self, process: int) -> WorkerLost:
        """Return the error to raise if another process does not answer any more."""
        return WorkerLost(f"process {process + 1} of {self.size} has ended")


class TorchrunGroup(ProcessGroup):
    """Processes that ``torchrun`` started, on any number of machines."""

    def __init__(self, rank: int, size: int, device: torch.device = CPU) -> None:
        """Join the processes that ``torchrun`` started.

        Args:
            rank: Rank of this process.
            size: Number of processes.
            device: Device on which this process computes.

        Raises:
            WorkerLost: If the processes do not meet.
        """
        super().__init__(rank, size)
        backend = backend_of(device)
        # NCCL sends from device memory, gloo from main memory.
        self._send_device = CPU if backend == GLOO else device
        shared_store, _, _ = next(rendezvous("env://", rank, size))
        # Addresses of processes that died before a restart must not be found again.
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"equipoise-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", shared_store
        )
        store.set_timeout(RENDEZVOUS_TIMEOUT)
        try:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=MESSAGE_TIMEOUT
            )
        except RuntimeError as error:
            raise WorkerLost(f"the processes of the run did not meet: {error}") from error

    def send(self, to: int, tree: State, crossing: bool = False) -> list[Any]:
        """Send a message; two that cross are sent from main memory.

        With NCCL, two processes that send to each other would wait for each other.
        """
        body = pack(tree, FIRST_PART_BYTES)
        parts = [body[:FIRST_PART_BYTES]]
        if len(body) > FIRST_PART_BYTES:
            device = CPU if crossing else self._send_device
            parts.append(body[FIRST_PART_BYTES:].to(device))
        try:
            return [(dist.isend(part, to), part) for part in parts]
        except RuntimeError as error:
            raise self.worker_lost(to) from error

    def wait_sent(self, transfer: list[Any], to: int) -> None:
        """Wait until a message has left."""
        try:
            for work, _ in transfer:
                work.wait()
        except RuntimeError as error:
            raise self.worker_lost(to) from error

    def receive(self, sender: int, crossing: bool = False) -> State:
        """Receive the next message of another process."""
        first = torch.empty(FIRST_PART_BYTES, dtype=torch.uint8)
        try:
            dist.recv(first, sender)
            length = message_length(first.numpy().data)
            if length <= FIRST_PART_BYTES:
                return unpack(first)
            body = torch.empty(length, dtype=torch.uint8)
            body[:FIRST_PART_BYTES] = first
            rest = body[FIRST_PART_BYTES:]
            if not crossing and self._send_device != CPU:
                rest = torch.empty_like(rest, device=self._send_device)
            dist.recv(rest, sender)
            body[FIRST_PART_BYTES:] = rest.to(CPU)
        except RuntimeError as error:
            raise self.worker_lost(sender) from error
        return unpack(body)

    def leave(self) -> None:
        """Close the connections to the other processes."""
        dist.destroy_process_group()


@dataclass(frozen=True)
class Channel:
    """One process's end of the connection to another."""

    socket: socket.socket
    incoming: Semaphore
    """Released by the other process when a message for this one is there or under way."""
    outgoing: Semaphore
    """Released by this process when it sends a message."""


Channels = dict[int, Channel]
"""The channels of one process by the rank of the other."""


def channels(size: int, context: BaseContext) -> list[Channels]:
    """Connect every pair of processes, before they are forked.

    Args:
        size: Number of processes.
        context: Start method of the processes, which makes the semaphores.

    Returns:
        The channels of each process, by its rank.
    """
    ends: list[Channels] = [{} for _ in range(size)]
    for one, other in combinations(range(size), 2):
        sockets = socket.socketpair()
        semaphores = (context.Semaphore(0), context.Semaphore(0))
        for end in sockets:
            for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, side, 6 * MAX_SHORT_BYTES)
        ends[one][other] = Channel(sockets[0], semaphores[0], semaphores[1])
        ends[other][one] = Channel(sockets[1], semaphores[1], semaphores[0])
    return ends


class ForkedGroup(ProcessGroup):
    """Processes that were forked from the leader."""

    def __init__(self, rank: int, ends: list[Channels]) -> None:
        """Keep the channels of this rank; close those of others, which end with their process."""
        super().__init__(rank, len(ends))
        for other in ends[:rank] + ends[rank + 1 :]:
            for channel in other.values():
                channel.socket.close()
        self._channels = ends[rank]
        self._spin_seconds = SPIN_SECONDS if self.size <= available_cores() else 0.0
        self._senders = {process: ThreadPoolExecutor(1) for process in self._channels}
        self._last: dict[int, Future[None]] = {}

    def send(self, to: int, tree: State, crossing: bool = False) -> Future[None] | None:
        """Send a short message at once, and a long one from a thread while this one continues."""
        body = pack(tree).numpy().data
        last = self._last.pop(to, None)
        channel = self._channels[to]
        if len(body) > MAX_SHORT_BYTES or (last is not None and not last.done()):
            self._last[to] = self._senders[to].submit(_send_long, channel, body)
            return self._last[to]
        try:
            channel.socket.sendall(body)
        except OSError as error:
            raise self.worker_lost(to) from error
        channel.outgoing.release()
        return None

    def wait_sent(self, transfer: Future[None] | None, to: int) -> None:
        """Wait until a message has left."""
        try:
            if transfer is not None:
                transfer.result()
        except OSError as error:
            raise self.worker_lost(to) from error

    def receive(self, sender: int, crossing: bool = False) -> State:
        """Receive the next message of another process."""
        channel = self._channels[sender]
        beginning = bytearray(LENGTH_HEADER_BYTES)
        try:
            self._wait(channel)
            _receive_into(channel, memoryview(beginning))
            body = torch.empty(message_length(beginning), dtype=torch.uint8)
            view = body.numpy().data
            view[:LENGTH_HEADER_BYTES] = beginning
            _receive_into(channel, view[LENGTH_HEADER_BYTES:])
        except OSError as error:
            raise self.worker_lost(sender) from error
        return unpack(body)

    def _wait(self, channel: Channel) -> None:
        """Wait for a message: spin for a moment, then block."""
        end = time.perf_counter() + self._spin_seconds
        while time.perf_counter() < end:
            if channel.incoming.acquire(block=False):
                return
        while not channel.incoming.acquire(timeout=POLL_SECONDS) and not _has_message(channel):
            pass

    def leave(self) -> None:
        """Close the connections to the other processes."""
        for process, channel in self._channels.items():
            # A message under way ends with the other process.
            self._senders[process].shutdown(wait=False)
            channel.socket.close()


def _send_long(channel: Channel, body: memoryview) -> None:
    """Announce a message, then send it: the receiver must read while this side writes."""
    channel.outgoing.release()
    channel.socket.sendall(body)


def _receive_into(channel: Channel, buffer: memoryview) -> None:
    """Fill a buffer; raise if the other process ends before it is full."""
    while buffer:
        read = channel.socket.recv_into(buffer)
        if not read:
            raise ConnectionResetError
        buffer = buffer[read:]


def _has_message(channel: Channel) -> bool:
    """Return whether a message is there although its semaphore was not released.

    The sender may have ended before it. If it ended without a message, reading raises.
    """
    try:
        channel.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True
