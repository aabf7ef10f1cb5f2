"""Messages between processes of one machine that a common parent forked.

Each two of them have a line: a pair of sockets, which nobody else can reach and which tells when the other is gone, and
two bells. A reader that slept on a socket would be woken on the core of the sender, who still needs it; so it waits for
the bell instead, first awake, since to wake up takes longer than most messages do.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Semaphore

import torch

from equipoise.core.trees import State
from equipoise.runtime.device import available_cores
from equipoise.runtime.group import ProcessGroup
from equipoise.runtime.pack import LENGTHS, length_of, pack, unpack

SHORT = 2**15  # bytes: a socket takes some such messages before anybody reads them
AWAKE = 0.002  # seconds
ASLEEP = 0.2  # seconds until a look whether the other is still there


@dataclass(frozen=True)
class Channel:
    """One process's end."""

    socket: socket.socket
    mine: Semaphore
    """The other rings it when a message for this process is there, or under way."""
    theirs: Semaphore


Lines = dict[int, Channel]
"""The ends of one process, by the number of the other."""


def channels(size: int, context: BaseContext) -> list[Lines]:
    """Of each of so many processes, to be made before they are forked."""
    ends: list[Lines] = [{} for _ in range(size)]
    for one, other in combinations(range(size), 2):
        sockets, bells = socket.socketpair(), (context.Semaphore(0), context.Semaphore(0))
        for end in sockets:
            for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, side, 6 * SHORT)
        ends[one][other] = Channel(sockets[0], bells[0], bells[1])
        ends[other][one] = Channel(sockets[1], bells[1], bells[0])
    return ends


class ForkedGroup(ProcessGroup):
    """This process among those that were forked."""

    def __init__(self, rank: int, ends: list[Lines]) -> None:
        """``ends``: of all; here those of others are closed, since a line must end with its process."""
        super().__init__(rank, len(ends))
        for other in ends[:rank] + ends[rank + 1 :]:
            for line in other.values():
                line.socket.close()
        self._lines = ends[rank]
        self._awake = AWAKE if self.size <= available_cores() else 0.0
        self._senders = {process: ThreadPoolExecutor(1) for process in self._lines}
        self._last: dict[int, Future[None]] = {}

    def send(self, to: int, tree: State, crossing: bool = False) -> Future[None] | None:
        """What is short is taken at once; what is long goes by and by, in its turn, while this process goes on."""
        body, last, line = pack(tree).numpy().data, self._last.pop(to, None), self._lines[to]
        if len(body) > SHORT or (last is not None and not last.done()):
            self._last[to] = self._senders[to].submit(_send_long, line, body)
            return self._last[to]
        try:
            line.socket.sendall(body)
        except OSError as error:
            raise self.lost(to) from error
        line.theirs.release()
        return None

    def sent(self, under_way: Future[None] | None, to: int) -> None:
        try:
            if under_way is not None:
                under_way.result()
        except OSError as error:
            raise self.lost(to) from error

    def receive(self, sender: int, crossing: bool = False) -> State:
        line, beginning = self._lines[sender], bytearray(LENGTHS)
        try:
            self._wait(line)
            _fill(line, memoryview(beginning))
            body = torch.empty(length_of(beginning), dtype=torch.uint8)
            view = body.numpy().data
            view[:LENGTHS] = beginning
            _fill(line, view[LENGTHS:])
        except OSError as error:
            raise self.lost(sender) from error
        return unpack(body)

    def _wait(self, line: Channel) -> None:
        end = time.perf_counter() + self._awake
        while time.perf_counter() < end:
            if line.mine.acquire(block=False):
                return
        while not line.mine.acquire(timeout=ASLEEP) and not _has_come(line):
            pass

    def leave(self) -> None:
        for process, line in self._lines.items():
            self._senders[process].shutdown(wait=False)  # the end of the other process ends what is under way
            line.socket.close()


def _send_long(line: Channel, body: memoryview) -> None:
    line.theirs.release()
    line.socket.sendall(body)


def _fill(line: Channel, buffer: memoryview) -> None:
    while buffer:
        read = line.socket.recv_into(buffer)
        if not read:
            raise ConnectionResetError
        buffer = buffer[read:]


def _has_come(line: Channel) -> bool:
    """Whether there is a message although nobody rang: the other has ended with it, or will ring once too often, which
    does no harm. Where there is none and the other has ended, reading says so."""
    try:
        line.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True
