"""Time, energy and bytes to 90 and 95 % of what synchronous FedAvg reaches, in three worlds of
devices.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

import equipoise
from benchmarks.families import DATA, watch
from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import Run, run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import spread, table
from equipoise.client_selection.learned import CONTROLS, LearnedSelection
from equipoise.clock.devices import SECONDS_PER_HOUR, DevicePopulation, load_device_classes
from equipoise.core import option
from equipoise.report.statistics import paired_difference

WORLDS, SEEDS, SHARES = ("phones", "silos", "default"), (1, 2, 3, 4, 5), (0.9, 0.95)
# Share of the clients that must have replied before a mean over clients counts: one phone in ten is
# away for an hour.
SEEN = 0.8
BASELINE = "sync"
# Who asks by turns is not evaluated in step with them: the same turn would be scored every time.
WAYS: dict[str, dict[str, Any]] = {
    BASELINE: {"eval_every": 2},
    "over-selection": {"overselection": 1.5, "eval_every": 5},
    "semi": {"mode": "semi", "eval_every": 5},
    "async": {"mode": "async", "eval_every": 8},
    "async, fair": {"mode": "async", "selection": "fair", "eval_every": 7},
    "size": {"selection": "size", "eval_every": 2},
    "loss": {"selection": "loss", "eval_every": 2},
    "oort": {"selection": "oort", "eval_every": 4},
    "fair": {"selection": "fair", "eval_every": 2},
    "learned": {"selection": "learned", "eval_every": 3},
    "learned: times only": {"selection": "benchmarks.studies.clock:TimesOnly", "eval_every": 3},
    "learned: at random": {"selection": "benchmarks.studies.clock:AtRandom", "eval_every": 3},
}
MEASURES = {"seconds": 0, "joules": 1, "MB": 2}
SIDES = {"global": 3, "personal": 4}
Point = Sequence[float]
"""Seconds, joules and megabytes so far; global and personal accuracy; clients seen."""


@dataclass(frozen=True)
class TimesOnly(LearnedSelection):
    """The control that knows times, and takes every reply to be worth the same."""

    name: ClassVar[str] = "times-only"
    control: str = option("zero", "as of learned", choices=CONTROLS)


@dataclass(frozen=True)
class AtRandom(LearnedSelection):
    """The control whose weights are drawn anew in each round."""

    name: ClassVar[str] = "at-random"
    control: str = option("random", "as of learned", choices=CONTROLS)


MOST = 5000  # rounds: the clock ends a run


@dataclass(frozen=True)
class Population:
    """A task, cut small, and how long it takes synchronous FedAvg in each world, in simulated
    seconds.
    """

    options: dict[str, Any]
    clients: int
    cohort: int
    until: dict[str, int]

    def settings(self, world: str, seed: int, how: dict[str, Any]) -> dict[str, Any]:
        until, mode = self.until[world], how.get("mode")
        more: dict[str, Any] = {"deadline": f"{until / 150}s"} if mode == "semi" else {}
        if mode == "async":
            more = {"buffer": self.cohort // 2}
        return {
            **self.options,
            **{
                "participation": self.cohort / self.clients,
                "rounds": MOST,
                "until": f"{until}s",
                "devices": world,
            },
            **{
                "executor": "stacked",
                "save_personal": False,
                "checkpoint_every": MOST,
                "seed": seed,
            },
            **how,
            **more,
        }


POPULATIONS = {
    "synthetic": Population(
        {
            "task": "synthetic",
            "clients": 50,
            "samples": 200,
            "epochs": 20,
            "batch_size": 40,
            "lr": 0.2,
        },
        *(50, 10, {"phones": 5400, "silos": 120, "default": 150}),
    ),
    "fmnist": Population(
        {
            **{
                "task": "fmnist",
                "data": str(DATA),
                "model": "mlp",
                "pool": 2,
                "clients": 40,
                "train_rows": 6000,
            },
            **{"server_rows": 1500, "epochs": 4, "batch_size": 50, "lr": 0.05},
        },
        *(40, 8, {"phones": 600, "silos": 20, "default": 30}),
    ),
    "watch": Population(
        {"epochs": 4, "batch_size": 64, "lr": 0.1},
        20,
        5,
        {"phones": 900, "silos": 25, "default": 40},
    ),
}


Axes = dict[str, str]
PLACES: list[Axes] = [{"task": task, "world": world} for task in POPULATIONS for world in WORLDS]


def cells(results: Results) -> list[Cell]:
    """World by world and seed by seed, so that whenever time is up all ways have the same seeds."""
    return [
        Cell(
            {"task": task, "world": world, "way": way, "seed": seed},
            population.settings(world, seed, how),
        )
        for world in WORLDS
        for seed in SEEDS
        for task, population in POPULATIONS.items()
        for way, how in WAYS.items()
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    options = dict(cell.options)
    if cell.axes["task"] == "watch":
        options["task"] = equipoise.Task.from_datasets(watch(arms=True), model="mlp").spec
    done = run(options, folder)
    summary = done.summary
    return {
        "course": course(done),
        "clock": summary["clock"],
        "energy": summary["energy"],
        "MB": (summary["bytes"]["up"] + summary["bytes"]["down"]) / 1e6,
        "seen": summary["clients_seen"],
        "classes": classes(done, **cell.axes),
    }


def course(done: Run) -> list[Point]:
    """The evaluations at which one of the two scores was better than ever, or somebody was new."""
    spent, points = [0.0, 0.0], list[Point]()
    best = (0.0, 0.0, 0)
    for log in done.logs:
        spent = [
            spent[0] + log["energy"],
            spent[1] + (log["bytes"]["up"] + log["bytes"]["down"]) / 1e6,
        ]
        if "global" not in log or "personal" not in log:  # late replies may bring no scores yet
            continue
        now = (log["global"]["acc"], log["personal"]["acc"], log["seen"])
        if any(new > old for new, old in zip(now, best, strict=True)):
            best = (max(now[0], best[0]), max(now[1], best[1]), now[2])
            points.append(
                [
                    round(log["clock"], 3),
                    round(spent[0], 2),
                    round(spent[1], 4),
                    *(round(v, 5) for v in now),
                ]
            )
    return points


def classes(done: Run, task: str, world: str, seed: int, **_: str) -> dict[str, dict[str, float]]:
    """Per class of devices: how many were there in some hour, whom of them was ever scored, and the
    trained models.
    """
    with open(done.folder / "clients.csv") as file:
        rows = {int(row["client"]): float(row["trained_acc"]) for row in csv.DictReader(file)}
    devices, everybody = load_device_classes(world), np.arange(POPULATIONS[task].clients)
    fleet = DevicePopulation(devices, seed)
    kinds, hours = (
        fleet.class_index(everybody),
        np.arange(0.0, done.summary["clock"], SECONDS_PER_HOUR),
    )
    there = np.any([fleet.available(everybody, hour) for hour in hours], axis=0)
    found = {}
    for place, device in enumerate(devices):
        own = everybody[(kinds == place) & there].tolist()
        scores = [rows[client] for client in own if not np.isnan(rows.get(client, np.nan))]
        if own:
            found[device.name] = {"seen": len(scores) / len(own), "clients": len(own)}
            if scores:
                found[device.name] |= {
                    "mean": fmean(scores),
                    "p10": float(np.quantile(scores, 0.1)),
                }
    return found


def reached(record: Record, side: str, target: float) -> Point | None:
    """The first evaluation with this score; of a mean over clients, when nearly all are in it."""
    place, seen = SIDES[side], SEEN * POPULATIONS[record["task"]].clients
    return next(
        (p for p in record["course"] if p[place] >= target and (side == "global" or p[5] >= seen)),
        None,
    )


def best_of(record: Record, side: str) -> float:
    scores: list[float] = [point[SIDES[side]] for point in record["course"]]
    return max(scores)


def needed(
    results: Results, place: Axes, way: str, side: str, share: float, what: str
) -> dict[int, float | None]:
    """By seed: what this way takes to a share of the baseline's best score; None where it does not
    get there.
    """
    found = {}
    for theirs in results.where(**place, way=BASELINE):
        for ours in results.where(**place, way=way, seed=theirs["seed"]):
            point = reached(ours, side, share * best_of(theirs, side))
            found[ours["seed"]] = point[MEASURES[what]] if point else None
    return found


def compared(
    results: Results,
    place: Axes,
    way: str,
    side: str,
    share: float,
    what: str,
    beside: str = BASELINE,
) -> list[float | None]:
    """By seed: what this way takes to the target, over what another takes; None where one does not
    get there.
    """
    ours, theirs = (needed(results, place, w, side, share, what) for w in (way, beside))
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return [None if mine is None or other is None else mine / other for mine, other in pairs]


def _times(values: Sequence[float | None], digits: int = 2) -> str | None:
    known = [value for value in values if value is not None]
    if not values:
        return None
    missing = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    return (spread(known, digits) if known else "not reached") + missing


def to_targets(results: Results) -> list[str]:
    """What each way needs, as a multiple of what synchronous FedAvg needs."""
    lines = []
    head = [
        "way",
        *(f"{what} to {100 * share:.0f} %" for share in SHARES for what in MEASURES),
        "seeds",
    ]
    for place in PLACES:
        for side in SIDES:
            rows = []
            for way in WAYS:
                figures = [
                    _times(compared(results, place, way, side, share, what))
                    for share in SHARES
                    for what in MEASURES
                ]
                if done := results.where(**place, way=way):
                    rows.append([way, *figures, len(done)])
            if rows:
                lines += [
                    f"**{place['task']}, {place['world']}, {side} score**",
                    "",
                    *table(head, rows),
                ]
    return lines


def absolute(results: Results) -> list[str]:
    """What synchronous FedAvg itself needs."""
    rows = []
    for place in PLACES:
        for side in SIDES:
            if done := results.where(**place, way=BASELINE):
                best = spread((100 * best_of(record, side) for record in done), 1)
                figures = [
                    spread(needed(results, place, BASELINE, side, share, what).values(), 0)
                    for share in SHARES
                    for what in ("seconds", "joules")
                ]
                rows.append([*place.values(), side, best, *figures, len(done)])
    head = [f"{what} to {100 * share:.0f} %" for share in SHARES for what in ("seconds", "joules")]
    return table(["task", "world", "score", "best %", *head, "seeds"], rows)


def _faster(ratios: Sequence[float | None]) -> list[str] | None:
    """How many times as fast, geometric mean and interval over seeds; None unless all get there."""
    known = [float(np.log(value)) for value in ratios if value is not None]
    d = paired_difference(known, [0.0] * len(known), higher_is_better=False)
    if d is None or len(known) < len(ratios):
        return None
    times = [f"{float(np.exp(-value)):.2f}" for value in (d.mean, d.high, d.low)]
    return [
        *times,
        {"ahead": "faster", "behind": "slower"}.get(d.verdict, d.verdict),
        str(len(known)),
    ]


def verdicts(results: Results) -> list[str]:
    """Paired over seeds: the time to 95 % of each mode and policy against uniform, synchronous
    cohorts.
    """
    return _against(results, [(way, BASELINE) for way in WAYS if way != BASELINE])


def learning(results: Results) -> list[str]:
    """What is learned, against the controls: the same policy that knows times only, or has random
    weights.
    """
    return _against(
        results, [("learned", way) for way in ("learned: times only", "learned: at random")]
    )


def _against(results: Results, pairs: Sequence[tuple[str, str]]) -> list[str]:
    rows = [
        [*place.values(), way, beside, side, *figures]
        for place in PLACES
        for way, beside in pairs
        for side in SIDES
        if (figures := _faster(compared(results, place, way, side, 0.95, "seconds", beside)))
    ]
    return table(
        ["task", "world", "way", "beside", "score", "times as fast", "from", "to", "", "seeds"],
        rows,
    )


def left_behind(results: Results) -> list[str]:
    """By class of devices: who ever replied, and the personal scores of those."""
    rows = []
    for place in PLACES:
        for way in WAYS:
            done = results.where(**place, way=way)
            for name in dict.fromkeys(name for record in done for name in record["classes"]):
                of = [record["classes"][name] for record in done if name in record["classes"]]
                seen = spread((100 * one["seen"] for one in of), 0)
                scores = [
                    spread((100 * one[key] for one in of if key in one), 1)
                    for key in ("mean", "p10")
                ]
                rows.append([*place.values(), way, name, seen, *scores, len(of)])
    return table(
        [
            "task",
            "world",
            "way",
            "devices",
            "ever scored %",
            "personal %",
            "worst decile %",
            "seeds",
        ],
        rows,
    )


STUDY = Study(
    name="clock",
    cells=cells,
    measure=measure,
    tables={
        **{"absolute": absolute, "to_targets": to_targets, "verdicts": verdicts},
        **{"learning": learning, "left_behind": left_behind},
    },
)
