"""Two processes against one: W1 (100 logistic clients, 5 epochs) and a cohort of 10,000, rounds taking turns."""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.lab.provenance import measured
from benchmarks.speed.engine import BATCH, CLASSES, FEATURES, LR, Round, data_of, take_turns
from equipoise.contract import Training
from equipoise.methods.fedavg import FedAvg
from equipoise.models.linear import linear
from equipoise.runs.spreading import forked
from equipoise.runtime.executors import Stacked
from equipoise.runtime.round import Schedule, Simulation
from equipoise.runtime.share import Share, serve
from equipoise.runtime.spread import Spread
from equipoise.tasks.from_examples import FromExamples

ROUNDS = 10**6


def scaling(clients: int, epochs: int, seconds: float, processes: int = 2) -> dict[str, float]:
    training = Training(epochs=epochs, lr=LR, batch_size=BATCH)
    task = FromExamples("synthetic", linear((FEATURES,), CLASSES), data_of(clients), training)
    inner = partial(Stacked, FedAvg(), task, training, 0, ROUNDS)

    def round_of(make: partial[Stacked] | Spread) -> Round:
        schedule = Schedule(ROUNDS, 0, 1.0, "stacked", 1, True)
        executor = make if isinstance(make, Spread) else make()
        return Simulation(FedAvg(), task, training, schedule, lambda *_: executor).round

    with forked(processes, lambda group: serve(Share(inner(), group, True), group)) as group:
        spread = Spread(Share(inner(), group, True), group)
        ms = take_turns({"one": round_of(inner), "several": round_of(spread)}, seconds)
        spread.close()
        group.leave()
    return {
        "1 process, ms per round": round(ms["one"], 2),
        f"{processes} processes, ms per round": round(ms["several"], 2),
        "times one process": round(ms["one"] / ms["several"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each workload")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    found = {"W1, 5 epochs": scaling(100, 5, seconds), "10,000 clients, 1 epoch": scaling(10_000, 1, seconds)}
    measured("processes", found)


if __name__ == "__main__":
    main()
