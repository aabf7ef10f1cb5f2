"""The main methods on real data, at sizes that fit two cores: Fashion-MNIST, CIFAR-100 and Shakespeare.

Fashion-MNIST (14x14, MLP, 20 clients, 12,000 images) under label skew and quantity skew is table 3 of PAGE in shape;
CIFAR-100 (16x16, CNN, 20 clients, 10,000 images) and Shakespeare (LSTM, 10 roles of 700 samples) run for few rounds.
Every cell (a column, a method, a seed) is a small JSON file under results/realdata: the work can stop and go on.

    python benchmarks/realdata.py --data FOLDER                  # run what is missing, then write README.md
    python benchmarks/realdata.py --data FOLDER --only cifar100  # the cells whose name contains it
    python benchmarks/realdata.py --table                        # the tables alone
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equipoise.runs.running import build_task
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings

RESULTS = Path(__file__).parent / "results" / "realdata"
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavgm": {"server_momentum": 0.5},
    "fedprox": {},
    "scaffold": {},
    "local": {},
    "finetune": {},
    "fedper": {},
    "fedrep": {"head_epochs": 2},
    "fedrecon": {},
    "pfedme": {},
    "ditto": {},
    "fedala": {},
    "fedrod": {},
    "page": {"window": 0, "warmup": 10, "explore": 30},
    "equilibrium": {"server_momentum": 0.5, "local_epochs": 2},
}
PERSONAL = ("fedavg", "fedrecon", "pfedme", "ditto", "fedala", "fedrod", "page", "equilibrium")
FEW = ("fedavg", "scaffold", "local", "fedper", "ditto", "fedala", "equilibrium")


@dataclass(frozen=True)
class Column:
    """One population: options of its task and of training, and who runs on it."""

    options: dict[str, Any]
    rounds: int
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    executor: str


FMNIST: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "train_rows": 12_000,
    "clients": 20,
    "val_share": 0.1,
    "epochs": 2,
    "lr": 0.1,
}
CIFAR: dict[str, Any] = {
    "task": "cifar100",
    "model": "cnn",
    "pool": 2,
    "train_rows": 10_000,
    "server_rows": 2000,
    "clients": 20,
    "val_share": 0.1,
    "epochs": 2,
    "lr": 0.05,
    "batch_size": 32,
    "delta": 0.3,
}
PLAYS: dict[str, Any] = {
    "task": "shakespeare",
    "clients": 10,
    "role_samples": 700,
    "server_rows": 1000,
    "val_share": 0.1,
    "epochs": 2,
    "lr": 1.0,
    "batch_size": 16,
}


def fmnist(methods: tuple[str, ...], **options: float) -> Column:
    return Column(FMNIST | options, 50, methods, (1, 2, 3), "stacked")


COLUMNS = {
    "fmnist-delta0.1": fmnist(tuple(METHODS), delta=0.1),
    "fmnist-delta0.3": fmnist(tuple(METHODS), delta=0.3),
    "fmnist-delta0.5": fmnist(tuple(METHODS), delta=0.5),
    "fmnist-delta1": fmnist(PERSONAL, delta=1.0),
    "fmnist-sigma0.1": fmnist(PERSONAL, delta=0.5, size_sigma=0.1),
    "fmnist-sigma0.3": fmnist(PERSONAL, delta=0.5, size_sigma=0.3),
    "fmnist-sigma0.5": fmnist(PERSONAL, delta=0.5, size_sigma=0.5),
    "cifar100": Column(CIFAR, 25, FEW, (1, 2), "loop"),
    "shakespeare": Column(PLAYS, 20, ("fedavg", "local", "fedper", "ditto", "equilibrium"), (1, 2), "loop"),
}


def run(column: Column, method: str, seed: int, data: str) -> dict[str, Any]:
    mine = dict(METHODS[method])
    if "local_epochs" in mine:  # the rule's defaults are Synthetic's: here it trains as the others do
        mine |= {"local_epochs": column.options["epochs"], "lr_high": column.options["lr"]}
    rounds = column.rounds
    settings = Settings.of({**column.options, **mine, "method": method, "seed": seed, "rounds": rounds, "data": data})
    task = build_task(settings)
    every = max(1, rounds // 10)
    simulation = Simulation(
        settings.method, task, settings.training, Schedule(rounds, seed, 1.0, column.executor, every, True)
    )
    started = time.perf_counter()
    logs = [simulation.round() for _ in range(rounds)]
    last = logs[-1]
    curve = [
        [
            log.round,
            *(round(100 * log.named(name).acc, 2) if log.named(name) else None for name in ("global", "personal")),
        ]
        for log in logs
        if log.evaluated
    ]
    return {
        "options": column.options | mine,
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "global": 100 * last.global_.acc if last.global_ else None,
        "personal": 100 * last.personal.acc,
        "p10": 100 * last.personal.p10,
        "seconds": round(time.perf_counter() - started, 1),
        "curve": curve,
    }


def accuracies(log: dict[str, Any]) -> list[float | None]:
    return [round(100 * log.named(name).acc, 2) if log.named(name) else None for name in ("global", "personal")]


def cells(column: str, method: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{column}-{method}-seed*.json"))]


def shown(values: list[float | None], best: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    text = f"{statistics.fmean(known):.1f}" + (f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else "")
    return f"**{text}**" if best else text


def mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else float("-inf")


def table(title: str, columns: list[str]) -> list[str]:
    found = {(column, method): cells(column, method) for column in columns for method in METHODS}
    if not any(found.values()):
        return []
    sides = [(column, side) for column in columns for side in ("global", "personal")]
    best = {
        (column, side): max(mean([cell[side] for cell in found[column, method]]) for method in METHODS)
        for column, side in sides
    }
    seeds = max(len(group) for group in found.values())
    lines = [
        "",
        f"## {title}",
        "",
        f"Accuracy in %, global model on the server's test set and personal models on their own, seeds: up to {seeds}.",
        "",
        f"| method | {' | '.join(f'{column} {side}' for column, side in sides)} |",
        "|---" * (len(sides) + 1) + "|",
    ]
    for method in METHODS:
        if any(found[column, method] for column in columns):
            figures = []
            for column, side in sides:
                values = [cell[side] for cell in found[column, method]]
                figures.append(shown(values, mean(values) == best[column, side] > float("-inf")))
            lines.append(f"| {method} | {' | '.join(figures)} |")
    return lines


def page() -> str:
    groups = {
        "Fashion-MNIST, label skew": [name for name in COLUMNS if name.startswith("fmnist-delta")],
        "Fashion-MNIST, quantity skew on top of Dirichlet 0.5": [name for name in COLUMNS if "sigma" in name],
        "CIFAR-100, reduced": ["cifar100"],
        "Shakespeare, reduced": ["shakespeare"],
    }
    lines = ["# Real data", "", *(__doc__ or "").strip().splitlines()]
    for title, columns in groups.items():
        lines += table(title, columns)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder with the data sets; else $EQUIPOISE_DATA")
    parser.add_argument("--only", default="", help="cells whose name (column-method-seed) contains this")
    parser.add_argument("--table", action="store_true", help="write the tables alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    seeds = sorted({seed for column in COLUMNS.values() for seed in column.seeds})  # the whole table for one seed first
    for seed, (name, column) in itertools.product(seeds, COLUMNS.items()):
        for method in column.methods if seed in column.seeds else ():
            path = RESULTS / f"{name}-{method}-seed{seed}.json"
            if arguments.table or arguments.only not in path.stem or path.exists():
                continue
            cell = run(column, method, seed, arguments.data)
            path.write_text(json.dumps(cell) + "\n")
            said = "-" if cell["global"] is None else f"{cell['global']:.1f}"
            print(f"{path.stem}: {said} / {cell['personal']:.1f}, {cell['seconds']} s", flush=True)
    (RESULTS / "README.md").write_text(page())


if __name__ == "__main__":
    main()
