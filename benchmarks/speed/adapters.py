"""Rank-8 adapters of many clients over one frozen base of a million parameters, against a loop that
swaps adapters.

    python -m benchmarks.speed.adapters [--rounds 5]

Both ways train each client's adapters for one epoch of 32 rows, in batches of four sizes, with one
thread each and with two each. Rounds take turns in one run; seconds are by the clock, so the
machine must be quiet. Two bases: *wide* has three large layers, *deep* sixteen of 256 units. The
floor is the frozen base alone, forward and back to its first layer for all rows of a step at once:
no way to train adapters over it takes less, and what a loop takes beside it is the ceiling.

Memory is what a process of its own takes at most during two rounds beyond what it had before them,
its base and rows, after a round of two clients, for which libraries load what they need: for a
shared adapter, whose uploads are kept until the round ends, and for private ones, which clients
hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lab.provenance import measured
from equipoise.core import Method, TrainingConfig
from equipoise.data.federated_dataset import Federation
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.models.lora import LoraConfig, add_adapters
from equipoise.simulation.executors import Stacked
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.pytree import tree_bytes

ROWS, LR, FEATURES, CLASSES, ADAPTER = 32, 0.05, 256, 10, "rank=8"
BATCHES, THREADS = (4, 8, 16, 32), (1, 2)
CLIENTS, POPULATIONS, BATCH = (
    100,
    (10, 100, 1000),
    8,
)  # the batch is that of the populations whose memory is measured
BASES = {"wide": (FEATURES, 1024, 704, CLASSES), "deep": (*[FEATURES] * 16, CLASSES)}
METHODS: dict[str, Method] = {"shared": FedAvg(), "private": Local()}


def base(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        layer
        for sizes in itertools.pairwise(BASES[name])
        for layer in (nn.Linear(*sizes), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


def federation(clients: int) -> Federation:
    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, FEATURES, generator=generator), torch.randint(
            0, CLASSES, (count,), generator=generator
        )

    splits = {
        "train": (*rows(clients * ROWS), np.full(clients, ROWS)),
        "test": (*rows(clients), np.ones(clients, int)),
    }
    return Federation(splits, {"public": rows(1), "test": rows(1)}, CLASSES)


def simulation(name: str, clients: int, batch: int, way: str) -> FederatedSimulation:
    training = TrainingConfig(epochs=1, lr=LR, batch_size=batch)
    task = ExamplesTask(
        "adapters", base(name), federation(clients), training, fresh=False
    ).with_network("", ADAPTER, "", 0)
    schedule = RoundLoopConfig(
        10**9, 0, 1.0, "stacked", 10**9, False
    )  # no evaluation: training alone
    return FederatedSimulation(METHODS[way], task, training, schedule, Stacked)


def plain_round(name: str, clients: int, batch: int) -> Callable[[], object]:
    """What a careful user of PyTorch writes: one module, whose adapters are those of one client
    after another.
    """
    split = federation(clients).split(np.arange(clients), "train")
    module = add_adapters(base(name), LoraConfig.parse(ADAPTER), 0)
    learned = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(learned, lr=LR)
    kept = [[p.detach().clone() for p in learned] for _ in range(clients)]

    def round() -> None:
        for client in range(clients):
            with torch.no_grad():
                for p, own in zip(learned, kept[client], strict=True):
                    p.copy_(own)
            order = torch.randperm(ROWS) + client * ROWS
            for rows in order.split(batch):
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(module(split.x[rows]), split.y[rows]).backward()
                optimiser.step()
            kept[client] = [p.detach().clone() for p in learned]

    return round


def floor_round(name: str, clients: int, batch: int) -> Callable[[], object]:
    """The products of matrices that the base takes in a round, and nothing else."""
    layers = [layer.weight.detach() for layer in base(name) if isinstance(layer, nn.Linear)]
    x = torch.randn(clients * batch, FEATURES)

    def round() -> None:
        for _ in range(ROWS // batch):
            value = x
            for weight in layers:
                value = value @ weight.T
            for weight in layers[:0:-1]:  # the first layer's input needs no gradient
                value = value @ weight

    return round


def seconds(round: Callable[[], object]) -> float:
    started = time.perf_counter()
    round()
    return time.perf_counter() - started


def compared(name: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds of each round, each way, and how many times as fast as the loop the stack is, each at
    its fastest.
    """
    torch.set_num_threads(threads)
    ways = {
        "stacked": simulation(name, CLIENTS, batch, "private").run_round,
        "plain loop": plain_round(name, CLIENTS, batch),
        "floor": floor_round(name, CLIENTS, batch),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, round in ways.items():
            spent = seconds(round)
            if turn:  # the first warms up
                taken[way].append(spent)
    best = {way: min(times) for way, times in taken.items()}
    return {
        "base": name,
        "batch": batch,
        "threads": threads,
        "seconds_per_round": taken,
        "times_as_fast": best["plain loop"] / best["stacked"],
        "ceiling": best["plain loop"] / best["floor"],
    }


def peak(clients: int, way: str) -> dict[str, Any]:
    """See :func:`memory`, in a process of its own."""
    code = f"from benchmarks.speed import adapters; adapters.memory({clients}, {way!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def memory(clients: int, way: str) -> None:
    """Print the peak of two rounds in MiB, and what it cannot be less than: adapters and one
    chunk's activations.
    """
    torch.set_num_threads(1)
    simulation("wide", 2, BATCH, way).run_round()
    running = simulation("wide", clients, BATCH, way)
    assert isinstance(running.task, ExamplesTask)
    chunk = max(cut.stop - cut.start for cut in running.executor.chunks(clients))
    activations = chunk * BATCH * running.task.row_bytes() / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
    before = _status("VmRSS")
    running.run_round()
    running.run_round()
    adapters = clients * tree_bytes(running.initial_params) / 2**20
    told = {"clients": clients, "adapters": way, "mib": _status("VmHWM") - before}
    print(json.dumps({**told, "adapters_mib": adapters, "activations_of_a_chunk_mib": activations}))


def _status(key: str) -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status[key].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    speed = [compared(*case, rounds) for case in itertools.product(BASES, BATCHES, THREADS)]
    peaks = [peak(count, way) for way in METHODS for count in POPULATIONS]
    sizes = {name: sum(p.numel() for p in base(name).parameters()) for name in BASES}
    measured(
        "speed-adapters", {"clients": CLIENTS, "parameters": sizes, "speed": speed, "memory": peaks}
    )


if __name__ == "__main__":
    main()
