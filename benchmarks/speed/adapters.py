"""Rank-8 adapters of many clients over one frozen base of a million parameters, against a loop that swaps adapters.

    python -m benchmarks.speed.adapters [--rounds 5]

Both ways train each client's adapters for one epoch of 32 rows, in batches of three sizes, on one thread. Rounds take
turns in one run, and seconds are those of the process (CPU), so that other work on the machine counts little. Peak
memory is that of a process of its own for each number of clients, less that of one that only builds the base. The
floor is the frozen base alone, forward and back to its first layer for all rows of a step at once: no way to train
adapters over it takes less.
"""

from __future__ import annotations

import argparse
import copy
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
from equipoise.contract import Training
from equipoise.core.trees import tree_bytes
from equipoise.data.federation import Federation
from equipoise.methods.local import Local
from equipoise.models.adapters import Adapter, adapted
from equipoise.runtime.executors import Stacked
from equipoise.runtime.round import Schedule, Simulation
from equipoise.tasks.from_examples import FromExamples

ROWS, LR, FEATURES, CLASSES, ADAPTER = 32, 0.05, 256, 10, "rank=8"
BATCHES = (4, 8, 32)
CLIENTS, POPULATIONS = 100, (0, 10, 100, 1000)


def base() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = (FEATURES, 1024, 704, CLASSES)
    layers = [layer for i in range(3) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
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


def simulation(clients: int, batch: int) -> Simulation:
    training = Training(epochs=1, lr=LR, batch_size=batch)
    task = FromExamples("adapters", base(), federation(clients), training, fresh=False).shaped("", ADAPTER, "", 0)
    schedule = Schedule(10**9, 0, 1.0, "stacked", 10**9, True)  # no evaluation: training alone
    return Simulation(Local(), task, training, schedule, Stacked)


def plain_round(clients: int, batch: int) -> Callable[[], object]:
    """What a careful user of PyTorch writes: one module, whose adapters are those of one client after another."""
    split = federation(clients).split(np.arange(clients), "train")
    module = adapted(copy.deepcopy(base()), Adapter.read(ADAPTER), 0)
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


def floor_round(clients: int, batch: int) -> Callable[[], object]:
    """The products of matrices that the base takes in a round, and nothing else."""
    layers = [layer.weight.detach() for layer in base() if isinstance(layer, nn.Linear)]
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
    started = time.process_time()
    round()
    return time.process_time() - started


def peak(clients: int) -> float:
    """Most memory in MiB of a process that runs two rounds; for nobody, of one that only builds the base."""
    code = f"from benchmarks.speed import adapters; adapters.memory({clients})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory(clients: int) -> None:
    torch.set_num_threads(1)
    if clients:
        running = simulation(clients, BATCHES[1])
        running.round()
        running.round()
    else:
        base()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(float(status["VmHWM"].split()[0]) / 1024)


def compared(batch: int, rounds: int) -> dict[str, Any]:
    """CPU seconds of each round, each way, and how many times as fast the stack is at its fastest."""
    ways = {
        "stacked": simulation(CLIENTS, batch).round,
        "plain loop": plain_round(CLIENTS, batch),
        "floor": floor_round(CLIENTS, batch),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, round in ways.items():
            spent = seconds(round)
            if turn:  # the first warms up
                taken[name].append(spent)
    best = {name: min(times) for name, times in taken.items()}
    return {
        "cpu_seconds_per_round": taken,
        "times_as_fast": best["plain loop"] / best["stacked"],
        "times_as_fast_at_the_floor": best["plain loop"] / best["floor"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    speed = {f"batches of {batch}": compared(batch, rounds) for batch in BATCHES}
    peaks = {count: peak(count) for count in POPULATIONS}
    task = simulation(1, 1).task
    assert isinstance(task, FromExamples)
    start = task.init_params(0)
    sizes = {"base": sum(p.numel() for p in base().parameters()), "adapters": sum(map(torch.numel, start.values()))}
    measured(
        "speed-adapters",
        {
            "clients": CLIENTS,
            "parameters": sizes,
            "speed": speed,
            "adapters_of_one_client_mib": tree_bytes(start) / 2**20,
            "activations_of_one_row_mib": task.row_bytes() / 2**20,
            "mib_beyond_the_base": {count: peaks[count] - peaks[0] for count in POPULATIONS if count},
        },
    )


if __name__ == "__main__":
    main()
