"""A study to copy: two methods, two seeds, a table. It takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import spread, table

METHODS, SEEDS = ("fedavg", "scaffold"), (1, 2)


def options(method: str, seed: int) -> dict[str, Any]:
    return {
        "task": "synthetic",
        "clients": 10,
        "rounds": 5,
        "executor": "stacked",
        "method": method,
        "seed": seed,
    }


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    summary = run(cell.options, folder).summary
    return {side: percent(summary[side]) for side in ("global", "personal")}


def accuracies(results: Results) -> list[str]:
    rows = []
    for method in METHODS:
        found = results.where(method=method)
        rows.append(
            [
                method,
                *(spread(r[side] for r in found) for side in ("global", "personal")),
                len(found),
            ]
        )
    return table(["method", "global %", "personal %", "seeds"], rows)


STUDY = Study(
    name="example",
    cells=lambda results: grid(options, method=METHODS, seed=SEEDS),
    measure=measure,
    tables={"accuracies": accuracies},
)
