"""What a W1 round costs part by part: in one process, in the leading one of two, and in the other.

Each part is the processor's time within its functions, less that within other parts, in the
cheapest fifth of rounds. Other work on the machine changes that less than the time on the wall,
which :mod:`benchmarks.speed.processes` has, but it does. Waiting counts where it is done awake, and
stands by itself. One process and two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from benchmarks.lab.provenance import measured
from benchmarks.speed.processes import ROUNDS, TURN, logistic
from equipoise.core import State
from equipoise.experiment.multiprocess import fork_workers
from equipoise.methods.fedavg import FedAvg
from equipoise.simulation import aggregation_guard, executors, ipc, multiprocess, server_loop
from equipoise.simulation.client_store import ClientStore
from equipoise.simulation.executors import CohortResults, InProcessExecutor, Stacked
from equipoise.simulation.ipc import ForkedGroup, ProcessGroup
from equipoise.simulation.multiprocess import MultiProcessExecutor, Worker, serve
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

WAITING = "waiting awake for the other"
PARTS: dict[str, list[tuple[Any, str]]] = {
    "local training and clients' evaluations": [(Stacked, "run_chunk")],
    "putting chunks together": [(InProcessExecutor, "run_clients")],
    "checks, sums, the server's step": [
        *(
            (aggregation_guard.UpdateDiagnostics, "compute"),
            (CohortResults, "partial_sums"),
            (Worker, "sum_chunks"),
            (multiprocess.RemoteCohortResults, "partial_sums"),
        ),
        *((server_loop, "aggregate_with_fault_isolation"), (server_loop, "norm_outliers")),
    ],
    "evaluation of the server's model": [
        (executors, "evaluate_on_server"),
        (multiprocess, "evaluate_on_server"),
    ],
    "what clients keep": [(ClientStore, name) for name in ("client_state", "commit", "count")],
    "planning and messages": [
        *(
            (MultiProcessExecutor, "run_clients"),
            (MultiProcessExecutor, "ask"),
            (multiprocess.RemoteCohortResults, "from_answers"),
            (Worker, "run"),
        ),
        *(
            (ipc, "pack"),
            (ipc, "unpack"),
            (ipc, "_receive_into"),
            (ForkedGroup, "send"),
            (ForkedGroup, "receive"),
        ),
    ],
    WAITING: [(ForkedGroup, "_wait")],
    "scores, log, the rest of the round": [(FederatedSimulation, "run_round")],
}


class Parts:
    """Seconds of each part since :meth:`take` was last called."""

    def __init__(self) -> None:
        self._inside: list[float] = []
        self._spent: dict[str, float] = defaultdict(float)

    def take(self) -> dict[str, float]:
        spent, self._spent = self._spent, defaultdict(float)
        return spent

    def watch(self) -> None:
        """From now on, in this process and those that it forks."""
        for part, functions in PARTS.items():
            for owner, name in functions:
                plain = vars(owner)[name]
                if isinstance(plain, classmethod):
                    setattr(owner, name, classmethod(self._timed(part, plain.__func__)))
                else:
                    setattr(owner, name, self._timed(part, plain))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.thread_time()
            self._inside.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                took = time.thread_time() - started
                self._spent[part] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return timed


def parts_of(epochs: int, seconds: float, parts: Parts) -> dict[str, Any]:
    task, kind, _ = logistic(100, epochs, plain=False)
    inner = partial(kind, FedAvg(), task, task.info.training, 0, ROUNDS)
    schedule = RoundLoopConfig(ROUNDS, 0, 1.0, "stacked", 1, True)

    def follow(group: ProcessGroup) -> None:
        mine, found = Worker(inner(), group, True), []

        def answer(call: State) -> State:
            if call["do"] == "run":  # a round begins
                found.append(parts.take())
            return Worker.answer(mine, call)

        mine.answer = answer  # type: ignore[method-assign]
        serve(mine, group)
        group.wait_sent(group.send(0, _cheapest(found[2:])), 0)

    with fork_workers(2, follow) as group:
        executor = MultiProcessExecutor(Worker(inner(), group, True), group)
        ways = {
            "1 process": FederatedSimulation(
                FedAvg(), task, task.info.training, schedule
            ).run_round,
            "2 processes, the leading one": FederatedSimulation(
                FedAvg(), task, task.info.training, schedule, lambda *_: executor
            ).run_round,
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, run in ways.items():
                stop = time.perf_counter() + TURN
                run()  # finds others' data in the caches
                while time.perf_counter() < stop:
                    parts.take()
                    run()
                    found[name].append(parts.take())
        executor.close()
        other = group.receive(1)
        group.leave()
    both = {name: _cheapest(values) for name, values in found.items()} | {
        "2 processes, the other": other
    }
    computed = {name: _computed(parts) for name, parts in both.items()}
    one, leader, _ = computed.values()
    return {
        "ms of the parts": both,
        "ms of all but waiting": {name: _ms(value) for name, value in computed.items()},
        "times one process, by what the leading one computes": _ms(one / leader),
    }


def _computed(parts: dict[str, float]) -> float:
    return sum(value for part, value in parts.items() if part != WAITING)


def _cheapest(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Means over the cheapest fifth, in milliseconds."""
    rounds = sorted(rounds, key=_computed)
    rounds = rounds[: max(1, len(rounds) // 5)]
    return {
        part: _ms(1e3 * statistics.fmean(each.get(part, 0.0) for each in rounds)) for part in PARTS
    }


def _ms(value: float) -> float:
    return float(f"{value:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each workload")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    parts = Parts()
    parts.watch()
    workloads = {"W1, 1 epoch": 1, "W1, 5 epochs": 5}
    measured(
        "round_parts",
        {name: parts_of(epochs, chosen.seconds, parts) for name, epochs in workloads.items()},
    )


if __name__ == "__main__":
    main()
