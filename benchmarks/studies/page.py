"""PAGE in the paper's reading on Synthetic: rounds to the equilibrium, number of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import age, as_options, made_at, spread, table

SEEDS = (11, 12, 13)
EVERY = 10
SIDES = {"global": "global", "local": "trained"}
PAGE: dict[str, Any] = {"method": "page", "reading": "paper", "window": 0}
VARIANTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "page-until-settled": (PAGE | {"rounds": 1000, "window": 50}, SEEDS),
    "page-50-clients": (PAGE | {"clients": 50}, SEEDS),
    "page": (PAGE, SEEDS),
    # Its server scores every upload: 4 s per round.
    "page-1000-clients": (PAGE | {"clients": 1000, "rounds": 100}, SEEDS[:1]),
}
PAPER = {  # global %, local % and round of tables 1, 2 and 4
    "page-until-settled": (92.67, 96.24, 891),
    "page-50-clients": (91.75, 96.62, 618),
    "page": (92.67, 96.24, 891),
    "page-1000-clients": (92.39, 96.43, 928),
}


def options(variant: str, seed: int) -> dict[str, Any] | None:
    """Return the options of a cell; None if the variant has no such seed."""
    own, seeds = VARIANTS[variant]
    common = {
        "task": "synthetic",
        "rounds": 300,
        "executor": "stacked",
        "eval_every": EVERY,
        "checkpoint_every": 10**6,
        "save_personal": False,
    }
    return {**common, **own, "seed": seed} if seed in seeds else None


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell; return its accuracies, its curve and the round at which the game ended."""
    done = run(cell.options, folder)
    curve = [
        [log["round"], *(percent(log[name], 3) for name in SIDES.values())]
        for log in done.evaluated
    ]
    stopped = done.summary["rounds"] if done.summary["stopped"] else None
    return {**dict(zip(SIDES, curve[-1][1:], strict=True)), "stopped": stopped, "curve": curve}


def accuracies(results: Results) -> list[str]:
    """Return one row per variant, beside the paper's."""
    rows = []
    for name, published in PAPER.items():
        if found := results.where(variant=name):
            rows.append(
                [
                    name,
                    as_options(VARIANTS[name][0]),
                    ", ".join(str(r["stopped"] or r["rounds"]) for r in found),
                    ", ".join(str(r["seed"]) for r in found),
                    *(spread([r[side] for r in found], 2) for side in SIDES),
                    f"{published[0]:.2f} / {published[1]:.2f}, {published[2]}",
                    made_at(found),
                ]
            )
    head = ["variant", "options", "rounds", "seeds", "global %", "local %"]
    return table([*head, "paper (global / local, round)", "commit"], rows)


STUDY = Study(
    name="page",
    cells=lambda results: grid(options, variant=VARIANTS, seed=SEEDS),
    measure=measure,
    tables={"accuracies": accuracies, "age": age},
)
