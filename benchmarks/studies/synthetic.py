"""Every method that suits, at its defaults, on Synthetic, and what fine-tuning adds to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import run
from benchmarks.lab.tables import age, table
from equipoise.records.codec import decode
from equipoise.records.summary import Summary
from equipoise.report import tables

METHODS: tuple[str, ...] = (
    "fedavg",
    "page",
    "page-paper",
    "scaffold",
    "feddyn",
    "fedavgm",
    "autopilot",
    "local",
    "finetune",
    "ditto",
    "fedprox",
    "fedala",
    "dapfl",
    "pfedme",
)
VARIANTS = {"page-paper": {"method": "page", "reading": "paper"}}
"""Rows that are not a method at its defaults."""
CLIENTS, ROUNDS, EVERY = 50, 150, 5
SEEDS = (0, 1, 2)
SHOWN = (
    "global %",
    "personal %",
    "fine-tuned %",
    "worst decile %",
    "rounds to converge: global",
    "rounds to converge",
)


def options(method: str, seed: int) -> dict[str, Any]:
    """Return the options of a cell."""
    common = {
        "task": "synthetic",
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "eval_every": EVERY,
        "finetune": True,
        "checkpoint_every": 10**6,
    }
    return {**common, **VARIANTS.get(method, {"method": method}), "seed": seed}


def cells(results: Results) -> list[Cell]:
    """Return the grid, the first seed of every method before the others."""
    return [cell for seed in SEEDS for cell in grid(options, method=METHODS, seed=(seed,))]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell and return its summary."""
    return {"summary": run(cell.options, folder).summary}


def summaries(results: Results) -> dict[str, list[Summary]]:
    """Return the summaries of each method that was run, by seed."""
    found = {
        method: [decode(Summary, r["summary"]) for r in results.where(method=method)]
        for method in METHODS
    }
    return {method: own for method, own in found.items() if own}


def accuracies(results: Results) -> list[str]:
    """Return a row per method, the best first, and the paired differences to the best."""
    by_method = summaries(results)
    columns = tables.summary_columns(next(iter(by_method.values()))[0])
    picked = [next(c for c in columns if c.title == title) for title in SHOWN]
    rows = tables.summary_rows(by_method, picked)
    order = sorted(rows, key=lambda m: -((rows[m][0].mean or 0) + (rows[m][1].mean or 0)))
    seeds = {m: ", ".join(str(r["seed"]) for r in results.where(method=m)) for m in order}
    lines = table(["method", "seeds", *SHOWN], [[m, seeds[m], *rows[m]] for m in order])
    if all(len(own) < 2 for own in by_method.values()):
        return lines
    return [
        *lines[:-1],
        tables.paired_markdown(by_method, picked[:2]).replace("\n## ", "\n### "),
    ]


STUDY = Study(
    name="synthetic",
    cells=cells,
    measure=measure,
    tables={"default": accuracies, "age": age},
)
