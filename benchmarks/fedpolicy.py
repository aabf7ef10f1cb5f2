"""FedPolicy's policies against every fixed choice, on populations whose clients need different things.

Fashion-MNIST at 14x14, MLP, 20 clients with 300 rows each (30 % test; a fifth of the rest is validation), 60 rounds of
two epochs; `cnn-` is the same with a CNN for 30 rounds, `cifar10-` and `cifar100-` that CNN on 16x16 colour images.
The constants of the policies were chosen on seeds 1 to 9. Seeds 11 to 13 had been seen with earlier versions, so the
main comparison is repeated on seeds 21 to 23. The cells of dqn and bandit were made before a change of rounding in
their features. Every cell (a variant, a scenario, a seed) is a small JSON file under results/fedpolicy, so that the
work can stop and go on.

    python benchmarks/fedpolicy.py --data FOLDER              # run what is missing, in order, then write README.md
    python benchmarks/fedpolicy.py --data FOLDER --only M3    # the cells whose name contains it
    python benchmarks/fedpolicy.py --table                    # the tables alone
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import fields
from typing import Any

import torch

from equipoise.contract import Task, Tree
from equipoise.runs.finetuning import finetuned
from equipoise.runs.running import build_task
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings
from fedpolicy_report import FRESH, RESULTS, SEEDS, page, picture

EVERY = 3
SETTING: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "train_rows": 6000,
    "val_share": 0.2,
    "epochs": 2,
    "lr": 0.1,
    "rounds": 60,
}
CNN: dict[str, Any] = SETTING | {"model": "cnn", "rounds": 30, "lr": 0.05}
ALL = "full,backbone,head,none"
SCENARIOS: dict[str, dict[str, Any]] = dict.fromkeys(("M3", "M1", "L.1", "F", "M2", "I", "S", "L.3", "L.5"), SETTING)
LARGER: dict[str, dict[str, Any]] = {
    "cnn-M3": CNN,
    "cifar10-M3": CNN | {"task": "cifar10"},
    "cnn-L.3": CNN,
    "cifar100-L.3": CNN | {"task": "cifar100"},
}
FEW = ("fedavg", "learned", "fedper", "lgfedavg", "local", "joint")
"""The variants of the larger models and of the fresh seeds."""
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "learned": {"method": "fedpolicy", "policy": "learned"},
    "fedper": {"method": "fedper"},
    "lgfedavg": {"method": "lgfedavg"},
    "local": {"method": "local"},
    "learned-with-none": {"method": "fedpolicy", "policy": "learned", "parts": ALL},
    "probe-sync": {"method": "fedpolicy", "policy": "probe", "sync": "on", "parts": ALL},
    "learned-plain": {"method": "fedpolicy", "policy": "learned", "sync": "off"},
    "dqn": {"method": "fedpolicy", "policy": "dqn"},
    "learned-copies": {"method": "fedpolicy", "policy": "learned", "copies": 4},
    "learned-finetune": {"method": "fedpolicy", "policy": "learned", "base": "finetune"},
    "dqn-sync": {"method": "fedpolicy", "policy": "dqn", "sync": "on"},
    "bandit-sync": {"method": "fedpolicy", "policy": "bandit", "sync": "on"},
    "random-sync": {"method": "fedpolicy", "policy": "random", "sync": "on"},
    "joint": {"method": "joint", "base_options": "server_momentum=0.5 local_epochs=2"},
    "equilibrium": {"method": "equilibrium", "server_momentum": 0.5, "local_epochs": 2},
    "finetune": {"method": "finetune"},
    "fedavgm": {"method": "fedavgm", "server_momentum": 0.5},
    "fedprox": {"method": "fedprox"},
    "scaffold": {"method": "scaffold"},
    "fedrep": {"method": "fedrep"},
    "ditto": {"method": "ditto"},
    "fedala": {"method": "fedala"},
    "fedbabu": {"method": "fedbabu"},
    "learned-always-probing": {"method": "fedpolicy", "policy": "learned", "probe_every": 1},
}
NEWCOMER_EPOCHS = 5


def run(scenario: str, options: dict[str, Any], seed: int, data: str) -> dict[str, Any]:
    setting, population = (SCENARIOS | LARGER)[scenario], scenario.rpartition("-")[2]
    settings = Settings.of({**setting, **options, "scenario": population, "seed": seed, "data": data})
    task, rounds = build_task(settings), settings.run.rounds
    executor = "stacked" if setting is SETTING else "loop"  # convolutions gain nothing from stacking
    schedule = Schedule(rounds, seed, 1.0, executor, EVERY, True)
    simulation = Simulation(settings.method, task, settings.training, schedule)
    started = time.perf_counter()
    logs = [simulation.round() for _ in range(rounds)]
    seconds = time.perf_counter() - started
    tuned = finetuned(simulation)
    last, down, up, curve = logs[-1], 0, 0, []
    for log in logs:
        down, up = down + log.bytes.down, up + log.bytes.up
        if log.evaluated:
            whole = round(100 * log.global_.acc, 2) if log.global_ else None
            curve.append([log.round, round(100 * log.personal.acc, 2), whole, down + up])
    notes = [log.notes for log in logs]
    errors = {
        name: statistics.fmean(values)
        for name in ("error_of_last", "error_of_foreseen")
        if (values := [note[name] for note in notes if note.get(name) is not None])
    }
    whole = settings.method.has_global(task)
    return {
        "scenario": scenario,
        "options": options,
        "seed": seed,
        "personal": 100 * last.personal.acc,
        "std": 100 * last.personal.std,
        "p10": 100 * last.personal.p10,
        "tuned": 100 * tuned.scores.acc,
        "global": 100 * last.global_.acc if whole else None,
        "newcomer": newcomer(settings, task, simulation.params, seed) if whole else None,
        "down": down,
        "up": up,
        "seconds": round(seconds, 1),
        "parts": [note["part"] for note in notes] if "part" in notes[0] else None,
        "probe_errors": errors,
        "curve": curve,
    }


def newcomer(settings: Settings, task: Task, params: Tree, seed: int) -> float:
    """Clients of a fresh draw of the same population train the global model for five epochs: their test accuracy.

    Their rows are drawn anew from all 60,000, so that about a tenth were some training client's.
    """
    method_options = {item.name for item in fields(settings.method)}
    flat = {**settings.flat, "method": "local", "epochs": NEWCOMER_EPOCHS, "seed": seed + 1000}
    known = Settings.of({name: value for name, value in flat.items() if name not in method_options})
    fresh = build_task(known)
    simulation = Simulation(known.method, fresh, known.training, Schedule(1, seed, 1.0, "stacked", 1, True))
    simulation.initial = params
    return float(100 * simulation.round().personal.acc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with the data sets; else $EQUIPOISE_DATA")
    parser.add_argument(
        "--only", default="", help="cells whose ^scenario-variant-seed$ contains one of these, with commas"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="start no cell after so long")
    parser.add_argument("--table", action="store_true", help="write the tables alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    end = time.perf_counter() + 60 * arguments.minutes
    grid = [
        *itertools.product(SCENARIOS, SEEDS, VARIANTS),
        *itertools.product(SCENARIOS, FRESH, FEW),
        *itertools.product(LARGER, SEEDS, FEW),
    ]
    for scenario, seed, variant in grid:
        path = RESULTS / f"{scenario}-{variant}-seed{seed}.json"
        wanted = any(part in f"^{path.stem}$" for part in arguments.only.split(","))
        if arguments.table or not wanted or path.exists() or time.perf_counter() > end:
            continue
        cell = run(scenario, VARIANTS[variant], seed, arguments.data)
        path.write_text(json.dumps(cell) + "\n")
        print(f"{path.stem}: {cell['personal']:.2f}, {cell['seconds']:.0f} s", flush=True)
    picture()
    (RESULTS / "README.md").write_text(page(__doc__ or "", (*SCENARIOS, *LARGER), VARIANTS))


if __name__ == "__main__":
    main()
