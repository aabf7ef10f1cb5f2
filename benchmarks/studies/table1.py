"""PAGE's tables 1 and 2, column Synthetic, at the paper's 900 rounds: ten methods, two settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import as_options, made_at, spread, table

SEEDS = (11, 12, 13)
ROUNDS = 900
EVAL_EVERY = 30
SIDES = {"global": "global", "local": "trained", "personal": "personal"}
PAGE: dict[str, Any] = {"method": "page", "window": 0}
# Our defaults, and where they differ those of the PAGE repository.
OURS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedprox": {"method": "fedprox"},
    "scaffold": {"method": "scaffold"},
    "feddyn": {"method": "feddyn"},
    "dapfl": {"method": "dapfl"},
    "pfedme": {"method": "pfedme"},
    "ditto": {"method": "ditto"},
    "fedala": {"method": "fedala"},
    "fedrod": {"method": "fedrod"},
    "page": PAGE,
    "page-paper": PAGE | {"reading": "paper"},
    "page-paper-train": PAGE | {"reading": "paper", "measured_on": "train"},
    "page-authors-code": PAGE | {"reading": "authors-code"},
}
REPOSITORY: dict[str, dict[str, Any]] = {
    "dapfl": {"lr_min": 0.001, "lr_max": 0.1},
    "ditto": {"lam": 0.1},
    "fedprox": {"mu": 1e-4},
    "fedala": {"ala_lr": 0.2},
}
PERSONAL = ("pfedme", "ditto", "fedala", "fedrod")
"""Methods whose local models are the personal ones."""
PAPER = {  # Table 1 (global %, local %) and table 2 (round), Synthetic.
    "fedavg": (91.46, 95.26, 902),
    "fedprox": (91.48, 95.49, 896),
    "scaffold": (97.37, 95.71, 878),
    "feddyn": (97.57, 94.11, 901),
    "dapfl": (92.19, 94.14, 900),
    "pfedme": (85.59, 90.23, 843),
    "ditto": (92.09, 95.56, 491),
    "fedala": (85.51, 95.42, 501),
    "fedrod": (87.93, 90.63, 497),
    "page": (92.67, 96.24, 891),
    "page-paper": (92.67, 96.24, 891),
    "page-paper-train": (92.67, 96.24, 891),
    "page-authors-code": (92.67, 96.24, 891),
}


def options(settings: str, method: str, seed: int) -> dict[str, Any] | None:
    """Return the options of a cell; the repository's settings only where they differ."""
    if settings == "repository" and method not in REPOSITORY:
        return None
    changed = REPOSITORY[method] if settings == "repository" else {}
    common = {
        "task": "synthetic",
        "rounds": ROUNDS,
        "executor": "stacked",
        "eval_every": EVAL_EVERY,
        "checkpoint_every": 10**6,
        "save_personal": False,
    }
    return {**common, **OURS[method], **changed, "seed": seed}


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell and return its curve and its last accuracies."""
    done = run(cell.options, folder)
    curve = [
        [log["round"], *(percent(log[name], 3) for name in SIDES.values())]
        for log in done.evaluated
    ]
    last = dict(zip(SIDES, curve[-1][1:], strict=True))
    return {**last, "converged": done.summary["converged_round"], "curve": curve}


def accuracies(results: Results) -> list[str]:
    """One row per method and settings, beside the paper's row."""
    rows = []
    for method, published in PAPER.items():
        for settings in ("ours", "repository"):
            found = results.where(settings=settings, method=method)
            if not found:
                continue
            side = "personal" if method in PERSONAL else "local"
            own = OURS[method] | (REPOSITORY[method] if settings == "repository" else {})
            rounds = [r["converged"]["personal" if method in PERSONAL else "global"] for r in found]
            rows.append(
                [
                    method,
                    as_options(own),
                    ", ".join(str(r["seed"]) for r in found),
                    spread([r["global"] for r in found], 2),
                    spread([r[side] for r in found], 2),
                    spread(rounds, 0),
                    *published,
                    made_at(found),
                ]
            )
    head = ["method", "options", "seeds", "global %", "local %", "round"]
    return table([*head, "paper: global %", "paper: local %", "paper: round", "commit"], rows)


def missing(results: Results) -> list[str]:
    """Name the cells that are declared and were not run."""
    names = [cell.name for cell in cells(results) if cell.name not in results]
    return [f"Not run: {', '.join(f'`{name}`' for name in names)}." if names else "All were run."]


def cells(results: Results) -> list[Cell]:
    """Return the grid, the first seed of every row before the others."""
    return [
        cell
        for seed in SEEDS
        for cell in grid(options, settings=("repository", "ours"), method=OURS, seed=(seed,))
    ]


STUDY = Study(
    name="table1",
    cells=cells,
    measure=measure,
    tables={"accuracies": accuracies, "missing": missing},
)
