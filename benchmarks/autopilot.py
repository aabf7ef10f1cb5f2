"""Controllers and adaptive methods on every family of federations, beside plain FedAvg.

Every cell (family, variant, seed) is a line of results/autopilot/cells.jsonl, so that the work can stop and go on.

    EQUIPOISE_DATA=FOLDER python benchmarks/autopilot.py --variants fedavg,fedavg-8,autopilot --seeds 100-107
    python benchmarks/autopilot.py --variants autopilot --families synthetic --seeds 100-104 --minutes 30
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from equipoise.runtime.round import Schedule, Simulation
from families import FAMILIES, build

CELLS = Path(__file__).parent / "results" / "autopilot" / "cells.jsonl"
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedavg-8": {"method": "fedavg", "epochs": 8},
    "equilibrium": {"method": "equilibrium"},
    "autopilot": {"method": "autopilot"},
}


def run(family: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    kind = FAMILIES[family]
    settings, task = build(kind, options, seed)
    schedule = Schedule(kind.rounds, seed, 1.0, kind.executor, kind.rounds, False)
    simulation = Simulation(settings.method, task, settings.training, schedule)
    started = time.perf_counter()
    for _ in range(kind.rounds):
        log = simulation.round()
    scores = {f"{who}_{what}": log[who][what] for who in ("global", "personal") for what in ("acc", "loss")}
    return scores | {"seconds": round(time.perf_counter() - started, 1)}


def numbers(text: str) -> list[int]:
    low, _, high = text.partition("-")
    return list(range(int(low), int(high or low) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="fedavg,fedavg-8,autopilot", help="names, with commas between")
    parser.add_argument("--families", default="", help="families whose name contains one of these")
    parser.add_argument("--seeds", default="100-102", help="first and last")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further cell after this time")
    parser.add_argument("--cells", type=Path, default=CELLS, help="file of the results")
    parser.add_argument("--set", action="append", default=[], help="a variant of one's own: name=JSON of its options")
    arguments = parser.parse_args()
    variants = VARIANTS | {name: json.loads(value) for name, _, value in (text.partition("=") for text in arguments.set)}
    torch.set_num_threads(1)
    arguments.cells.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.cells.read_text().splitlines() if arguments.cells.exists() else []
    done = {(cell["family"], cell["variant"], cell["seed"]) for cell in map(json.loads, lines)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    until = time.monotonic() + 60 * arguments.minutes
    wanted = [name for name in FAMILIES if any(part in name for part in arguments.families.split(","))]
    for seed in numbers(arguments.seeds):
        for family in wanted:
            for variant in arguments.variants.split(","):
                if (family, variant, seed) in done or time.monotonic() > until:
                    continue
                cell = {"family": family, "variant": variant, "seed": seed, "commit": commit.strip()}
                cell |= {"options": variants[variant]} | run(family, variants[variant], seed)
                with arguments.cells.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(
                    f"{family:24} {variant:16} {seed:4} {100 * cell['global_acc']:6.2f} / "
                    f"{100 * cell['personal_acc']:6.2f} ({cell['global_loss'] or float('nan'):.3f}) {cell['seconds']} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
