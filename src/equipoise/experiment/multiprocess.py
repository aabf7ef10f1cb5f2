"""How a run's clients are computed: as asked, or as measured once."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from equipoise.core import Task
from equipoise.experiment.signals import threads
from equipoise.records.run_dir import Folder
from equipoise.settings.run_config import ResourceConfig
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.attacks import ATTACKS, parse_attack
from equipoise.simulation.client_store import MemoryBudget
from equipoise.simulation.executor_selection import (
    EXECUTORS,
    ExecutorPlan,
    available_cores,
    seconds_per_step,
    select_executor,
)
from equipoise.simulation.executors import InProcessExecutor
from equipoise.simulation.ipc import (
    ForkedGroup,
    Channels,
    ProcessGroup,
    TorchrunGroup,
    WorkerLost,
    channels,
)
from equipoise.simulation.multiprocess import MultiProcessExecutor, Worker, serve
from equipoise.utils import io as checkpoint
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

STARTING = 3.0  # seconds that processes must save in all, to be started unasked
MESSAGES = 0.01  # seconds per round that they lose to each other
FASTEST = 1e-6  # seconds: no step of one client with dense layers takes less


def plan_for_run(settings: RunSettings, task: Task, folder: Folder) -> ExecutorPlan:
    """The executor; what was measured once holds for the whole run, also after a crash."""
    run, file = settings.run, folder.executor
    if run.executor != "auto":
        return ExecutorPlan(run.executor, run.threads)
    if file.exists():
        try:
            return ExecutorPlan(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise UsageError(f"'{file}' is damaged: remove it ({error})") from error
    cohort = len(_first_cohort(settings, task))
    choice = select_executor(
        task,
        settings.training.at(1, run.rounds),
        cohort,
        allow_processes=not single_process_reason(settings, task),
    )
    if choice.processes == 1:
        choice = replace(choice, threads=max(choice.threads, run.threads))
    checkpoint.write_text(file, json.dumps(asdict(choice)))
    return choice


def num_processes(settings: RunSettings, task: Task, choice: ExecutorPlan) -> tuple[int, str]:
    """How many processes the run is to have where nobody says, and a remark on it; none where one is obvious."""
    run = settings.run
    faster = choice.executor == "stacked" or choice.processes > 1
    if run.executor != "auto" or not faster or task.device.type != "cpu":
        return 1, ""
    if (
        single_process_reason(settings, task)
        or "fork" not in multiprocessing.get_all_start_methods()
    ):
        return 1, ""
    ids = _first_cohort(settings, task)
    training = settings.training.at(1, run.rounds)
    chunks = choice.make(settings.wrapped_method, task, training, run.seed, run.rounds).chunks(
        len(ids)
    )
    processes = min(available_cores(), len(chunks))
    cohort = torch.from_numpy(ids)
    steps = int(task.num_steps(cohort, torch.full_like(cohort, training.epochs), training).sum())
    short = not task.executor_depends_on_model and steps * run.rounds * FASTEST < STARTING
    if processes == 1 or short:
        return 1, ""
    with threads(1):  # as in each of several processes
        each = steps * seconds_per_step(task, training, chunks[0].stop)
    saved = run.rounds * (each * (1 - 1 / processes) - MESSAGES)
    measured = f"local training takes one about {1000 * each:.0f} ms per round"
    if saved < STARTING:
        return 1, f"one process: {measured}, and others would not save the time to start them"
    return (
        processes,
        f"{processes} processes share the clients: {measured}; the result is that of one",
    )


def _first_cohort(settings: RunSettings, task: Task) -> Ints:
    run = settings.run
    first = run.at(1, run.rounds)
    return rng.cohort(run.seed, 1, task.num_clients, first.participation)


def is_worker_rank() -> bool:
    """Whether this process was started beside another that leads."""
    return ProcessGroup.launched()[0] > 0


def check(settings: RunSettings, task: Task) -> None:
    """Refuse what one process must do alone."""
    if reason := single_process_reason(settings, task):
        raise UsageError(f"{reason}: leave processes at 0 or 1")


def single_process_reason(settings: RunSettings, task: Task) -> str:
    """Why one process must do it alone; empty if several may."""
    if settings.run.attack and parse_attack(settings.run.attack)[0] in ATTACKS:
        return "hostile clients of an attack on uploads see those of all others, which must be in one process"
    if not task.supports_fork:
        return f"the agents of task '{task.name}' are stepped together, in one process"
    if settings.timing.carries_stale_updates:
        return f"mode {settings.timing.mode} keeps replies that are under way in one process"
    return ""


def memory_budget(means: ResourceConfig, folder: Path) -> MemoryBudget:
    """Where one process keeps what its clients hold; files are in ``folder``, if this machine sees it."""
    return MemoryBudget(int(means.client_memory_gib * 2**30), folder if folder.is_dir() else None)


def per_process_plan(choice: ExecutorPlan) -> ExecutorPlan:
    """Return the choice with one thread per process."""
    return replace(choice, threads=1)


@contextlib.contextmanager
def multiprocess_executor(
    means: ResourceConfig, settings: RunSettings, task: Task, choice: ExecutorPlan, folder: Path
) -> Iterator[MultiProcessExecutor]:
    """The executor of several processes, this one and forked ones; under ``torchrun``, of those that it started."""
    check(settings, task)
    rank, size = ProcessGroup.launched()
    room = memory_budget(means, folder)
    with contextlib.ExitStack() as end:
        group: ProcessGroup
        if size > 1:
            group = TorchrunGroup(rank, size, task.device)
        else:
            if task.device.type != "cpu":
                raise UsageError(
                    "processes of one command compute on the processor: use torchrun, one per device"
                )
            group = end.enter_context(
                forked(means.processes, lambda group: _follow(settings, task, group, room))
            )
        end.callback(group.leave)
        for process in range(1, group.size):
            group.sent(group.send(process, {"executor": choice.executor}), process)
        spread = MultiProcessExecutor(_share(settings, task, group, choice.executor, room), group)
        yield spread
        spread.close()


def run_worker(settings: RunSettings, task: Task, means: ResourceConfig, out: Path) -> None:
    """The life of a process that ``torchrun`` started beside the one that leads the run in ``out``."""
    check(settings, task)
    with contextlib.suppress(WorkerLost):  # the leader says so, or torchrun
        group = TorchrunGroup(*ProcessGroup.launched(), task.device)
        _follow(settings, task, group, memory_budget(means, Folder(out).checkpoint.parent))
        group.leave()


def _follow(settings: RunSettings, task: Task, group: ProcessGroup, room: MemoryBudget) -> None:
    torch.set_num_threads(1)
    serve(_share(settings, task, group, group.receive(0)["executor"], room), group)


def _share(
    settings: RunSettings, task: Task, group: ProcessGroup, executor: str, room: MemoryBudget
) -> Worker:
    run = settings.run
    inner = EXECUTORS[executor](
        settings.wrapped_method, task, settings.training, run.seed, run.rounds
    )
    assert isinstance(inner, InProcessExecutor)
    return Worker(inner, group, run.save_personal, room)


@contextlib.contextmanager
def forked(count: int, work: Callable[[ProcessGroup], None]) -> Iterator[ProcessGroup]:
    """This process as the first of ``count``; the others do ``work`` and end with this one, however it ends."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UsageError("processes need a system that can fork: start the run with torchrun")
    context = multiprocessing.get_context("fork")
    watched, alive = context.Pipe(duplex=False)
    ends = channels(count, context)
    others = [
        context.Process(target=_child, args=(rank, ends, watched, alive, work), daemon=True)
        for rank in range(1, count)
    ]
    for process in others:
        process.start()
    try:
        yield ForkedGroup(0, ends)
    finally:
        alive.close()
        for process in others:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _child(
    rank: int,
    ends: list[Channels],
    watched: Connection,
    alive: Connection,
    work: Callable[[ProcessGroup], None],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's affair
    alive.close()  # else the end of the leader would not be seen
    threading.Thread(target=_end_with_leader, args=(watched,), daemon=True).start()
    with contextlib.suppress(WorkerLost):  # the leader says so
        work(ForkedGroup(rank, ends))


def _end_with_leader(watched: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        watched.recv()
    os._exit(1)
