"""The memory of a round beside cohort times model: the replies are kept until its end.

Each cohort has a process of its own. All clients of a federation of that size reply; the model is
the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.lab.provenance import measured
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.pytree import tree_bytes

COHORTS = (10, 20, 100, 1000)
METHODS = ("fedavg", "scaffold")
OPTIONS = {"task": "synthetic", "model": "mlp", "features": 500, "samples": 20, "server_clients": 1}


def simulation_of(method: str, clients: int) -> FederatedSimulation:
    """Return a federation all of whose clients take part."""
    options: dict[str, Any] = {**OPTIONS, "method": method, "clients": clients}
    settings = ExperimentConfig.from_options(options)
    schedule = RoundLoopConfig(2, 0, 1.0, "stacked", 2, False)
    return FederatedSimulation(
        settings.wrapped_method, build_task(settings), settings.training, schedule
    )


def peak(method: str, clients: int) -> dict[str, Any]:
    """Return the growth of memory in two rounds, in MiB, and the size of the models."""
    torch.set_num_threads(1)
    simulation_of(method, 2).run_round()
    running = simulation_of(method, clients)
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
    before = _status("VmRSS")
    running.run_round()
    running.run_round()
    model = tree_bytes(running.initial_params) / 2**20
    grown = _status("VmHWM") - before
    return {
        "method": method,
        "cohort": clients,
        "model_mib": round(model, 3),
        "mib": round(grown, 1),
        "models": round(grown / model / clients, 2),
    }


def _status(key: str) -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status[key].split()[0]) / 1024


def main() -> None:
    """Measure all cohorts, or print one as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "COHORT"), help="only that one")
    chosen = parser.parse_args().one
    if chosen:
        print(json.dumps(peak(chosen[0], int(chosen[1]))))
        return
    command = [sys.executable, "-m", "benchmarks.speed.cohort_memory", "--one"]
    cohorts = []
    for method in METHODS:
        for clients in COHORTS:
            done = subprocess.run(
                [*command, method, str(clients)], capture_output=True, text=True, check=True
            )
            cohorts.append(json.loads(done.stdout))
    measured("cohort_memory", {"cohorts": cohorts})


if __name__ == "__main__":
    main()
