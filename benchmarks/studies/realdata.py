"""The main methods on real data, at sizes that fit two cores: Fashion-MNIST, CIFAR-100 and
Shakespeare.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import age, mean, spread, table

PLAIN = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "local",
    "finetune",
    "fedper",
    "fedrep",
    "fedrecon",
    "pfedme",
)
METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in (*PLAIN, "ditto", "fedala", "fedrod")},
    "fedavgm": {"server_momentum": 0.5},
    "fedrep": {"head_epochs": 2},
    "page": {"window": 0, "warmup": 10, "reading": "paper", "agents": "per-client"},
    "autopilot": {},
}
PERSONAL = ("fedavg", "fedrecon", "pfedme", "ditto", "fedala", "fedrod", "page", "autopilot")
FEW = ("fedavg", "scaffold", "local", "fedper", "ditto", "fedala", "autopilot")


@dataclass(frozen=True)
class Column:
    """One population: options of its task and of training, and who runs on it."""

    options: dict[str, Any]
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (1, 2, 3)


COMMON: dict[str, Any] = {"val_share": 0.1, "epochs": 2}
SMALL: dict[str, Any] = {**COMMON, "pool": 2, "clients": 20}
FMNIST = {**SMALL, "task": "fmnist", "model": "mlp", "train_rows": 12_000, "lr": 0.1}
FMNIST |= {"rounds": 50, "executor": "stacked"}
CIFAR = {
    **SMALL,
    "task": "cifar100",
    "model": "cnn",
    "train_rows": 10_000,
    "server_rows": 2000,
    "lr": 0.05,
}
CIFAR |= {"batch_size": 32, "delta": 0.3, "rounds": 25, "executor": "loop"}
PLAYS = {
    **COMMON,
    "task": "shakespeare",
    "clients": 10,
    "role_samples": 700,
    "server_rows": 1000,
    "lr": 1.0,
}
PLAYS |= {"batch_size": 16, "rounds": 20, "executor": "loop"}
LABELS = {f"fmnist-delta{delta:g}": {"delta": delta} for delta in (0.1, 0.3, 0.5, 1.0)}
SIZES = {f"fmnist-sigma{sigma}": {"delta": 0.5, "size_sigma": sigma} for sigma in (0.1, 0.3, 0.5)}
COLUMNS = {
    name: Column(FMNIST | own, PERSONAL if name in SIZES or own["delta"] == 1 else tuple(METHODS))
    for name, own in (LABELS | SIZES).items()
} | {
    "cifar100": Column(CIFAR, FEW, (1, 2)),
    "shakespeare": Column(PLAYS, ("fedavg", "local", "fedper", "ditto", "autopilot"), (1, 2)),
}


def options(column: str, method: str, seed: int) -> dict[str, Any] | None:
    where = COLUMNS[column]
    if method not in where.methods or seed not in where.seeds:
        return None
    every = {"eval_every": max(1, where.options["rounds"] // 10), "checkpoint_every": 10**6}
    return {**where.options, **every, **METHODS[method], "method": method, "seed": seed}


def cells(results: Results) -> list[Cell]:
    """The whole table for one seed comes first."""
    return sorted(
        grid(options, column=COLUMNS, method=METHODS, seed=(1, 2, 3)),
        key=lambda cell: cell.axes["seed"],
    )


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    last = done.evaluated[-1]
    return {
        **{side: percent(last.get(side), 6) for side in ("global", "personal")},
        "p10": percent(last["personal"], 6, "p10"),
        "curve": [
            [log["round"], *(percent(log.get(side)) for side in ("global", "personal"))]
            for log in done.evaluated
        ],
    }


def columns(*names: str) -> Any:
    """The table of some populations; the best mean of a column is bold."""
    sides = [(column, side) for column in names for side in ("global", "personal")]

    def made(results: Results) -> list[str]:
        found = {
            (method, place): [r[place[1]] for r in results.where(column=place[0], method=method)]
            for method in METHODS
            for place in sides
        }
        means = {key: mean(values) for key, values in found.items()}
        best = {place: max((means[m, place] or 0.0) for m in METHODS) for place in sides}
        rows = []
        for method in METHODS:
            texts = [spread(found[method, place]) for place in sides]
            marks = ["**" * (means[method, place] == best[place]) for place in sides]
            if any(found[method, place] for place in sides):
                rows.append(
                    [
                        method,
                        *(f"{mark}{text}{mark}" for mark, text in zip(marks, texts, strict=True)),
                    ]
                )
        return table(["method", *(f"{column} {side}" for column, side in sides)], rows)

    return made


STUDY = Study(
    name="realdata",
    cells=cells,
    measure=measure,
    tables={
        "labels": columns(*LABELS),
        "sizes": columns(*SIZES),
        "cifar": columns("cifar100"),
        "plays": columns("shakespeare"),
        "age": lambda results: age(r for r in results if r["column"] != "shakespeare"),
    },
)
