"""The executor for many cores: persistent processes of one thread each, that share the data and take clients in turn.

A client's round is that of :class:`~equipoise.runtime.executors.Loop`, so the result does not depend on the workers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from equipoise.contract import Down, Held, Method, Reply, Task, Training
from equipoise.core import trees
from equipoise.core.errors import UsageError
from equipoise.runtime.arena import Arena, Layout
from equipoise.runtime.executors import Executor, Loop, Replies


@trees.message
@dataclass
class _Load:
    """What a round's clients are computed from."""

    ids: Tensor
    down: Down
    held: Held


class Workers(Executor):
    """Clients go to whoever is free, those with most steps first."""

    def __init__(
        self, method: Method, task: Task, training: Training, seed: int, rounds: int, workers: int = 0
    ) -> None:
        """``workers``: how many processes; 0 for one per core."""
        super().__init__(method, task, training, seed, rounds)
        if not task.forks:
            raise UsageError(f"task '{task.name}' is not for worker processes: use --executor stacked")
        if task.device.type != "cpu":
            raise UsageError("worker processes compute on the processor: use --device cpu, or another --executor")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError("worker processes need a system that can fork: use --executor loop")
        self.workers = workers or available_cores()
        self._crew: _Crew | None = None

    def run(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Replies:
        if self._crew is None:
            loop = Loop(self.method, self.task, self.training, self.seed, self.rounds)
            self._crew = _Crew(loop, self.workers)
        training = self.training.at(round, self.rounds)
        epochs = torch.full_like(ids, training.epochs) if down.train is None else down.train.epochs
        steps = self.task.steps(ids, epochs, training)
        order = torch.argsort(steps, descending=True, stable=True).tolist()
        return Replies.of_all(ids, self._crew.run((round, splits), _Load(ids, down, held), order))

    def close(self) -> None:
        """End the processes; they also end with this one."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None


class _Crew:
    """The processes, their pipes, and the memory that they share with this one."""

    def __init__(self, loop: Loop, workers: int) -> None:
        self._inbox, self._outbox = Arena(), Arena()
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(workers)]
        self._pipes = [ours for ours, _ in pipes]
        processes = []
        for _, theirs in pipes:
            # A worker must hold no end but its own, else it would not notice when this process dies.
            foreign = [end for pair in pipes for end in pair if end is not theirs]
            arguments = (loop, self._inbox, self._outbox, theirs, foreign)
            processes.append(context.Process(target=_work, args=arguments, daemon=True))
            processes[-1].start()
        for _, theirs in pipes:
            theirs.close()
        self.close = weakref.finalize(self, _dismiss, os.getpid(), self._pipes, processes)

    def run(self, call: tuple[int, tuple[str, ...]], load: _Load, order: Sequence[int]) -> Reply:
        layout = Layout.of(load)
        self._inbox.reserve(layout.size)
        layout.write(self._inbox.bytes(layout.size), load)
        queue, outs = list(reversed(order)), None
        busy: list[Connection] = []
        for pipe in self._pipes[: len(queue)]:
            self._send(pipe, (call, layout))
            self._send(pipe, queue.pop())
            busy.append(pipe)
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                answer = self._receive(ready)
                if isinstance(answer, Layout):  # a worker's first client of the round: make room for all
                    outs = answer
                    self._outbox.reserve(len(order) * outs.size)
                    self._send(ready, len(order) * outs.size)
                elif queue:
                    self._send(ready, queue.pop())
                else:
                    busy.remove(ready)
        assert outs is not None
        replies: Reply = outs.read_stack(self._outbox.bytes(len(order) * outs.size), len(order))
        return replies

    def _send(self, pipe: Connection, message: Any) -> None:
        try:
            pipe.send(message)
        except OSError as error:
            raise _lost() from error

    def _receive(self, pipe: Connection) -> Any:
        try:
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise _lost() from error
        if isinstance(answer, UsageError):
            raise answer
        if isinstance(answer, str):
            raise RuntimeError(f"a worker process failed:\n{answer}")
        return answer


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(loop: Loop, inbox: Arena, outbox: Arena, pipe: Connection, foreign: list[Connection]) -> None:
    """The life of a worker: a round's load, then one client after another."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both are the parent's affair
        signal.signal(number, signal.SIG_IGN)
    for end in foreign:
        end.close()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        round, splits = 0, ()
        load: _Load | None = None
        layout: Layout | None = None
        room = 0
        while (message := pipe.recv()) is not None:
            if isinstance(message, tuple):
                (round, splits), arrangement = message
                load, layout = arrangement.read(inbox.bytes(arrangement.size)), None
                continue
            try:
                with torch.no_grad():
                    k = message
                    assert load is not None
                    out = loop.one(round, splits, load.ids[k], load.down.row(k), trees.row(load.held, k))
            except UsageError as error:
                pipe.send(error)
                return
            except Exception:
                pipe.send(traceback.format_exc())
                return
            if layout is None:
                layout = Layout.of(out)
                pipe.send(layout)
                room = pipe.recv()
            layout.write(outbox.bytes(room)[k * layout.size : (k + 1) * layout.size], out)
            pipe.send(k)


def _lost() -> RuntimeError:
    return RuntimeError("a worker process died, perhaps for lack of memory: use fewer --workers, then resume")


def _dismiss(owner: int, pipes: list[Connection], processes: list[Any]) -> None:
    if os.getpid() != owner:  # a copy of this crew in another crew's worker
        return
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send(None)
        pipe.close()
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
