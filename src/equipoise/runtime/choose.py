"""Which executor suits a model: dense layers stack; for the others a few steps each way are measured, not guessed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from equipoise.contract import Fit, Method, Task, Training, Tree, When
from equipoise.runtime.device import available_cores
from equipoise.runtime.executors import Executor, Loop, Stacked

MEASURED_BATCH = 32  # larger batches are measured at this size, to keep the measurement short
STACKED_CLIENTS = 8
CLEARLY = 0.95  # a way must be at least this much faster than one client after another on one thread

MakeExecutor = Callable[[Method, Task, Training, int, int], Executor]
"""From method, task, training, seed and number of rounds to where the clients are."""


@dataclass(frozen=True)
class Choice:
    """How one process computes its clients, and why.

    Attributes:
        executor: A key of `EXECUTORS`.
        threads: Threads of one tensor operation.
        processes: Processes that shared the clients where this was measured; 1 where that was not faster, or was
            not measured. How many there are in a run is decided at its start and changes no result.
        why: The reason, for the reader of a summary.
    """

    executor: str
    threads: int = 1
    processes: int = 1
    why: str = "as asked"

    @property
    def make(self) -> MakeExecutor:
        return EXECUTORS[self.executor]

    @property
    def name(self) -> str:
        if self.processes > 1:
            return f"{self.executor} in {self.processes} processes"
        if self.threads > 1:
            return f"{self.executor} with {self.threads} threads"
        return self.executor

    def __str__(self) -> str:
        plural = "s" if self.threads > 1 else ""
        return f"{self.executor}, {self.threads} thread{plural} ({self.why})"


def choose(task: Task, training: Training, cohort: int, shared: bool = False) -> Choice:
    """Return the fastest way to compute a cohort on this machine, now.

    Args:
        task: The task of the clients.
        training: How they train.
        cohort: The number of clients of a round.
        shared: Whether several processes may share the clients; that is then measured, too.

    Returns:
        The choice; `loop` on one thread unless another way is clearly faster.
    """
    if not task.measured:
        why = "dense layers" if task.forks else "the task computes its clients together"
        return Choice("stacked", why=why)
    before = torch.get_num_threads()
    try:
        cores = available_cores() if task.device.type == "cpu" else 1  # a device has its own
        ways = _measure(task, training, cohort, cores, shared)
    finally:
        torch.set_num_threads(before)
    best, plain = min(ways, key=lambda way: ways[way]), Choice("loop")
    if ways[best] > CLEARLY * ways[plain]:
        best = plain
    found = ", ".join(f"{way.name} {1000 * seconds:.1f}" for way, seconds in ways.items())
    return replace(best, why=f"measured, ms a step of one client: {found}")


def automatic(method: Method, task: Task, training: Training, seed: int, rounds: int) -> Executor:
    """The executor of :func:`choose` for everybody."""
    return choose(task, training, task.clients).make(method, task, training, seed, rounds)


EXECUTORS: dict[str, MakeExecutor] = {"auto": automatic, "stacked": Stacked, "loop": Loop}


def _measure(task: Task, training: Training, cohort: int, cores: int, shared: bool) -> dict[Choice, float]:
    """Seconds a step of one client, each way."""
    torch.set_num_threads(1)
    ways = {Choice("loop"): seconds_of_a_step(task, training, 1)}
    if task.stackable and cohort > 1:
        ways[Choice("stacked")] = seconds_of_a_step(task, training, min(cohort, STACKED_CLIENTS))
    processes = min(cores, cohort)
    if shared and processes > 1 and "fork" in multiprocessing.get_all_start_methods():
        ways[Choice("loop", processes=processes)] = _seconds_together(task, training, processes) / processes
    if cores > 1:
        torch.set_num_threads(cores)
        ways[Choice("loop", threads=cores)] = seconds_of_a_step(task, training, 1)
    return ways


def seconds_of_a_step(task: Task, training: Training, clients: int) -> float:
    """Seconds that a step of one client takes, with so many clients computed at once."""
    ids = torch.arange(clients)
    one: Tree = task.init_params(0)
    params = {name: value.expand(clients, *value.shape) for name, value in one.items()}
    rows = int(task.sizes(ids).max())
    batch = min(training.batch_size, MEASURED_BATCH)
    when = When(0, 0, replace(training, batch_size=batch))
    lr = torch.full((clients,), training.lr, dtype=next(iter(one.values())).dtype)
    fit = Fit(params, torch.ones_like(ids), lr, names=tuple(one), part=(0.0, min(1.0, 2 * batch / rows)))
    steps = float(task.steps(ids, fit.epochs, when.training, fit.part).max())
    best = float("inf")
    for _ in range(2):  # the first also warms up
        started = time.perf_counter()
        if clients == 1:
            task.fit(ids[0], replace(fit, params=one, epochs=fit.epochs[0], lr=lr[0]), {}, when)
        else:
            task.fit_stack(ids, fit, {}, when)
        best = min(best, time.perf_counter() - started)
    return best / steps / clients


def _seconds_together(task: Task, training: Training, processes: int) -> float:
    """As :func:`seconds_of_a_step` of one client, while so many processes do it at the same time."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def measure() -> None:
        torch.set_num_threads(1)
        results.put(seconds_of_a_step(task, training, 1))

    crew = [context.Process(target=measure, daemon=True) for _ in range(processes)]
    for process in crew:
        process.start()
    seconds = [results.get() for _ in crew]
    for process in crew:
        process.join()
    results.close()
    return float(max(seconds))
