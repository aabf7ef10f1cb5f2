"""Which executor suits a model: dense layers stack; for the others a few steps each way are measured, not guessed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from equipoise.contract import Fit, Method, Task, Training, Tree, When
from equipoise.runtime.executors import Executor, Loop, Stacked
from equipoise.runtime.workers import Workers, available_cores

MEASURED_BATCH = 32  # larger batches are measured at this size, to keep the measurement short
STACKED_CLIENTS = 8
CLEARLY = 0.95  # a way must be at least this much faster than one client after another on one thread

MakeExecutor = Callable[[Method, Task, Training, int, int], Executor]
"""From method, task, training, seed and number of rounds to where the clients are."""


@dataclass(frozen=True)
class Choice:
    """How clients are computed, and why."""

    executor: str
    threads: int = 1
    workers: int = 0
    why: str = "as asked"

    @property
    def make(self) -> MakeExecutor:
        return partial(Workers, workers=self.workers) if self.executor == "workers" else EXECUTORS[self.executor]

    @property
    def name(self) -> str:
        return f"{self.executor} with {self.threads} threads" if self.threads > 1 else self.executor

    def __str__(self) -> str:
        size = f"{self.workers} processes" if self.executor == "workers" else f"{self.threads} thread"
        return f"{self.executor}, {size}{'s' if self.executor != 'workers' and self.threads > 1 else ''} ({self.why})"


def choose(task: Task, training: Training, cohort: int) -> Choice:
    """The fastest way for a cohort of so many clients on this machine, now."""
    if not task.measured:
        why = "dense layers" if task.forks else "the task computes its clients together"
        return Choice("stacked", why=why)
    before = torch.get_num_threads()
    try:
        cores = available_cores() if task.device.type == "cpu" else 1  # a device has its own
        ways = _measure(task, training, cohort, cores)
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


EXECUTORS: dict[str, MakeExecutor] = {"auto": automatic, "stacked": Stacked, "loop": Loop, "workers": Workers}


def _measure(task: Task, training: Training, cohort: int, cores: int) -> dict[Choice, float]:
    """Seconds a step of one client, each way."""
    torch.set_num_threads(1)
    ways = {Choice("loop"): seconds_of_a_step(task, training, 1)}
    if task.stackable and cohort > 1:
        ways[Choice("stacked")] = seconds_of_a_step(task, training, min(cohort, STACKED_CLIENTS))
    if cores > 1 and cohort > 1 and "fork" in multiprocessing.get_all_start_methods():
        processes = min(cores, cohort)
        ways[Choice("workers", workers=processes)] = _seconds_together(task, training, processes) / processes
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
