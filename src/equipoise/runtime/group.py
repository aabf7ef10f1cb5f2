"""The processes of one run: messages between any two of them.

Those that ``torchrun`` started talk over ``torch.distributed``, by gloo; between processes that compute on CUDA
devices, what is long of calls and answers goes by NCCL. Nothing is authenticated or encrypted: several machines need a
network of their own. Those that one command forked have a shorter way: :mod:`equipoise.runtime.lines`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from equipoise.core.trees import State
from equipoise.runtime.pack import length_of, pack, unpack

MEETING = timedelta(minutes=5)  # until all processes have come
FIRST = 2**14  # bytes of a message that travel at once: most have no more
WAITING = timedelta(hours=2)  # longest time between two messages; who dies is noticed at once


HERE, GLOO = torch.device("cpu"), "gloo"


def backend_of(device: torch.device) -> str:
    """Of torch's backends those that carry tensors of main memory, and of this device."""
    return f"cpu:{GLOO},cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else GLOO


class WorkerLost(RuntimeError):
    """Another process of the run has ended or cannot be reached."""


class ProcessGroup(ABC):
    """This process among all; number 0 leads."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @staticmethod
    def launched() -> tuple[int, int]:
        """This process's number and how many there are, as ``torchrun`` or the like has started them."""
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    @abstractmethod
    def send(self, to: int, tree: State, crossing: bool = False) -> Any:
        """Give a message to another process; the result must be kept until :meth:`sent`.

        ``crossing``: the other may send one here at the same time.
        """

    @abstractmethod
    def sent(self, under_way: Any, to: int) -> None:
        """Wait until a message has left."""

    @abstractmethod
    def receive(self, sender: int, crossing: bool = False) -> State:
        """The next message of another process, which was sent with the same ``crossing``."""

    @abstractmethod
    def leave(self) -> None:
        """There will be no more messages."""

    def lost(self, process: int) -> WorkerLost:
        """What to raise where another process does not answer any more."""
        return WorkerLost(f"process {process + 1} of {self.size} has ended")


class TorchrunGroup(ProcessGroup):
    """Processes that ``torchrun`` started, on any number of machines."""

    def __init__(self, rank: int, size: int, device: torch.device = HERE) -> None:
        """``device``: where this process computes."""
        super().__init__(rank, size)
        backend = backend_of(device)
        self._wire = HERE if backend == GLOO else device
        meeting, _, _ = next(rendezvous("env://", rank, size))
        # Addresses of processes that died before a restart must not be found again.
        store: Any = PrefixStore(f"equipoise-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", meeting)
        store.set_timeout(MEETING)
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAITING)
        except RuntimeError as error:
            raise WorkerLost(f"the processes of the run did not meet: {error}") from error

    def send(self, to: int, tree: State, crossing: bool = False) -> list[Any]:
        """NCCL would have either of two who send to each other wait for the other."""
        body = pack(tree, FIRST)
        wire = HERE if crossing else self._wire
        parts = [body[:FIRST], body[FIRST:].to(wire)] if len(body) > FIRST else [body]
        try:
            return [(dist.isend(part, to), part) for part in parts]
        except RuntimeError as error:
            raise self.lost(to) from error

    def sent(self, under_way: list[Any], to: int) -> None:
        try:
            for work, _ in under_way:
                work.wait()
        except RuntimeError as error:
            raise self.lost(to) from error

    def receive(self, sender: int, crossing: bool = False) -> State:
        first = torch.empty(FIRST, dtype=torch.uint8)
        try:
            dist.recv(first, sender)
            length = length_of(first.numpy().data)
            if length <= FIRST:
                return unpack(first)
            body = torch.empty(length, dtype=torch.uint8)
            body[:FIRST] = first
            rest = body[FIRST:]
            if not crossing and self._wire != HERE:
                rest = torch.empty(length - FIRST, dtype=torch.uint8, device=self._wire)
            dist.recv(rest, sender)
            body[FIRST:] = rest.to(HERE)
        except RuntimeError as error:
            raise self.lost(sender) from error
        return unpack(body)

    def leave(self) -> None:
        dist.destroy_process_group()
