"""PAGE's table 1 on Shakespeare, CIFAR-100 and Tiny-ImageNet, at sizes that two cores can bear."""

from __future__ import annotations

from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.tables import as_options, made_at, spread, table
from benchmarks.studies.readings import measure

SEEDS = (11,)  # one: a cell takes minutes of a busy machine
PERSONAL = ("ditto", "fedala", "fedper")
"""Methods whose local models are the personal ones."""
# The paper's 35 random rounds and 20 epochs are for some 900 rounds.
PAGE: dict[str, Any] = {"method": "page", "window": 0, "warmup": 3, "max_epochs": 4}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "ditto": {"method": "ditto"},
    "fedala": {"method": "fedala"},
    "fedper": {"method": "fedper"},
    "page": PAGE,
    "page-paper": PAGE | {"reading": "paper"},
}
COMMON: dict[str, Any] = {"batch_size": 16, "executor": "loop"}
COLUMNS: dict[str, dict[str, Any]] = {
    "shakespeare": {"task": "shakespeare", "clients": 5, "role_samples": 400, "server_rows": 500}
    | COMMON
    | {"epochs": 2, "rounds": 10},
    "tinyimagenet": {"task": "tinyimagenet", "model": "cnn", "pool": 4, "clients": 10}
    | COMMON
    | {"epochs": 2, "lr": 0.05, "rounds": 12},
    "cifar100": {"task": "cifar100", "model": "resnet18", "pool": 2, "clients": 5}
    | COMMON
    | {
        "train_rows": 500,
        "server_rows": 500,
        "epochs": 1,
        "lr": 0.05,
        "rounds": 3,
        "eval_every": 3,
    },
}
"""`cifar100` shows that a ResNet-18 runs in each method: three rounds rank nothing, and PAGE's
agents have learned nothing by then."""
PAPER = {  # Table 1 (global %, local %): 100 clients, whole data sets, 300 to 660 rounds.
    "shakespeare": {
        "fedavg": (47.52, 40.24),
        "scaffold": (49.14, 39.36),
        "ditto": (48.95, 47.05),
        "fedala": (43.45, 46.77),
        "page": (51.74, 49.27),
        "page-paper": (51.74, 49.27),
    },
    "cifar100": {
        "fedavg": (32.97, 38.30),
        "scaffold": (32.81, 36.12),
        "ditto": (31.86, 39.93),
        "fedala": (32.10, 39.63),
        "page": (33.55, 40.94),
        "page-paper": (33.55, 40.94),
    },
    "tinyimagenet": {
        "fedavg": (7.85, 11.29),
        "scaffold": (8.39, 9.17),
        "ditto": (7.77, 9.59),
        "fedala": (7.63, 9.83),
        "page": (8.45, 12.83),
        "page-paper": (8.45, 12.83),
    },
}


def options(column: str, method: str, seed: int) -> dict[str, Any]:
    """Return the options of a cell."""
    kept = {"checkpoint_every": 10**6, "save_personal": False}
    return {**with_evaluations(column), **kept, **METHODS[method], "seed": seed}


def with_evaluations(column: str) -> dict[str, Any]:
    """Return the options of a data set, five evaluations where it names no other number."""
    own = COLUMNS[column]
    return own | {"eval_every": own.get("eval_every", max(1, own["rounds"] // 5))}


def local_side(method: str) -> str:
    """Return which models are a method's local ones."""
    return "personal" if method in PERSONAL else "local"


def accuracies(column: str) -> Any:
    """Return the table of one data set: a row per method, beside the paper's."""

    def made(results: Results) -> list[str]:
        rows = []
        for method, own in METHODS.items():
            if found := results.where(column=column, method=method):
                published = PAPER[column].get(method)
                rows.append(
                    [
                        method,
                        as_options(own),
                        ", ".join(str(r["seed"]) for r in found),
                        spread([r["global"] for r in found], 2),
                        spread([r[local_side(method)] for r in found], 2),
                        " / ".join(f"{value:.2f}" for value in published) if published else None,
                        spread([r.seconds for r in found], 0),
                        made_at(found),
                    ]
                )
        head = ["method", "options", "seeds", "global %", "local %"]
        head += ["paper (global / local)", "seconds", "commit"]
        return table(head, rows) if rows else ["Not run yet."]

    return made


def command(column: str) -> Any:
    """Return the command of a data set's rows, to which a row adds its options."""

    def made(results: Results) -> list[str]:
        words = as_options(with_evaluations(column))
        return [f"`equipoise run {words.strip('`')} --seed SEED` and the row's options."]

    return made


def cells(results: Results) -> list[Cell]:
    """Return the grid, the first seed of every data set before the others."""
    return [
        cell
        for seed in SEEDS
        for cell in grid(options, column=COLUMNS, method=METHODS, seed=(seed,))
    ]


STUDY = Study(
    name="page_data",
    cells=cells,
    measure=measure,
    tables={
        **{column: accuracies(column) for column in COLUMNS},
        **{f"{column}_command": command(column) for column in COLUMNS},
    },
)
