"""Choose the executor and the processes of a run; start and stop the worker processes."""

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
from equipoise.records import codec
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
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
    Channels,
    ForkedGroup,
    ProcessGroup,
    TorchrunGroup,
    WorkerLost,
    channels,
)
from equipoise.simulation.multiprocess import MultiProcessExecutor, Worker, serve
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

MIN_SAVED_SECONDS = 3.0  # workers are started only if they save more than this in total
MESSAGE_SECONDS = 0.01  # cost of the messages between processes, per round
MIN_STEP_SECONDS = 1e-6  # lower bound for one step of one client with dense layers


def plan_for_run(settings: ExperimentConfig, task: Task, folder: RunFolder) -> ExecutorPlan:
    """Choose the executor of a run.

    A measured choice is stored in the folder and holds for the whole run, also after a crash.

    Args:
        settings: Options of the run.
        task: Task of the run.
        folder: Folder of the run.

    Returns:
        The executor with its threads and processes.

    Raises:
        UsageError: If the stored choice is damaged.
    """
    run = settings.run
    file = folder.executor
    if run.executor != "auto":
        return ExecutorPlan(run.executor, run.threads)
    if file.exists():
        return codec.loads(ExecutorPlan, file.read_text(), file)
    cohort = len(_first_cohort(settings, task))
    choice = select_executor(
        task,
        settings.training.at(1, run.rounds),
        cohort,
        allow_processes=not single_process_reason(settings, task),
    )
    if choice.processes == 1:
        choice = replace(choice, threads=max(choice.threads, run.threads))
    file.write(json.dumps(asdict(choice)))
    return choice


def num_processes(settings: ExperimentConfig, task: Task, choice: ExecutorPlan) -> tuple[int, str]:
    """Choose the number of processes, where the user did not.

    Args:
        settings: Options of the run.
        task: Task of the run.
        choice: Executor of the run.

    Returns:
        The number, and a note for the user; the note is empty if one process is obvious.
    """
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
    short = (
        not task.info.executor_depends_on_model
        and steps * run.rounds * MIN_STEP_SECONDS < MIN_SAVED_SECONDS
    )
    if processes == 1 or short:
        return 1, ""
    with threads(1):  # as in each of several processes
        each = steps * seconds_per_step(task, training, chunks[0].stop)
    saved = run.rounds * (each * (1 - 1 / processes) - MESSAGE_SECONDS)
    measured = f"local training takes one about {1000 * each:.0f} ms per round"
    if saved < MIN_SAVED_SECONDS:
        return 1, f"one process: {measured}, and others would not save the time to start them"
    return (
        processes,
        f"{processes} processes share the clients: {measured}; the result is that of one",
    )


def _first_cohort(settings: ExperimentConfig, task: Task) -> Ints:
    """Return the clients of the first round."""
    run = settings.run
    first = run.at(1, run.rounds)
    return rng.sample_cohort(run.seed, 1, task.info.num_clients, first.participation)


def is_worker_rank() -> bool:
    """Return whether ``torchrun`` started this process as a worker."""
    return ProcessGroup.launched_rank()[0] > 0


def check(settings: ExperimentConfig, task: Task) -> None:
    """Raise ``UsageError`` if the run needs a single process.

    Args:
        settings: Settings of the run.
        task: Task of the run.

    Raises:
        UsageError: If the run needs a single process, and more are asked for.
    """
    if reason := single_process_reason(settings, task):
        raise UsageError(f"{reason}: leave processes at 0 or 1")


def single_process_reason(settings: ExperimentConfig, task: Task) -> str:
    """Return why the run needs a single process; empty if it does not."""
    if settings.run.attack and parse_attack(settings.run.attack)[0] in ATTACKS:
        return (
            "hostile clients of an attack on uploads see those of all others, "
            "which must be in one process"
        )
    if not task.info.supports_fork:
        return f"the agents of task '{task.info.name}' are stepped together, in one process"
    if settings.timing.carries_stale_updates:
        return f"mode {settings.timing.mode} keeps replies that are under way in one process"
    return ""


def memory_budget(resources: ResourceConfig, folder: Path) -> MemoryBudget:
    """Return the limit for client state in RAM; what exceeds it spills to ``folder``."""
    return MemoryBudget(
        int(resources.client_memory_gib * 2**30), folder if folder.is_dir() else None
    )


def per_process_plan(choice: ExecutorPlan) -> ExecutorPlan:
    """Return the choice with one thread per process."""
    return replace(choice, threads=1)


@contextlib.contextmanager
def multiprocess_executor(
    resources: ResourceConfig,
    settings: ExperimentConfig,
    task: Task,
    choice: ExecutorPlan,
    folder: Path,
) -> Iterator[MultiProcessExecutor]:
    """Start the worker processes of a run: forked, or those of ``torchrun``.

    Args:
        resources: Resource limits.
        settings: Options of the run.
        task: Task of the run.
        choice: Executor within each process.
        folder: Folder for client state that exceeds the memory.

    Yields:
        The executor of all processes.

    Raises:
        UsageError: If the run needs a single process, or the device is not the CPU.
    """
    check(settings, task)
    rank, size = ProcessGroup.launched_rank()
    budget = memory_budget(resources, folder)
    with contextlib.ExitStack() as end:
        group: ProcessGroup
        if size > 1:
            group = TorchrunGroup(rank, size, task.device)
        else:
            if task.device.type != "cpu":
                raise UsageError(
                    "processes of one command compute on the processor: use torchrun, one per "
                    "device"
                )
            group = end.enter_context(
                fork_workers(
                    resources.processes, lambda group: _work(settings, task, group, budget)
                )
            )
        end.callback(group.leave)
        for process in range(1, group.size):
            group.wait_sent(group.send(process, {"executor": choice.executor}), process)
        worker = _worker(settings, task, group, choice.executor, budget)
        executor = MultiProcessExecutor(worker, group)
        yield executor
        executor.close()


def run_worker(
    settings: ExperimentConfig, task: Task, resources: ResourceConfig, out: Path
) -> None:
    """Serve the leading process of a run until it ends, in a worker of ``torchrun``.

    Args:
        settings: Options of the run.
        task: Task of the run.
        resources: Resource limits.
        out: Folder of the run.
    """
    check(settings, task)
    with contextlib.suppress(WorkerLost):  # the leader or torchrun reports it
        group = TorchrunGroup(*ProcessGroup.launched_rank(), task.device)
        _work(settings, task, group, memory_budget(resources, RunFolder(out).checkpoints))
        group.leave()


def _work(
    settings: ExperimentConfig, task: Task, group: ProcessGroup, budget: MemoryBudget
) -> None:
    """Serve the leading process with one thread."""
    torch.set_num_threads(1)
    serve(_worker(settings, task, group, group.receive(0)["executor"], budget), group)


def _worker(
    settings: ExperimentConfig, task: Task, group: ProcessGroup, executor: str, budget: MemoryBudget
) -> Worker:
    """Make the part of the executor that runs in this process."""
    run = settings.run
    inner = EXECUTORS[executor](
        settings.wrapped_method, task, settings.training, run.seed, run.rounds
    )
    assert isinstance(inner, InProcessExecutor)
    return Worker(inner, group, run.save_personal, budget)


@contextlib.contextmanager
def fork_workers(count: int, work: Callable[[ProcessGroup], None]) -> Iterator[ProcessGroup]:
    """Fork worker processes, which end with this one, however it ends.

    Args:
        count: Number of processes, this one included.
        work: Called in each worker.

    Yields:
        The group, in which this process is the first.

    Raises:
        UsageError: If the system cannot fork.
    """
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
    connection: Connection,
    alive: Connection,
    work: Callable[[ProcessGroup], None],
) -> None:
    """Run a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader handles Ctrl-C
    alive.close()  # otherwise the end of the leader would go unnoticed
    threading.Thread(target=_end_with_leader, args=(connection,), daemon=True).start()
    with contextlib.suppress(WorkerLost):  # the leader reports it
        work(ForkedGroup(rank, ends))


def _end_with_leader(connection: Connection) -> None:
    """Exit as soon as the leader closes its end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)
