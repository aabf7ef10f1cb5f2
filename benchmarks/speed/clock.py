"""What simulated time costs: a round of W1 with the clock and without, and the memory of 100,000
clients' devices.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from benchmarks.lab.provenance import measured
from benchmarks.speed.engine import BATCH, CLASSES, FEATURES, LR, data_of
from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import DEVICE_POPULATIONS, DevicePopulation
from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.models.linear import linear
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask

TIMINGS = {
    "without": None,
    "default": ClockConfig(),
    "silos": ClockConfig(devices="silos"),
    "a buffer of everybody": ClockConfig(mode="async", buffer=100),
}


def w1(seconds: float, epochs: int) -> dict[str, float]:
    """Milliseconds of processor time per round, and by how much the clock lengthens it: medians
    over rounds.

    Processor time, because other work on the machine must not count; rounds of all take turns.
    """
    training = TrainingConfig(epochs=epochs, lr=LR, batch_size=BATCH)
    task = ExamplesTask(
        "synthetic", linear((FEATURES,), CLASSES), data_of(100), training, closed_form=True
    )
    schedule = RoundLoopConfig(10**6, 0, 1.0, "stacked", 1, True)
    rounds = {
        name: FederatedSimulation(FedAvg(), task, training, schedule, clock_config=t).run_round
        for name, t in TIMINGS.items()
    }
    for run in rounds.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in rounds}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in rounds.items():
            started = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - started))
    found = {f"{name} ms": round(statistics.median(values), 3) for name, values in times.items()}
    for name, values in times.items():
        if name != "without":
            longer = statistics.median(values) / statistics.median(times["without"]) - 1
            found[f"{name}: longer by %"] = round(100 * longer, 2)
    return found


def memory(clients: int) -> dict[str, float]:
    """Peak memory above that of the imports, when everybody's device, presence and trip are drawn
    at once.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fleet, ids, ones = (
        DevicePopulation(DEVICE_POPULATIONS["phones"], 0),
        np.arange(clients),
        np.ones(clients),
    )
    started = time.perf_counter()
    fleet.available(ids, 0.0)
    fleet.round_durations(ids, 1, ones, ones, ones)
    ms = 1e3 * (time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"MiB": round((peak - before) / 1024, 1), "ms": round(ms, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="time for each number of epochs"
    )
    parser.add_argument(
        "--memory",
        type=int,
        help="measure the memory of so many clients only, and print it as JSON",
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.memory:
        print(json.dumps(memory(chosen.memory)))
        return
    apart = [sys.executable, "-m", "benchmarks.speed.clock", "--memory", "100000"]
    devices = json.loads(subprocess.run(apart, check=True, capture_output=True, text=True).stdout)
    found = {f"W1, {epochs} epoch(s)": w1(chosen.seconds, epochs) for epochs in (1, 5)}
    measured("clock_cost", {**found, "devices of 100,000 clients": devices})


if __name__ == "__main__":
    main()
