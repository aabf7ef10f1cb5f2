"""Autopilot, its parts and adaptive baselines on every family of
federations, beside plain FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import ablations, rivals
from benchmarks.families import FAMILIES, build
from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import percent
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import paired, spread, table
from equipoise.report.statistics import paired_difference
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig

SIDES = ("global", "personal")
MAIN: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedavg-8": {"method": "fedavg", "epochs": 8},
    "autopilot": {"method": "autopilot"},
}
FEDAVG = ("fedavg", "fedavg-8")
PARTS = {kind.name: {"method": f"benchmarks.ablations:{kind.__name__}"} for kind in ablations.ALL}
ABLATED = (
    *(
        "synthetic-10",
        "synthetic-30",
        "synthetic-30-sizes",
        "synthetic-30-tenth",
        "fmnist-skew-mlp",
    ),
    *("fmnist-turned-mlp", "heart-linear", "heart-mlp", "flights", "watch"),
)
ABLATION_SEEDS = (100, 101, 102)


def cells(results: Results) -> list[Cell]:
    def grid(
        families: Iterable[str], variants: dict[str, dict[str, Any]], seeds: Iterable[int] = ()
    ) -> list[Cell]:
        return [
            Cell({"family": family, "variant": variant, "seed": seed}, options)
            for family in families
            for variant, options in variants.items()
            for seed in seeds or FAMILIES[family].seeds
        ]

    return [
        *grid(FAMILIES, MAIN),
        *grid(ABLATED, PARTS, ABLATION_SEEDS),
        *rivals.cells(results),
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    kind, seed = FAMILIES[cell.axes["family"]], cell.axes["seed"]
    settings, task = build(kind, dict(cell.options), seed)
    schedule = RoundLoopConfig(kind.rounds, seed, 1.0, kind.executor, kind.rounds, False)
    simulation = FederatedSimulation(settings.method, task, settings.training, schedule)
    for _ in range(kind.rounds):
        record = simulation.run_round()
    scores = {"global": record.global_, "personal": record.personal}
    result: dict[str, Any] = {side: percent(scores[side], 3) for side in SIDES}
    return result | {f"{side}_loss": scores[side].loss for side in SIDES}


def common(results: Results, family: str) -> dict[str, list[Record]]:
    """A family's cells of autopilot and of both FedAvgs, of the seeds that all three have."""
    found = {variant: results.where(family=family, variant=variant) for variant in MAIN}
    shared = set.intersection(*({record["seed"] for record in kept} for kept in found.values()))
    return {
        variant: [record for record in kept if record["seed"] in shared]
        for variant, kept in found.items()
    }


def over_fedavg(kept: dict[str, list[Record]]) -> list[str]:
    """How far autopilot is ahead of the FedAvg that is better on average, by side."""
    cells = []
    for side in SIDES:
        level = {variant: fmean(record[side] for record in kept[variant]) for variant in kept}
        better = max(FEDAVG, key=lambda variant: level[variant])
        gap = level["autopilot"] - level[better]
        cells.append(paired(kept["autopilot"], kept[better], side, 2) or f"{gap:+.2f}")
    return cells


def against_fedavg(results: Results) -> list[str]:
    """Mean accuracies, and the differences to the better FedAvg of each column."""
    rows = []
    for family in FAMILIES:
        kept = common(results, family)
        if kept["autopilot"]:
            levels = [
                " / ".join(spread(record[side] for record in kept[v]) for side in SIDES)
                for v in kept
            ]
            rows.append([family, len(kept["autopilot"]), *levels, *over_fedavg(kept)])
    return table(["family", "seeds", *MAIN, "autopilot - better FedAvg, global", "personal"], rows)


def pairs(
    results: Results, ours: str, theirs: str, families: Iterable[str]
) -> dict[str, list[tuple[Record, Record]]]:
    """Cells of two variants with the same seed, by family."""
    found = {}
    for family in families:
        mine, other = (
            {r["seed"]: r for r in results.where(family=family, variant=v)} for v in (ours, theirs)
        )
        found[family] = [(mine[seed], other[seed]) for seed in sorted(mine.keys() & other.keys())]
    return {family: both for family, both in found.items() if both}


def ahead(results: Results, ours: str, theirs: str, families: Iterable[str]) -> list[str]:
    """Mean difference over families, each a mean over common seeds, with the interval over
    families; by side.
    """
    common = pairs(results, ours, theirs, families)
    cells = []
    for side in SIDES:
        mine, other = (
            [fmean(pair[k][side] for pair in both) for both in common.values()] for k in (0, 1)
        )
        found = paired_difference(mine, other)
        cells.append("-" if found is None else f"{found.mean:+.2f} ± {found.high - found.mean:.2f}")
    return [str(len(common)), *cells]


def against_rivals(results: Results) -> list[str]:
    """Autopilot minus each adaptive baseline at its best setting."""
    rows = []
    for method, settings in rivals.SETTINGS.items():
        if not results.where(variant=method):
            continue
        chosen = settings[rivals.best(results, method)]
        text = ", ".join(f"{name} {value}" for name, value in chosen.items())
        rows.append([method, text, *ahead(results, "autopilot", method, rivals.COMPARED)])
    head = ["baseline", "its best setting", "families", "autopilot ahead, global", "personal"]
    return table(head, rows) if rows else ["Not measured yet."]


def losses(results: Results) -> list[str]:
    """Test loss of the global model."""
    rows = []
    for family in FAMILIES:
        found = {variant: results.where(family=family, variant=variant) for variant in MAIN}
        if found["autopilot"]:
            rows.append([family, *(spread((r["global_loss"] for r in found[v]), 3) for v in MAIN)])
    return table(["family", *MAIN], rows)


def parts(results: Results) -> list[str]:
    """What autopilot loses without a part: differences over common seeds, mean over families."""
    rows = []
    for variant in PARTS:
        found = pairs(results, variant, "autopilot", ABLATED)
        lost = {family: change(both) for family, both in found.items()}
        known = [values for values in lost.values() if values]
        total = (
            [fmean(values) for values in zip(*known, strict=True)]
            if len(known) == len(lost)
            else []
        )
        if lost:
            rows.append(
                [variant, *(shown(lost[f]) if f in lost else None for f in ABLATED), shown(total)]
            )
    return table(["without", *ABLATED, "mean"], rows) if rows else ["Not measured yet."]


def change(both: list[tuple[Record, Record]]) -> list[float]:
    """Mean difference by side; nothing where a run diverged."""
    if any(record[side] is None for pair in both for record in pair for side in SIDES):
        return []
    return [fmean(ours[side] - theirs[side] for ours, theirs in both) for side in SIDES]


def shown(changes: list[float]) -> str:
    return " / ".join(f"{value:+.1f}" for value in changes) or "diverged"


STUDY = Study(
    name="autopilot",
    cells=cells,
    measure=measure,
    tables={
        "against_fedavg": against_fedavg,
        "against_rivals": against_rivals,
        "losses": losses,
        "parts": parts,
    },
)
