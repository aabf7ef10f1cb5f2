"""The processes of one run, over ``torch.distributed`` with gloo: messages between any two of them.

Nothing is authenticated or encrypted: several machines need a network of their own. On one machine everything stays on
the loopback interface.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from equipoise.core.trees import State
from equipoise.runtime.pack import ALIGNED, pack, unpack

MEETING = timedelta(minutes=5)  # until all processes have come
FIRST = 2**16  # bytes of a message that travel at once, behind their number: most have no more
WAITING = timedelta(hours=2)  # longest time between two messages; who dies is noticed at once


class Lost(RuntimeError):
    """Another process of the run has ended or cannot be reached."""


class Group:
    """This process among all; number 0 leads."""

    def __init__(self, rank: int, size: int, file: str | None = None) -> None:
        """``file``: where processes of this machine meet; without it as ``torchrun`` says."""
        self.rank, self.size = rank, size
        if file is None:
            meeting, _, _ = next(rendezvous("env://", rank, size))
            # Addresses of processes that died before a restart must not be found again.
            store: Any = PrefixStore(f"equipoise-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", meeting)
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
            store = FileStore(file, size)
        store.set_timeout(MEETING)
        try:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=WAITING)
        except RuntimeError as error:
            raise Lost(f"the processes of the run did not meet: {error}") from error

    @staticmethod
    def launched() -> tuple[int, int]:
        """This process's number and how many there are, as ``torchrun`` or the like has started them."""
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def send(self, to: int, tree: State) -> list[Any]:
        """Give a message to another process; the result must be kept until :meth:`sent`."""
        body = pack(tree)
        first = torch.zeros(FIRST, dtype=torch.uint8)
        first[:8].view(torch.int64)[0] = len(body)
        first[ALIGNED : ALIGNED + len(body)] = body[: FIRST - ALIGNED]
        parts = (first, body[FIRST - ALIGNED :].clone()) if len(body) > FIRST - ALIGNED else (first,)
        try:
            return [(dist.isend(part, to), part) for part in parts]
        except RuntimeError as error:
            raise Lost(f"process {to + 1} of {self.size} has ended") from error

    def sent(self, under_way: list[Any], to: int) -> None:
        try:
            for work, _ in under_way:
                work.wait()
        except RuntimeError as error:
            raise Lost(f"process {to + 1} of {self.size} has ended") from error

    def receive(self, sender: int) -> State:
        """The next message of another process."""
        first = torch.empty(FIRST, dtype=torch.uint8)
        try:
            dist.recv(first, sender)
            length = int(first[:8].view(torch.int64)[0])
            body = torch.empty(length, dtype=torch.uint8)
            body[: FIRST - ALIGNED] = first[ALIGNED : ALIGNED + length]
            if length > FIRST - ALIGNED:
                rest = torch.empty(length - FIRST + ALIGNED, dtype=torch.uint8)
                dist.recv(rest, sender)
                body[FIRST - ALIGNED :] = rest
        except RuntimeError as error:
            raise Lost(f"process {sender + 1} of {self.size} has ended") from error
        return unpack(body)

    def leave(self) -> None:
        dist.destroy_process_group()
