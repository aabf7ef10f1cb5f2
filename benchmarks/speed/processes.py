"""Two processes against one and the plain loop: W1 (100 logistic clients), W2 (20 convolutional), a
cohort of 10,000.

Contestants take turns, each for a while, since the rounds of a run follow each other. Wall-clock
ratios mean something on a machine that does nothing else. The processors' seconds of each process
stand beside them; they count what it waits awake for another. :mod:`benchmarks.speed.round_parts`
tells where the time goes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.lab.provenance import measured
from benchmarks.speed import conv, engine
from equipoise.core import Task, TrainingConfig
from equipoise.experiment.multiprocess import fork_workers
from equipoise.methods.fedavg import FedAvg
from equipoise.models.linear import linear
from equipoise.simulation.executors import InProcessExecutor, Loop, Stacked
from equipoise.simulation.multiprocess import MultiProcessExecutor, Worker, serve
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask

ROUNDS = 10**6
TURN = 0.5  # seconds
TICK = os.sysconf("SC_CLK_TCK")


Workload = tuple[Task, type[InProcessExecutor], engine.Round | None]
"""A task, how one process computes it, and the plain loop."""


def logistic(clients: int, epochs: int, plain: bool = True) -> Workload:
    training = TrainingConfig(epochs=epochs, lr=engine.LR, batch_size=engine.BATCH)
    data = engine.data_of(clients)
    task = ExamplesTask("synthetic", linear((engine.FEATURES,), engine.CLASSES), data, training)
    return task, Stacked, engine.plain_round(data, epochs) if plain else None


def convolutional() -> Workload:
    data = conv.federation()
    return conv.task_of(data), Loop, conv.plain_round(data)


def scaling(
    task: Task,
    kind: type[InProcessExecutor],
    plain: engine.Round | None,
    seconds: float,
    processes: int = 2,
) -> dict[str, float]:
    """Milliseconds per round: on the wall, and of each process on its processor."""
    training = task.info.training
    inner = partial(kind, FedAvg(), task, training, 0, ROUNDS)
    schedule = RoundLoopConfig(ROUNDS, 0, 1.0, kind.__name__.lower(), 1, True)

    def round_of(
        make: Callable[[], InProcessExecutor | MultiProcessExecutor],
    ) -> Callable[[], object]:
        return FederatedSimulation(FedAvg(), task, training, schedule, lambda *_: make()).run_round

    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    with fork_workers(processes, lambda group: serve(Worker(inner(), group, True), group)) as group:
        others = [int(pid) for pid in pids.read_text().split()]
        spread = MultiProcessExecutor(Worker(inner(), group, True), group)
        ways = {"one": round_of(inner), "several": round_of(lambda: spread)}
        ways |= {"plain": plain} if plain else {}
        for run in ways.values():
            run()
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        theirs, end = sum(map(_ticks, others)), time.perf_counter() + seconds
        shared = 0
        while time.perf_counter() < end or len(wall["one"]) < 3:
            for name, run in ways.items():
                turn = _turn(run)
                shared += len(turn) if name == "several" else 0
                for took, used in turn[1:] or turn:
                    wall[name].append(1e3 * took)
                    cpu[name].append(1e3 * used)
        follower = 1e3 * (sum(map(_ticks, others)) - theirs) / TICK / len(others) / shared
        spread.close()
        group.leave()
    beside = {}
    if plain:
        beside = {
            "plain loop, ms per round: fastest": round(min(wall["plain"]), 2),
            f"{processes} processes: times the plain loop": round(
                min(wall["plain"]) / min(wall["several"]), 1
            ),
        }
    alone, leader = statistics.median(cpu["one"]), statistics.median(cpu["several"])
    return {
        "rounds": len(wall["one"]),
        "1 process, ms per round: fastest": round(min(wall["one"]), 2),
        f"{processes} processes, ms per round: fastest": round(min(wall["several"]), 2),
        **beside,
        "times one process: fastest rounds": round(min(wall["one"]) / min(wall["several"]), 2),
        "times one process: median rounds": round(
            statistics.median(wall["one"]) / statistics.median(wall["several"]), 2
        ),
        "CPU ms per round of 1 process": round(alone, 2),
        "CPU ms per round of the leader": round(leader, 2),
        "CPU ms per round of the others, each": round(follower, 2),
    }


def _turn(run: engine.Round) -> list[tuple[float, float]]:
    """Seconds of rounds, by the wall and of this processor; the first of several finds others' data
    in the caches.
    """
    end = time.perf_counter() + TURN
    found: list[tuple[float, float]] = []
    while not found or time.perf_counter() < end:
        started, used = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - started, time.process_time() - used))
    return found


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each workload")
    parser.add_argument("--only", default="", help="workloads whose name contains this text")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    workloads: dict[str, Callable[[], Workload]] = {
        "W1, 1 epoch": partial(logistic, 100, 1),
        "W1, 5 epochs": partial(logistic, 100, 5),
        "W2": convolutional,
        "a cohort of 10,000, 1 epoch": partial(logistic, 10_000, 1, plain=False),
    }
    found = {
        name: scaling(*make(), chosen.seconds)
        for name, make in workloads.items()
        if chosen.only in name
    }
    measured("processes", found)


if __name__ == "__main__":
    main()
