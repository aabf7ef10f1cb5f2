"""Many processes for one run: forked on this machine, or started by ``torchrun`` on any number of machines."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from equipoise.contract import Task
from equipoise.core.errors import UsageError
from equipoise.records.folder import Folder
from equipoise.runtime.attacks import ATTACKS, parse
from equipoise.runtime.choose import EXECUTORS, Choice
from equipoise.runtime.executors import Local
from equipoise.runtime.group import Group, Launched, Lost
from equipoise.runtime.lines import Forked, Lines, lines
from equipoise.runtime.rows import Room
from equipoise.runtime.share import Share, serve
from equipoise.runtime.spread import Spread
from equipoise.settings.config import Settings
from equipoise.settings.means import Means


def follows() -> bool:
    """Whether this process was started beside another that leads."""
    return Group.launched()[0] > 0


def check(settings: Settings, task: Task) -> None:
    """Refuse what one process must do alone."""
    if reason := alone(settings, task):
        raise UsageError(f"{reason}: leave processes at 0 or 1")


def alone(settings: Settings, task: Task) -> str:
    """Why one process must do it alone; empty if several may."""
    if settings.run.attack and parse(settings.run.attack)[0] in ATTACKS:
        return "hostile clients of an attack on uploads see those of all others, which must be in one process"
    if not task.forks:
        return f"the agents of task '{task.name}' are stepped together, in one process"
    if settings.timing.carries:
        return f"mode {settings.timing.mode} keeps replies that are under way in one process"
    return ""


def room_of(means: Means, folder: Path) -> Room:
    """Where one process keeps what its clients hold; files are in ``folder``, if this machine sees it."""
    return Room(int(means.state_memory * 2**30), folder if folder.is_dir() else None)


def alike(choice: Choice) -> Choice:
    """Return the choice with one thread per process."""
    return replace(choice, threads=1)


@contextlib.contextmanager
def together(means: Means, settings: Settings, task: Task, choice: Choice, folder: Path) -> Iterator[Spread]:
    """The executor of several processes, this one and forked ones; under ``torchrun``, of those that it started."""
    check(settings, task)
    rank, size = Group.launched()
    room = room_of(means, folder)
    with contextlib.ExitStack() as end:
        group: Group
        if size > 1:
            group = Launched(rank, size, task.device)
        else:
            if task.device.type != "cpu":
                raise UsageError("processes of one command compute on the processor: use torchrun, one per device")
            group = end.enter_context(forked(means.processes, lambda group: _follow(settings, task, group, room)))
        end.callback(group.leave)
        for process in range(1, group.size):
            group.sent(group.send(process, {"executor": choice.executor}), process)
        spread = Spread(_share(settings, task, group, choice.executor, room), group)
        yield spread
        spread.close()


def follow(settings: Settings, task: Task, means: Means, out: Path) -> None:
    """The life of a process that ``torchrun`` started beside the one that leads the run in ``out``."""
    check(settings, task)
    with contextlib.suppress(Lost):  # the leader says so, or torchrun
        group = Launched(*Group.launched(), task.device)
        _follow(settings, task, group, room_of(means, Folder(out).checkpoint.parent))
        group.leave()


def _follow(settings: Settings, task: Task, group: Group, room: Room) -> None:
    torch.set_num_threads(1)
    serve(_share(settings, task, group, group.receive(0)["executor"], room), group)


def _share(settings: Settings, task: Task, group: Group, executor: str, room: Room) -> Share:
    run = settings.run
    inner = EXECUTORS[executor](settings.policy, task, settings.training, run.seed, run.rounds)
    assert isinstance(inner, Local)
    return Share(inner, group, run.save_personal, room)


@contextlib.contextmanager
def forked(count: int, work: Callable[[Group], None]) -> Iterator[Group]:
    """This process as the first of ``count``; the others do ``work`` and end with this one, however it ends."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UsageError("processes need a system that can fork: start the run with torchrun")
    context = multiprocessing.get_context("fork")
    watched, alive = context.Pipe(duplex=False)
    ends = lines(count, context)
    others = [
        context.Process(target=_child, args=(rank, ends, watched, alive, work), daemon=True) for rank in range(1, count)
    ]
    for process in others:
        process.start()
    try:
        yield Forked(0, ends)
    finally:
        alive.close()
        for process in others:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _child(rank: int, ends: list[Lines], watched: Connection, alive: Connection, work: Callable[[Group], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's affair
    alive.close()  # else the end of the leader would not be seen
    threading.Thread(target=_end_with_leader, args=(watched,), daemon=True).start()
    with contextlib.suppress(Lost):  # the leader says so
        work(Forked(rank, ends))


def _end_with_leader(watched: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        watched.recv()
    os._exit(1)
