"""PAGE's tables 1 and 2 (column Synthetic), ours beside the published figures: every method that
suits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import run
from benchmarks.lab.tables import age, table
from equipoise.experiment.tune import tune
from equipoise.records.codec import decode
from equipoise.records.summary import Summary
from equipoise.report import tables

TUNED = (
    "fedavgm",
    "scaffold",
    "feddyn",
    "finetune",
    "ditto",
    "fedprox",
    "local",
    "fedavg",
    "fedala",
    "pfedme",
)
METHODS: tuple[str, ...] = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "feddyn",
    "dapfl",
    "pfedme",
    "ditto",
    "fedala",
    "page",
)
METHODS += ("autopilot", "local", "finetune", "page-paper")
VARIANTS = {"page-paper": {"method": "page", "reading": "paper"}}
"""Rows that are not a method at its defaults."""
SEEDS, TRIALS = (0, 1, 2), 8
SEARCH: dict[str, Any] = {"task": "synthetic", "rounds": 40, "eval_every": 5, "seed": 100}
SHOWN = (
    "global %",
    "personal %",
    "fine-tuned %",
    "worst decile %",
    "rounds to converge: global",
    "rounds to converge",
)
# Global %, local % and convergence round (tables 1 and 2; about 900 rounds, 210 training samples
# per client).
PAPER = {
    "fedavg": (91.46, 95.26, 902),
    "fedprox": (91.48, 95.49, 896),
    "scaffold": (97.37, 95.71, 878),
    "feddyn": (97.57, 94.11, 901),
    "dapfl": (92.19, 94.14, 900),
    "pfedme": (85.59, 90.23, 843),
    "ditto": (92.09, 95.56, 491),
    "fedala": (85.51, 95.42, 501),
    "page": (92.67, 96.24, 891),
    "page-paper": (92.67, 96.24, 891),
}


def cells(results: Results) -> list[Cell]:
    """Defaults, searches, and what the searches found."""
    found = {record["method"]: record["options"] for record in results.where(settings="search")}

    def options(settings: str, method: str, seed: int) -> dict[str, Any]:
        common = {"task": "synthetic", "rounds": 200, "finetune": True, "checkpoint_every": 50}
        return {
            **common,
            **(found[method] if settings == "tuned" else {}),
            **VARIANTS.get(method, {"method": method}),
            "seed": seed,
        }

    searches = grid(lambda **axes: SEARCH, settings=("search",), method=TUNED)
    default = grid(options, settings=("default",), method=METHODS, seed=SEEDS)
    return [
        *default,
        *searches,
        *grid(options, settings=("tuned",), method=[m for m in TUNED if m in found], seed=SEEDS),
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    if cell.axes["settings"] == "search":
        return {"options": tune(cell.axes["method"], dict(cell.options), TRIALS, folder)}
    return {"summary": run(cell.options, folder).summary}


def summaries(results: Results, settings: str) -> dict[str, list[Summary]]:
    methods = METHODS if settings == "default" else TUNED
    found = {
        method: [
            decode(Summary, r["summary"]) for r in results.where(settings=settings, method=method)
        ]
        for method in methods
    }
    return {method: own for method, own in found.items() if own}


def accuracies(settings: str) -> Any:
    """Best first, with the paper's figures and the paired differences."""

    def made(results: Results) -> list[str]:
        by_method = summaries(results, settings)
        columns = tables.summary_columns(next(iter(by_method.values()))[0])
        picked = [next(c for c in columns if c.title == title) for title in SHOWN]
        rows = tables.summary_rows(by_method, picked)
        order = sorted(rows, key=lambda m: -((rows[m][0].mean or 0) + (rows[m][1].mean or 0)))
        published = {
            method: [f"{value:g}" for value in PAPER.get(method, ())] or ["—"] * 3
            for method in order
        }
        head = ["method", *SHOWN, "paper: global %", "paper: local %", "paper: round"]
        lines = table(head, [[method, *rows[method], *published[method]] for method in order])
        return [
            *lines[:-1],
            tables.paired_markdown(by_method, picked[:2]).replace("\n## ", "\n### "),
        ]

    return made


def found(results: Results) -> list[str]:
    searched = {record["method"]: record["options"] for record in results.where(settings="search")}
    words = {
        m: ", ".join(f"{name} {value:.4g}" for name, value in searched[m].items())
        for m in TUNED
        if m in searched
    }
    return table(["method", "options found"], words.items())


STUDY = Study(
    name="synthetic",
    cells=cells,
    measure=measure,
    tables={
        "default": accuracies("default"),
        "found": found,
        "tuned": accuracies("tuned"),
        "age": lambda results: age(r for r in results if r["settings"] != "search"),
    },
)
