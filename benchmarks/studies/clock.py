"""Time, energy and bytes to 90 and 95 % of what synchronous FedAvg reaches, in three worlds of devices."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import Run, run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import spread, table
from equipoise.clock.devices import read
from equipoise.clock.fleet import Fleet
from equipoise.contract import option
from equipoise.report.paired import difference
from equipoise.selection.learned import CONTROLS, Learned

WORLDS, SEEDS, SHARES = ("phones", "silos", "default"), (1, 2, 3, 4, 5), (0.9, 0.95)
PERIOD = {"phones": "30s", "silos": "2s", "default": "8s"}  # about what a usual device needs
SEEN = 0.8  # of the clients must have replied before a mean over clients counts; one phone in ten is away for an hour
COHORT, ROUNDS, MORE = 10, 60, 150
"""Clients per round; rounds of the baseline, and of the others, which are shorter."""
BASELINE = "sync"
WAYS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "over-selection": {"over_select": 1.5},
    "semi": {"mode": "semi", "deadline": "period"},
    "async": {"mode": "async", "buffer": 3, "rounds": MORE * COHORT // 4, "eval_every": 8},
    "size": {"select": "size"},
    "loss": {"select": "loss"},
    "oort": {"select": "oort"},
    "fair": {"select": "fair"},
    "learned": {"select": "learned"},
    "learned: times only": {"select": "benchmarks.studies.clock:TimesOnly"},
    "learned: at random": {"select": "benchmarks.studies.clock:AtRandom"},
}
MEASURES = {"seconds": 0, "joules": 1, "MB": 2}
SIDES = {"global": 3, "personal": 4}
Point = Sequence[float]
"""Seconds, joules and megabytes so far; global and personal accuracy; clients seen."""


@dataclass(frozen=True)
class TimesOnly(Learned):
    """The control that knows times, and takes every reply to be worth the same."""

    name: ClassVar[str] = "times-only"
    control: str = option("zero", "as of learned", choices=CONTROLS)


@dataclass(frozen=True)
class AtRandom(Learned):
    """The control whose weights are drawn anew in each round."""

    name: ClassVar[str] = "at-random"
    control: str = option("random", "as of learned", choices=CONTROLS)


def cells(results: Results) -> list[Cell]:
    found = []
    for world in WORLDS:
        for seed in SEEDS:
            for way, how in WAYS.items():
                more = {name: PERIOD[world] if value == "period" else value for name, value in how.items()}
                options = {
                    **{"task": "synthetic", "clients": 50, "participation": COHORT / 50},
                    **{"rounds": ROUNDS if way == BASELINE else MORE, "eval_every": 3},
                    **{"executor": "stacked", "save_personal": False, "seed": seed, "devices": world},
                }
                found.append(Cell({"world": world, "way": way, "seed": seed}, {**options, **more}))
    return found


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    summary = done.summary
    return {
        "course": course(done),
        "clock": summary["clock"],
        "energy": summary["energy"],
        "MB": (summary["bytes"]["up"] + summary["bytes"]["down"]) / 1e6,
        "seen": summary["clients_seen"],
        "classes": classes(done, cell.axes["world"], cell.axes["seed"]),
    }


def course(done: Run) -> list[Point]:
    """The evaluations at which one of the two scores was better than ever, or somebody was new."""
    spent, points = [0.0, 0.0], list[Point]()
    best = (0.0, 0.0, 0)
    for log in done.logs:
        spent = [spent[0] + log["energy"], spent[1] + (log["bytes"]["up"] + log["bytes"]["down"]) / 1e6]
        if "global" not in log or "personal" not in log:  # late replies may bring no scores yet
            continue
        now = (log["global"]["acc"], log["personal"]["acc"], log["seen"])
        if any(new > old for new, old in zip(now, best, strict=True)):
            best = (max(now[0], best[0]), max(now[1], best[1]), now[2])
            points.append([round(log["clock"], 3), round(spent[0], 2), round(spent[1], 4), *(round(v, 5) for v in now)])
    return points


def classes(done: Run, world: str, seed: int) -> dict[str, dict[str, float]]:
    """Per class of devices: the share of its clients that were ever scored, and the scores of their trained models."""
    with open(done.folder / "clients.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["trained_acc"] != "nan"]
    devices = read(world)
    clients = int(done.config["clients"])
    kinds = Fleet(devices, seed).kinds(np.arange(clients))
    found = {}
    for place, device in enumerate(devices):
        scores = [float(row["trained_acc"]) for row in rows if kinds[int(row["client"])] == place]
        size = int((kinds == place).sum())
        if size:
            found[device.name] = {"seen": len(scores) / size, "clients": size}
            if scores:
                found[device.name] |= {"mean": fmean(scores), "p10": float(np.quantile(scores, 0.1))}
    return found


def reached(record: Record, side: str, target: float, clients: int = 50) -> Point | None:
    """The first evaluation with this score; of a mean over clients, when nearly all are in it."""
    place = SIDES[side]
    return next(
        (p for p in record["course"] if p[place] >= target and (side == "global" or p[5] >= SEEN * clients)), None
    )


def best_of(record: Record, side: str) -> float:
    scores: list[float] = [point[SIDES[side]] for point in record["course"]]
    return max(scores)


def compared(results: Results, world: str, way: str, side: str, share: float, what: str) -> list[float | None]:
    """By seed: what this way takes to the target, over what the baseline takes; None where it does not get there."""
    found: list[float | None] = []
    for seed in SEEDS:
        ours, theirs = (results.where(world=world, way=w, seed=seed) for w in (way, BASELINE))
        if not ours or not theirs:
            continue
        target = share * best_of(theirs[0], side)
        mine, base = reached(ours[0], side, target), reached(theirs[0], side, target)
        place = MEASURES[what]
        found.append(None if mine is None or base is None else mine[place] / base[place])
    return found


def _times(values: Sequence[float | None], digits: int = 2) -> str | None:
    known = [value for value in values if value is not None]
    if not values:
        return None
    missing = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    return (spread(known, digits) if known else "not reached") + missing


def to_targets(results: Results) -> list[str]:
    """What each way needs, as a multiple of what synchronous FedAvg needs."""
    lines = []
    for world in WORLDS:
        for side in SIDES:
            head = ["way", *(f"{what} to {100 * share:.0f} %" for share in SHARES for what in MEASURES), "seeds"]
            rows = []
            for way in WAYS:
                done = results.where(world=world, way=way)
                if done:
                    figures = [
                        _times(compared(results, world, way, side, share, what))
                        for share in SHARES
                        for what in MEASURES
                    ]
                    rows.append([way, *figures, len(done)])
            if rows:
                lines += [f"**{world}, {side} score**", "", *table(head, rows)]
    return lines


def absolute(results: Results) -> list[str]:
    """What synchronous FedAvg itself needs."""
    rows = []
    for world in WORLDS:
        for side in SIDES:
            done = results.where(world=world, way=BASELINE)
            if not done:
                continue
            points = [(r, [reached(r, side, share * best_of(r, side)) for share in SHARES]) for r in done]
            times = [spread((at[0] if at else None for at in (p[k] for _, p in points)), 0) for k in range(len(SHARES))]
            rows.append([world, side, spread((100 * best_of(r, side) for r in done), 1), *times, len(done)])
    return table(["world", "score", "best %", "seconds to 90 %", "seconds to 95 %", "seeds"], rows)


def verdicts(results: Results) -> list[str]:
    """Paired over seeds: the logarithm of the time to 95 % of each policy and mode against uniform, synchronous."""
    rows = []
    for world in WORLDS:
        for way in WAYS:
            for side in SIDES:
                ratios = compared(results, world, way, side, 0.95, "seconds")
                known = [float(np.log(value)) for value in ratios if value is not None]
                d = difference(known, [0.0] * len(known), higher=False)
                if way != BASELINE and d is not None and len(known) == len(ratios):
                    faster = [float(np.exp(-value)) for value in (d.mean, d.high, d.low)]
                    rows.append(
                        [
                            world,
                            way,
                            side,
                            *(f"{value:.2f}" for value in faster),
                            {"ahead": "faster", "behind": "slower"}.get(d.verdict, d.verdict),
                        ]
                    )
    return table(["world", "way", "score", "times as fast to 95 %", "from", "to", ""], rows)


def left_behind(results: Results) -> list[str]:
    """By class of devices: who ever replied, and the personal scores of those."""
    rows = []
    for world in WORLDS:
        for way in WAYS:
            done = results.where(world=world, way=way)
            for name in dict.fromkeys(name for record in done for name in record["classes"]):
                of = [record["classes"][name] for record in done if name in record["classes"]]
                seen = spread((100 * one["seen"] for one in of), 0)
                scores = [spread((100 * one[key] for one in of if key in one), 1) for key in ("mean", "p10")]
                rows.append([world, way, name, seen, *scores, len(of)])
    return table(["world", "way", "devices", "ever scored %", "personal %", "worst decile %", "seeds"], rows)


STUDY = Study(
    name="clock",
    cells=cells,
    measure=measure,
    tables={"absolute": absolute, "to_targets": to_targets, "verdicts": verdicts, "left_behind": left_behind},
)
