"""Tables and figures of the study deep_rl: received and trained beside each other, with intervals
over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.lab import Record, Results
from benchmarks.lab.plots import Series, drawing, lines
from benchmarks.lab.tables import table
from equipoise.report.statistics import paired_difference

COLOURS = {"dqn": "#7F7F7F", "dqnavg": "#0072B2", "perdqnavg": "#009E73", "pfeddqn-rep": "#D55E00"}
COLOURS["fedpolicy"] = "#CC79A7"
MAIN = tuple(COLOURS)
IMPORTANCE = "dqnavg-im"
THREE = ("length", "reversed", "goal")
KINDS = {
    "cartpole": (*THREE, "sensors"),
    "acrobot": THREE,
    "pendulum": THREE,
    "hopper": ("legs",),
    "halfcheetah": ("legs",),
}
NEWCOMERS = ("cartpole", "acrobot", "pendulum")
MISSING = {
    "pendulum": ("perdqnavg",),
    "hopper": ("perdqnavg", "fedpolicy"),
    "halfcheetah": ("perdqnavg", "fedpolicy"),
}  # no embedding there; too dear
TROUBLES: dict[str, dict[str, Any]] = {"30 % absent": {"participation": 0.7}}
ALTERNATING = "pfeddqn-rep, 4 head steps"
RANDOM_BODY = "pfeddqn-rep, frozen random body"
SIZES = {f"pfeddqn-rep, {agents} agents": agents for agents in (2, 4, 20)}
SIDE: tuple[str, ...] = ("dqn", "dqnavg", "pfeddqn-rep", ALTERNATING, RANDOM_BODY, "head shared")
SIDE += tuple(f"{name}, {words}" for name in ("dqnavg", "pfeddqn-rep") for words in TROUBLES)
SIDE_SEEDS = range(500, 505)
"""Seeds of the side experiments."""
RESAMPLES = 4000


def interval(values: Sequence[float]) -> str:
    """Mean, and the 95 % interval of the mean by resampling seeds; alone for fewer than three."""
    if len(values) < 3:
        return f"{fmean(values):.0f}"
    low, high = bounds(values)
    return f"{fmean(values):.0f} [{low:.0f}, {high:.0f}]"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    draws = np.random.default_rng(0).choice(np.array(values), (RESAMPLES, len(values))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def returns(
    task: str, kind: str, methods: Sequence[str], seeds: range = range(10**6)
) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        for method in methods:
            found = results.where(task=task, kind=kind, method=method)
            own = [record for record in found if record["seed"] in seeds]
            if own:
                curves = [r["curve"] for r in own]
                scores = [[curve[-1][name] for curve in curves] for name in ("received", "trained")]
                way = [fmean(point["trained"] for point in curve) for curve in curves]
                worst, sent = (
                    [min(r["agents"]) for r in own],
                    fmean(r["bytes"]["up"] for r in own) / 1e6,
                )
                figures = [interval(values) for values in (*scores, way, worst)]
                rows.append([method, *figures, f"{sent:.1f}", len(own)])
        head = ("", "received", "trained", "trained, on the way", "worst agent", "MB up", "seeds")
        return table(head, rows) if rows else ["No cell is finished yet.", ""]

    return made


def gain(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Paired: the mean difference, and Student's 95 % interval of it, from two seeds on."""
    found = paired_difference(ours, theirs)
    return (
        f"{ours[0] - theirs[0]:+.0f}"
        if found is None
        else f"{found.mean:+.0f} [{found.low:.0f}, {found.high:.0f}]"
    )


def aim(results: Results) -> list[str]:
    """pfeddqn-rep less the others over common seeds, for what is received
    and for what is trained.
    """
    rows: list[list[Any]] = []
    for task, kind in PLACES:
        last = {
            method: {
                r["seed"]: r["curve"][-1]
                for r in results.where(task=task, kind=kind, method=method)
            }
            for method in ("pfeddqn-rep", "dqn", "dqnavg")
        }
        seeds = sorted(set.intersection(*(set(found) for found in last.values())))
        if seeds:
            ours = last.pop("pfeddqn-rep")
            gains = [
                gain([ours[seed][name] for seed in seeds], [theirs[seed][name] for seed in seeds])
                for theirs in last.values()
                for name in ("received", "trained")
            ]
            received = [
                [found[seed]["received"] for seed in seeds] for found in (ours, *last.values())
            ]
            own, *others = (bounds(values) for values in received)
            above = " and ".join(
                name for name, (_, high) in zip(last, others, strict=True) if own[0] > high
            )
            rows.append([task, kind, *gains, above if len(seeds) > 2 else "", len(seeds)])
    head = [
        f"over {other}, {name}" for other in ("dqn", "dqnavg") for name in ("received", "trained")
    ]
    return table(
        ["", "agents differ by", *head, "received: interval wholly above that of", "seeds"], rows
    )


def newcomers(task: str) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        marks: list[str] = []
        for kind in KINDS[task]:
            for method in MAIN:
                own = [r["newcomers"] for r in results.where(task=task, kind=kind, method=method)]
                if own:
                    marks = list(own[0])
                    rows.append(
                        [
                            kind,
                            method,
                            *(interval([each[mark] for each in own]) for mark in marks),
                            len(own),
                        ]
                    )
        head = ["agents differ by", "from", *(f"{int(mark):,} steps" for mark in marks), "seeds"]
        return table(head, rows) if rows else ["No cell is finished yet.", ""]

    return made


def size(task: str) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        one = next(iter(results.where(task=task)), None)
        if one is None:
            return []
        steps, config = int(one["curve"][-1]["steps"]), one.config
        return [
            f"{config['agents']} agents, {config['rounds']} rounds: "
            f"{steps:,} environment steps of each."
        ]

    return made


def former_hopper(results: Results) -> list[str]:
    """Say which commits made the cells of Hopper by its former task."""
    made = [record for record in results.where(task="hopper") if record.config["task"] == "hopper"]
    commits = ", ".join(sorted({record.commit[:10] for record in made if record.commit}))
    if not made:
        return []
    return [
        f"{len(made)} of these cells, of commit {commits}, were made by a task `hopper` that "
        "drove MuJoCo directly and was removed since; others run the same bodies by `--task gym`."
    ]


def over_seeds(own: Sequence[Record], method: str, key: str) -> Series:
    runs = list(zip(*[[point[key] for point in r["curve"]] for r in own], strict=True))
    steps, means = [point["steps"] for point in own[0]["curve"]], [fmean(values) for values in runs]
    return Series(
        method, steps, means, COLOURS[method], [min(v) for v in runs], [max(v) for v in runs]
    )


def curves(task: str, kind: str) -> Callable[[Results, Path], None]:
    """What agents received, and what they trained, with the range of the seeds."""

    def draw(results: Results, path: Path) -> None:
        found = {method: results.where(task=task, kind=kind, method=method) for method in MAIN}
        with drawing(path, 2, (9.2, 3)) as axes:
            for axis, key in zip(axes, ("received", "trained"), strict=True):
                series = [over_seeds(own, method, key) for method, own in found.items() if own]
                lines(axis, series, "", "environment steps of an agent", f"return, {key}")

    return draw


PLACES = [(task, kind) for task, kinds in KINDS.items() for kind in kinds]
TABLES = {
    **{f"{task}_size": size(task) for task in KINDS},
    **{f"{task}_{kind}": returns(task, kind, (*MAIN, IMPORTANCE)) for task, kind in PLACES},
    **{f"{task}_newcomers": newcomers(task) for task in NEWCOMERS},
    "former_hopper": former_hopper,
    "aim": aim,
    "side": returns("cartpole", "reversed", SIDE, SIDE_SEEDS),
    "sizes": returns("cartpole", "reversed", ("dqn", *SIZES, "pfeddqn-rep"), SIDE_SEEDS),
}
FIGURES = {"cartpole-reversed.svg": curves("cartpole", "reversed")}
