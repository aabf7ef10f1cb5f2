"""SCAFFOLD on a million clients, 1,000 per round, 200 rounds: time, memory, disk; and its rounds
beside fewer clients.

``--run`` is the whole run as a user has it, checkpoints and all. Without it, rounds of 10^3 to 10^6
clients take turns in one process, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.lab.provenance import measured
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.records.rounds import RoundRecord
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.client_store import MemoryBudget
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

COHORT, ROUNDS, FEW, MANY, GIB = 1_000, 200, 10_000, 1_000_000, 0.25
SIZES = (COHORT, FEW, 100_000, MANY)


def settings_of(clients: int, rounds: int = ROUNDS, **training: float) -> ExperimentConfig:
    options = {
        "method": "scaffold",
        "clients": clients,
        "participation": COHORT / clients,
        "rounds": rounds,
    }
    return ExperimentConfig.from_options({**options, **training})


def whole(folder: Path, rounds: int, training: dict[str, float]) -> dict[str, object]:
    """The run of a million; the last rounds are those with most clients seen."""
    cpu = [time.process_time()]
    seen = peak = 0

    def watch(record: RoundRecord) -> None:
        nonlocal seen, peak
        cpu.append(time.process_time())
        seen, peak = record.seen, peak_mib()
        if record.round % 10 == 0:
            print(record.round, record.seen, peak_mib(), file=sys.stderr, flush=True)

    started = time.perf_counter()
    settings = settings_of(MANY, rounds, **training)
    run(
        settings,
        folder / "run",
        on_round_end=watch,
        resources=ResourceConfig(processes=1, client_memory_gib=GIB),
    )
    spent = [after - before for before, after in pairwise(cpu)]
    saved = sum(file.stat().st_size for file in (folder / "run" / "checkpoint").iterdir())
    return {
        "rounds": rounds,
        "clients seen": seen,
        "training": training or "the task's own",
        "state memory GiB": GIB,
        "MiB peak of the rounds": peak,
        "MiB peak": peak_mib(),
        "seconds in all": round(time.perf_counter() - started, 1),
        "CPU seconds per round, first 20": round(statistics.median(spent[:20]), 3),
        "CPU seconds per round, last 20": round(statistics.median(spent[-20:]), 3),
        "MiB of the checkpoint at the end": saved // 2**20,
    }


def beside(rounds: int) -> dict[str, object]:
    """CPU seconds of rounds of 1,000 among few and among many clients, in turn."""
    runs = {clients: simulation_of(clients) for clients in SIZES}
    for _ in range(3):
        for simulation in runs.values():
            simulation.run_round()
    spent: dict[int, list[float]] = {clients: [] for clients in runs}
    for _ in range(rounds):
        for clients, simulation in runs.items():
            started = time.process_time()
            simulation.run_round()
            spent[clients].append(time.process_time() - started)
    middle = {clients: statistics.median(values) for clients, values in spent.items()}
    return {
        **{
            f"CPU seconds per round of {clients:,} clients": round(value, 3)
            for clients, value in middle.items()
        },
        "rounds of each": rounds,
        f"{MANY:,} to {FEW:,} clients": round(middle[MANY] / middle[FEW], 3),
    }


def simulation_of(clients: int) -> FederatedSimulation:
    settings = settings_of(clients)
    schedule = RoundLoopConfig(ROUNDS, 0, COHORT / clients, "stacked", 1, True)
    room = MemoryBudget(int(GIB * 2**30))
    return FederatedSimulation(
        settings.wrapped_method,
        build_task(settings),
        settings.training,
        schedule,
        memory_budget=room,
    )


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="the run of a million")
    parser.add_argument(
        "--epochs", type=int, help="of the run; memory and disk do not depend on it"
    )
    parser.add_argument("--batch-size", type=int, help="of the run")
    parser.add_argument(
        "--rounds", type=int, help="of the run (200), or of each population that takes turns (20)"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.run:
        training = {"epochs": chosen.epochs, "batch_size": chosen.batch_size}
        with tempfile.TemporaryDirectory() as folder:
            given = {name: value for name, value in training.items() if value is not None}
            measured("million", whole(Path(folder), chosen.rounds or ROUNDS, given))
    else:
        measured("million_beside", beside(chosen.rounds or 20))


if __name__ == "__main__":
    main()
