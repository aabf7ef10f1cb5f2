"""W2: 20 clients with 600 images 28x28 each, CNN conv16-conv32-fc128-fc10, batch 32, one epoch,
everybody each round.

Equipoise's ways to run a convolutional model against a well-written plain loop, with one thread,
with one thread per core and with one process per core. Rounds of the contestants take turns in one
run; the fastest and the median round of each are written. On a machine that other work shares,
threads collapse: read the load beside the figures, or leave them out (``--single``).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.lab.provenance import measured
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import Federation
from equipoise.data.transforms import PixelTransform
from equipoise.experiment.multiprocess import fork_workers
from equipoise.methods.fedavg import FedAvg
from equipoise.models import MODELS
from equipoise.simulation.executor_selection import MakeExecutor, available_cores
from equipoise.simulation.executors import Loop, Stacked
from equipoise.simulation.ipc import ProcessGroup
from equipoise.simulation.multiprocess import MultiProcessExecutor, Worker, serve
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask

CLIENTS, IMAGES, BATCH, LR = 20, 600, 32, 0.05
ROUNDS = 10**9  # more than are ever measured
TRAINING = TrainingConfig(epochs=1, lr=LR, batch_size=BATCH)
Round = Callable[[], object]


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, 256, (count, 28, 28, 1), dtype=torch.uint8, generator=generator)
        return x, torch.randint(0, 10, (count,), generator=generator)

    splits = {
        "train": (*rows(CLIENTS * IMAGES), np.full(CLIENTS, IMAGES)),
        "test": (*rows(CLIENTS), np.ones(CLIENTS, int)),
    }
    return Federation(
        splits, {"public": rows(1), "test": rows(1)}, 10, PixelTransform((0.286,), (0.353,))
    )


def task_of(data: Federation) -> ExamplesTask:
    return ExamplesTask("w2", MODELS["cnn"](data.shape, 10), data, TRAINING)


def equipoise_round(data: Federation, executor: MakeExecutor) -> Round:
    schedule = RoundLoopConfig(
        ROUNDS, 0, 1.0, "loop", ROUNDS, False
    )  # no evaluation: training and aggregation only
    return FederatedSimulation(FedAvg(), task_of(data), TRAINING, schedule, executor).run_round


@contextlib.contextmanager
def round_of_processes(data: Federation, processes: int) -> Iterator[Round]:
    """Yield a round of clients that this process and forked ones share, one
    client after another.
    """
    inner = partial(Loop, FedAvg(), task_of(data), TRAINING, 0, ROUNDS)
    with fork_workers(processes, lambda group: _follow(inner, group)) as group:
        spread = MultiProcessExecutor(Worker(inner(), group, False), group)
        yield equipoise_round(data, lambda *_: spread)
        spread.close()
        group.leave()


def _follow(inner: Callable[[], Loop], group: ProcessGroup) -> None:
    # First of all: the threads of the process that was forked do not exist here.
    torch.set_num_threads(1)
    serve(Worker(inner(), group, False), group)


def plain_round(data: Federation) -> Round:
    """What a careful user of PyTorch writes: floats made once, one module, one optimiser."""
    split = data.split(np.arange(CLIENTS), "train")
    x = torch.empty(len(split.y), *data.shape)
    x.copy_(data.transform.prepare(split.x, torch.float32))
    model = MODELS["cnn"](data.shape, 10)
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=LR)
    whole = [p.detach().clone() for p in parameters]

    def round() -> None:
        nonlocal whole
        mean = [torch.zeros_like(p) for p in whole]
        for client in range(CLIENTS):
            with torch.no_grad():
                for p, start in zip(parameters, whole, strict=True):
                    p.copy_(start)
            order = torch.randperm(IMAGES) + client * IMAGES
            for rows in order.split(BATCH):
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(model(x[rows]), split.y[rows]).backward()
                optimiser.step()
            with torch.no_grad():
                for total, p in zip(mean, parameters, strict=True):
                    total.add_(p, alpha=1 / CLIENTS)
        whole = mean

    return round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each contestant")
    parser.add_argument(
        "--single", action="store_true", help="leave out the contestants with several threads"
    )
    chosen = parser.parse_args()
    data, cores = federation(), available_cores()
    with round_of_processes(data, cores) as shared:  # forks first, before threads exist
        measured("conv", {"rounds": chosen.rounds, "results": compare(data, cores, shared, chosen)})


def compare(
    data: Federation, cores: int, shared: Round, chosen: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return milliseconds of a round of each contestant, and how many times as fast as the plain
    loop it is.
    """
    contestants: dict[str, tuple[int, Round]] = {
        f"loop, {cores} processes": (1, shared),
        "plain loop, 1 thread": (1, plain_round(data)),
        f"plain loop, {cores} threads": (cores, plain_round(data)),
        "loop, 1 thread": (1, equipoise_round(data, Loop)),
        f"loop, {cores} threads": (cores, equipoise_round(data, Loop)),
        "stacked, 1 thread": (1, equipoise_round(data, Stacked)),
    }
    if chosen.single:
        contestants = {name: entry for name, entry in contestants.items() if entry[0] == 1}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(chosen.rounds + 1):
        for name, (threads, go) in contestants.items():
            torch.set_num_threads(threads)
            started = time.perf_counter()
            go()
            if turn:  # the first round warms up
                times[name].append(time.perf_counter() - started)
    fastest = {name: min(values) for name, values in times.items()}
    baselines = {
        "times_plain": "plain loop, 1 thread",
        "times_plain_threads": f"plain loop, {cores} threads",
    }
    return {
        name: {
            "ms": round(1000 * seconds, 1),
            "median_ms": round(1000 * statistics.median(times[name]), 1),
            **{
                key: round(fastest[name] / seconds, 2)
                for key, name in baselines.items()
                if name in fastest
            },
        }
        for name, seconds in fastest.items()
    }


if __name__ == "__main__":
    main()
