"""W1: 100 logistic clients on Synthetic.

Equipoise against a well-written plain loop and the floor of bare products.

Everything is measured in one run on one machine, rounds of the contestants taking turns. A round is
local training of all clients, aggregation, and the evaluation of the received, trained and personal
models on each client's test set and of the global one on the server's.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.lab.provenance import measured
from equipoise.core import TrainingConfig
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.data.federated_dataset import Split
from equipoise.methods.fedavg import FedAvg
from equipoise.models.linear import linear
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask

BATCH, LR, FEATURES, CLASSES = 30, 0.1, 30, 30
Round = Callable[[], object]


def data_of(clients: int) -> Synthetic:
    """210 training and 90 test samples a client, no validation; 7,500 at the server for 100
    clients.
    """
    return Synthetic(SyntheticConfig(clients=clients, val_share=0.0), seed=0)


def equipoise_round(data: Synthetic, epochs: int, closed_form: bool) -> Round:
    training = TrainingConfig(epochs=epochs, lr=LR, batch_size=BATCH)
    task = ExamplesTask(
        "synthetic", linear((FEATURES,), CLASSES), data, training, closed_form=closed_form
    )
    return FederatedSimulation(
        FedAvg(), task, training, RoundLoopConfig(10**6, 0, 1.0, "stacked", 1, True)
    ).run_round


def w1_round(epochs: int, closed_form: bool) -> Round:
    """A round of W1.

    Keep this name and these arguments: :mod:`benchmarks.speed.beside` compares commits by it.
    """
    return equipoise_round(data_of(100), epochs, closed_form)


def plain_round(data: Synthetic, epochs: int) -> Round:
    """The loop that a careful user of PyTorch writes: one module, one optimiser, no copies beyond
    the parameters.
    """
    ids = np.arange(data.clients)
    train, test = data.split(ids, "train"), data.split(ids, "test")
    shards = [[_rows(split, k) for k in range(data.clients)] for split in (train, test)]
    server_x, server_y = data.server("test")
    model = linear((FEATURES,), CLASSES)
    parameters = list(model.parameters())
    optimiser = torch.optim.SGD(parameters, lr=LR)
    whole = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def score(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        logits = model(x)
        return float((logits.argmax(1) == y).float().mean()), float(F.cross_entropy(logits, y))

    def load(values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)

    def round() -> None:
        nonlocal whole
        total = [torch.zeros_like(p) for p in whole]
        for (x, y), (test_x, test_y) in zip(*shards, strict=True):
            load(whole)
            score(test_x, test_y)  # received
            for _ in range(epochs):
                order = torch.randperm(len(y))
                for first in range(0, len(y), BATCH):
                    rows = order[first : first + BATCH]
                    optimiser.zero_grad(set_to_none=True)
                    F.cross_entropy(model(x[rows]), y[rows]).backward()
                    optimiser.step()
            score(test_x, test_y)  # trained, which is FedAvg's personal model too
            with torch.no_grad():
                for t, p in zip(total, parameters, strict=True):
                    t.add_(p, alpha=1 / data.clients)
        whole = total
        load(whole)
        score(server_x, server_y)

    return round


def floor_round(data: Synthetic, epochs: int) -> Round:
    """Only the matrix products that the work needs, on data that lies ready: nothing can be faster
    than this.
    """
    k, steps = data.clients, epochs * (210 // BATCH)
    weight, x = torch.randn(k, CLASSES, FEATURES + 1), torch.randn(k, BATCH, FEATURES + 1)
    error, test = torch.randn(k, BATCH, CLASSES), torch.randn(k, 90, FEATURES + 1)
    server = torch.randn(len(data.server("test")[0]), FEATURES + 1)

    def round() -> None:
        for _ in range(steps):
            torch.bmm(x, weight.transpose(1, 2))
            torch.bmm(error.transpose(1, 2), x)
        torch.bmm(test, weight.transpose(1, 2))
        torch.bmm(test, weight.transpose(1, 2))
        server @ weight[0].T

    return round


def take_turns(contestants: dict[str, Round], seconds: float) -> dict[str, float]:
    """Median milliseconds of a round each, one round of each in turn."""
    for run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 3:
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def w1(epochs: int, seconds: float) -> dict[str, float]:
    data = data_of(100)
    ms = take_turns(
        {
            "plain loop": plain_round(data, epochs),
            "general engine": equipoise_round(data, epochs, closed_form=False),
            "closed form": equipoise_round(data, epochs, closed_form=True),
            "floor": floor_round(data, epochs),
        },
        seconds,
    )
    return {
        **{f"{name} ms": round(value, 3) for name, value in ms.items()},
        "general engine: times the plain loop": round(ms["plain loop"] / ms["general engine"], 1),
        "closed form: times the plain loop": round(ms["plain loop"] / ms["closed form"], 1),
        "closed form: times the floor's time": round(ms["closed form"] / ms["floor"], 2),
    }


def growth(clients: int) -> dict[str, float]:
    """One size, in a process of its own so that its peak memory is its own."""
    run = equipoise_round(data_of(clients), 1, closed_form=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ms = take_turns({"round": run}, 2.0)["round"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "ms a round": round(ms, 2),
        "MiB before the first round": before // 1024,
        "MiB peak": peak // 1024,
    }


def _rows(split: Split, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    here = slice(int(split.start[k]), int(split.start[k] + split.size[k]))
    return split.x[here], split.y[here]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each workload")
    parser.add_argument(
        "--threads", type=int, help="measure W1 with so many threads only, and print it as JSON"
    )
    parser.add_argument(
        "--grow", type=int, help="measure one size of the growth table only, and print it as JSON"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads or 1)
    if chosen.grow:
        print(json.dumps(growth(chosen.grow)))
    elif chosen.threads:
        print(
            json.dumps({f"W1, {epochs} epoch(s)": w1(epochs, chosen.seconds) for epochs in (1, 5)})
        )
    else:
        threads = {
            f"{n} thread(s)": _apart("--threads", str(n), "--seconds", str(chosen.seconds))
            for n in (1, 2)
        }
        sizes = {
            str(clients): _apart("--grow", str(clients)) for clients in (10, 100, 1_000, 10_000)
        }
        measured("engine", {**threads, "growth: clients -> W1 at 1 epoch, 1 thread": sizes})


def _apart(*arguments: str) -> object:
    """This script in another process; gives what it prints."""
    command = [sys.executable, "-m", "benchmarks.speed.engine", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
