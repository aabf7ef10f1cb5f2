"""Select an executor: dense layers are stacked; for other models a few steps are measured."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from equipoise.core import (
    ExperimentTask,
    LocalTrainRequest,
    Method,
    Params,
    RngContext,
    Task,
    TrainingConfig,
)
from equipoise.simulation.executors import Executor, Loop, Stacked
from equipoise.utils.errors import UsageError

MEASURED_BATCH = 32  # larger batches are measured at this size, to keep the measurement short
STACKED_CLIENTS = 8
MAX_RELATIVE_TIME = (
    0.95  # a way must be at least this much faster than one client after another on one thread
)

MakeExecutor = Callable[[Method, Task, TrainingConfig, int, int], Executor]
"""From method, task, training, seed and number of rounds to where the clients are."""


@dataclass(frozen=True)
class ExecutorPlan:
    """How one process computes its clients, and why.

    Attributes:
        executor: A key of `EXECUTORS`.
        threads: Threads of one tensor operation.
        processes: Processes that shared the clients in the measurement; 1 if that was not faster or
            not measured. The number in a run is decided at its start and changes no result.
        why: The reason, for the reader of a summary.
    """

    executor: str
    threads: int = 1
    processes: int = 1
    why: str = "as asked"

    @property
    def make(self) -> MakeExecutor:
        """Return the constructor of the executor."""
        return EXECUTORS[self.executor]

    @property
    def name(self) -> str:
        """Return the executor with its processes or threads, as a report shows it."""
        if self.processes > 1:
            return f"{self.executor} in {self.processes} processes"
        if self.threads > 1:
            return f"{self.executor} with {self.threads} threads"
        return self.executor

    def __str__(self) -> str:
        """Return the plan in words."""
        plural = "s" if self.threads > 1 else ""
        return f"{self.executor}, {self.threads} thread{plural} ({self.why})"


def select_executor(
    task: Task, training: TrainingConfig, cohort: int, allow_processes: bool = False
) -> ExecutorPlan:
    """Return the fastest way to compute a cohort on this machine, now.

    Args:
        task: The task of the clients.
        training: How they train.
        cohort: The number of clients of a round.
        allow_processes: Whether several processes may share the clients; measured, too.

    Returns:
        The choice; `loop` on one thread unless another way is clearly faster.
    """
    if not task.info.executor_depends_on_model:
        reason = (
            "dense layers" if task.info.supports_fork else "the task computes its clients together"
        )
        return ExecutorPlan("stacked", why=reason)
    before = torch.get_num_threads()
    try:
        cores = available_cores() if task.device.type == "cpu" else 1  # a device has its own
        ways = _measure(task, training, cohort, cores, allow_processes)
    finally:
        torch.set_num_threads(before)
    best = min(ways, key=lambda way: ways[way])
    plain = ExecutorPlan("loop")
    if ways[best] > MAX_RELATIVE_TIME * ways[plain]:
        best = plain
    timings = ", ".join(f"{way.name} {1000 * seconds:.1f}" for way, seconds in ways.items())
    return replace(best, why=f"measured, ms a step of one client: {timings}")


def auto_executor(
    method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
) -> Executor:
    """Make the executor that :func:`select_executor` selects for a cohort of all clients.

    Args:
        method: Method of the run.
        task: Task of the run.
        training: Settings of local training.
        seed: Seed of the run.
        rounds: Number of rounds of the run.

    Returns:
        The executor.
    """
    return select_executor(task, training, task.info.num_clients).make(
        method, task, training, seed, rounds
    )


EXECUTORS: dict[str, MakeExecutor] = {"auto": auto_executor, "stacked": Stacked, "loop": Loop}


def _measure(
    task: Task, training: TrainingConfig, cohort: int, cores: int, shared: bool
) -> dict[ExecutorPlan, float]:
    """Measure the seconds per step and client of every plan that the model allows."""
    torch.set_num_threads(1)
    ways = {ExecutorPlan("loop"): seconds_per_step(task, training, 1)}
    if task.info.stackable and cohort > 1:
        ways[ExecutorPlan("stacked")] = seconds_per_step(
            task, training, min(cohort, STACKED_CLIENTS)
        )
    processes = min(cores, cohort)
    if shared and processes > 1 and "fork" in multiprocessing.get_all_start_methods():
        ways[ExecutorPlan("loop", processes=processes)] = (
            _seconds_per_step_concurrently(task, training, processes) / processes
        )
    if cores > 1:
        torch.set_num_threads(cores)
        ways[ExecutorPlan("loop", threads=cores)] = seconds_per_step(task, training, 1)
    return ways


def seconds_per_step(task: Task, training: TrainingConfig, clients: int) -> float:
    """Return the seconds per step and client, with this many clients computed at once.

    Args:
        task: Task of the run.
        training: Settings of local training.
        clients: Number of clients of the stack.
    """
    ids = torch.arange(clients)
    one: Params = task.init_params(0)
    params = {name: value.expand(clients, *value.shape) for name, value in one.items()}
    rows = int(task.num_examples(ids).max())
    batch = min(training.batch_size, MEASURED_BATCH)
    when = RngContext(0, 0, replace(training, batch_size=batch))
    lr = torch.full((clients,), training.lr, dtype=next(iter(one.values())).dtype)
    fit = LocalTrainRequest(
        params,
        torch.ones_like(ids),
        lr,
        trainable=tuple(one),
        data_range=(0.0, min(1.0, 2 * batch / rows)),
    )
    steps = float(task.num_steps(ids, fit.epochs, when.training, fit.data_range).max())
    best = float("inf")
    for _ in range(2):  # the first also warms up
        started = time.perf_counter()
        if clients == 1:
            task.fit(ids[0], replace(fit, params=one, epochs=fit.epochs[0], lr=lr[0]), {}, when)
        else:
            task.fit_stack(ids, fit, {}, when)
        best = min(best, time.perf_counter() - started)
    return best / steps / clients


def _seconds_per_step_concurrently(task: Task, training: TrainingConfig, processes: int) -> float:
    """Return the seconds per step of one client while several processes run at once."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def measure() -> None:
        torch.set_num_threads(1)
        results.put(seconds_per_step(task, training, 1))

    crew = [context.Process(target=measure, daemon=True) for _ in range(processes)]
    for process in crew:
        process.start()
    seconds = [results.get() for _ in crew]
    for process in crew:
        process.join()
    results.close()
    return float(max(seconds))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def to_device(task: ExperimentTask, name: str) -> ExperimentTask:
    """Move a task to a device; ``auto`` is the first CUDA device, else the processor.

    Processes that ``torchrun`` started take one device each.

    Args:
        task: The task.
        name: Name of the device.

    Returns:
        The task on the device.

    Raises:
        UsageError: If there is no such device.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        raise UsageError(
            f"unknown device '{name}': choose auto, cpu, cuda, or cuda:1 for the second"
        )
    if not task.info.supports_fork and not name.startswith("cuda"):  # nothing to gain there
        return task
    num_devices = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not num_devices):
        return task
    number = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0"))
    if number >= num_devices:
        raise UsageError(
            f"device is '{name}', but PyTorch finds {num_devices} CUDA devices: use another, or "
            "auto"
        )
    return task.to(torch.device("cuda", number))
