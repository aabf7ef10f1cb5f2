"""PAGE's table 3 on small federations of Fashion-MNIST: skewed sizes and skewed labels."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.tables import as_options, made_at, paired, spread, table
from benchmarks.studies.readings import measure

SEEDS = (11, 12, 13)
ROUNDS = 30
COMMON: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "clients": 15,
    "train_rows": 6000,
    "server_rows": 2000,
    "epochs": 2,
    "lr": 0.1,
    "rounds": ROUNDS,
    "eval_every": ROUNDS // 5,
}
# The paper's 35 random rounds are for some 500 rounds.
PAGE: dict[str, Any] = {"method": "page", "window": 0, "warmup": 5}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "page": PAGE,
    "page-paper": PAGE | {"reading": "paper"},
    "fedrecon": {"method": "fedrecon"},
    "pfedme": {"method": "pfedme"},
    "ditto": {"method": "ditto"},
    "fedala": {"method": "fedala"},
    "fedrod": {"method": "fedrod"},
}
PERSONAL = ("fedrecon", "pfedme", "ditto", "fedala", "fedrod")
"""Methods whose local models are the personal ones."""
POPULATIONS: dict[str, dict[str, Any]] = {
    **{f"sigma {sigma}": {"delta": 0.3, "size_sigma": sigma} for sigma in (0.1, 0.3, 0.5)},
    **{f"delta {delta:g}": {"delta": delta} for delta in (0.1, 0.5, 1.0)},
}


def options(population: str, method: str, seed: int) -> dict[str, Any]:
    """Return the options of a cell."""
    kept = {"executor": "stacked", "checkpoint_every": 10**6, "save_personal": False}
    return {**COMMON, **POPULATIONS[population], **kept, **METHODS[method], "seed": seed}


def local_side(method: str) -> str:
    """Return which models are a method's local ones."""
    return "personal" if method in PERSONAL else "local"


def accuracies(results: Results) -> list[str]:
    """One row per method, global / local in each population."""
    rows = []
    for method, own in METHODS.items():
        found = [results.where(population=name, method=method) for name in POPULATIONS]
        if not any(found):
            continue
        sides = ("global", local_side(method))
        cells = [
            " / ".join(spread([r[side] for r in group]) for side in sides) if group else None
            for group in found
        ]
        every = [record for group in found for record in group]
        rows.append([method, as_options(own), *cells, made_at(every)])
    columns = [f"{name}, global / local" for name in POPULATIONS]
    return table(["method", "options", *columns, "commit"], rows)


def pairs(results: Results) -> list[str]:
    """PAGE in both readings less FedAvg, over the seeds of each population."""
    rows = []
    for name in POPULATIONS:
        for method in ("page", "page-paper"):
            ours = results.where(population=name, method=method)
            theirs = results.where(population=name, method="fedavg")
            figures = [paired(ours, theirs, side, 2) for side in ("global", "local")]
            if None not in figures:
                rows.append([name, f"{method} − fedavg", *figures])
    return table(["population", "difference", "global", "local"], rows) if rows else []


def mean_gains(results: Results, method: str) -> tuple[float, float, int] | None:
    """Return the mean gains over FedAvg, global and local, and the number of runs."""
    gains: dict[str, list[float]] = {"global": [], "local": []}
    for name in POPULATIONS:
        for side, values in gains.items():
            ours = {r["seed"]: r[side] for r in results.where(population=name, method=method)}
            theirs = {r["seed"]: r[side] for r in results.where(population=name, method="fedavg")}
            values += [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not gains["global"]:
        return None
    return fmean(gains["global"]), fmean(gains["local"]), len(gains["global"])


def cells(results: Results) -> list[Cell]:
    """Return the grid, the first seed of every population before the others."""
    return [
        cell
        for seed in SEEDS
        for cell in grid(options, method=METHODS, population=POPULATIONS, seed=(seed,))
    ]


def command(results: Results) -> list[str]:
    """Return the command of all rows."""
    words = as_options(COMMON).strip("`")
    return [f"`equipoise run {words} --seed SEED`, the population's and the row's options."]


STUDY = Study(
    name="table3",
    cells=cells,
    measure=measure,
    tables={"accuracies": accuracies, "pairs": pairs, "command": command},
)
