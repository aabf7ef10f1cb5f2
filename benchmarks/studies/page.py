"""PAGE and its ablations on Logistic on Synthetic, beside the paper's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Record, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.plots import drawing
from benchmarks.lab.tables import as_options, made_at, paired, spread, table
from equipoise.experiment.certificate import certify_run

EVERY, SAMPLES = 10, 16
FRESH = (11, 12, 13, 14, 15)  # never looked at before the settings were fixed
THREE = FRESH[:3]
SIDES = {"global": "global", "local": "trained", "received": "received", "personal": "personal"}
# The paper's own game; its other readings, and their controls, are the study readings.
PAGE: dict[str, Any] = {"method": "page", "reading": "paper", "window": 0}
VARIANTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "fedavg": ({"method": "fedavg"}, THREE),
    "page-default": ({"method": "page", "window": 0}, THREE),
    "page": (PAGE, FRESH),
    "page-bias-10-1": (PAGE | {"bias": "10:1"}, FRESH),
    "page-bias-1-10": (PAGE | {"bias": "1:10"}, THREE),
    "page-authors-code": (PAGE | {"reading": "authors-code"}, THREE),
    "dapfl": ({"method": "dapfl"}, THREE),
    "page-resources": (PAGE | {"energy_budget": "default"}, THREE),
    # Prices that never rise: what the agents would spend if nobody asked.
    "page-resources-unpriced": (PAGE | {"energy_budget": "default", "dual_lr": 1e-9}, THREE),
    "page-only-p": (PAGE | {"controls": "p"}, THREE),
    "page-only-eta": (PAGE | {"controls": "eta"}, THREE),
    "page-only-alpha": (PAGE | {"controls": "alpha"}, THREE),
    "page-alpha-eta": (PAGE | {"controls": "alpha,eta"}, THREE),
    "page-until-settled": (PAGE | {"rounds": 1000, "window": 50}, THREE),
    "page-1000-rounds": (PAGE | {"rounds": 1000}, THREE),
    "fedavg-1000-rounds": ({"method": "fedavg", "rounds": 1000}, THREE),
    "page-50-clients": (PAGE | {"clients": 50}, THREE),
    # Its server scores every upload: 4 s per round.
    "page-1000-clients": (PAGE | {"clients": 1000, "rounds": 100}, FRESH[:1]),
}
GAME: tuple[str, ...] = (
    "fedavg",
    "page-default",
    "page",
    "page-authors-code",
    "dapfl",
    "page-only-alpha",
    "page-only-eta",
    "page-alpha-eta",
)
GAME += ("page-only-p", "fedavg-1000-rounds", "page-1000-rounds", "page-until-settled")
ABLATION = ("page-only-p", "page-only-eta", "page-only-alpha", "page-alpha-eta")
BIAS = ("page-bias-10-1", "page", "page-bias-1-10")
CLIENTS = ("page-50-clients", "page", "page-1000-clients")
BUDGETS = ("page", "page-resources-unpriced", "page-resources")
PAIRS = (
    ("page-bias-10-1", "page"),
    ("page-bias-1-10", "page"),
    ("page-resources", "page"),
)
PAPER = {  # global and local accuracy of tables 1 and 4, at 600 to 930 rounds
    "fedavg": (91.46, 95.26),
    "page": (92.67, 96.24),
    "dapfl": (92.19, 94.14),
    "page-50-clients": (91.75, 96.62),
    "page-1000-clients": (92.39, 96.43),
}


def options(variant: str, seed: int) -> dict[str, Any] | None:
    own, seeds = VARIANTS[variant]
    common = {
        "task": "synthetic",
        "rounds": 300,
        "executor": "stacked",
        "eval_every": EVERY,
        "checkpoint_every": 10**6,
    }
    return {**common, "save_personal": False, **own, "seed": seed} if seed in seeds else None


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    curve = [
        [log["round"], *(percent(log[name], 3) for name in SIDES.values())]
        for log in done.evaluated
    ]
    certify_run(folder, SAMPLES)
    summary, notes = done.summary, [log.get("logged", {}) for log in done.logs]
    result = {
        **dict(zip(SIDES, curve[-1][1:], strict=True)),
        "stopped": summary["rounds"] if summary["stopped"] else None,
        "certificate": summary["certificate"],
        "curve": curve,
    }
    if (
        "excess" in notes[-1]
    ):  # share of clients above their budget, mean multiplier and energy, every tenth round
        rows = [
            [[e > 0 for e in n["excess"]], n["multiplier"], n["joules"]]
            for n in notes
            if "excess" in n
        ]
        result["budget"] = [[round(fmean(values), 5) for values in row] for row in rows[::EVERY]]
    return result


def accuracies(*variants: str) -> Any:
    """Rows of today's cells, and of earlier ones where they have more seeds."""

    def made(results: Results) -> list[str]:
        rows = []
        for name in variants:
            both = (results.where(variant=name), results.earlier.where(variant=name))
            rows += [_row(name, found) for found in both if found]
        head = [
            "variant",
            "options",
            "rounds",
            "seeds",
            "global %",
            "local %",
            "personal %",
            "paper (global / local)",
            "commit",
        ]
        return table(head, rows)

    return made


def _row(name: str, found: Sequence[Record]) -> list[Any]:
    """One row of accuracies."""
    figures = [spread([r[side] for r in found], 2) for side in ("global", "local", "personal")]
    rounds = ", ".join(sorted({str(r["stopped"] or r["rounds"]) for r in found}))
    paper = " / ".join(f"{value:.2f}" for value in PAPER.get(name, ())) or None
    seeds = ", ".join(str(r["seed"]) for r in found)
    own = as_options(VARIANTS[name][0])
    return [name, own, rounds, seeds, *figures, paper, made_at(found)]


def pairs(results: Results) -> list[str]:
    rows = []
    for one, other in PAIRS:
        ours, theirs = (results.earlier.where(variant=name) for name in (one, other))
        seeds = {r["seed"] for r in ours} & {r["seed"] for r in theirs}
        figures = [paired(ours, theirs, side, 2) for side in ("global", "local", "personal")]
        rows.append([f"{one} − {other}", len(seeds), *figures])
    return table(["difference", "seeds", "global", "local", "personal"], rows)


def budgets(results: Results) -> list[str]:
    rows = []
    for name in BUDGETS:
        cells = results.newest(variant=name)
        if found := [r["budget"] for r in cells if "budget" in r.result]:
            fifth = len(found[0]) // 5
            early, late = (
                [100 * fmean(row[0] for row in budget[part]) for budget in found]
                for part in (slice(fifth), slice(-fifth, None))
            )
            joules = [fmean(row[2] for row in budget[-fifth:]) for budget in found]
            prices = spread([budget[-1][1] for budget in found], 2)
            rows.append(
                [
                    name,
                    len(found),
                    f"{spread(early)} %",
                    f"{spread(late)} %",
                    prices,
                    spread(joules, 3),
                ]
            )
    head = [
        "variant",
        "seeds",
        "above budget, first fifth",
        "above budget, last fifth",
        "last multiplier",
    ]
    return table([*head, "joules per round"], rows)


def certificates(results: Results) -> list[str]:
    rows = []
    for name in dict.fromkeys((*GAME, *BIAS, *CLIENTS, *BUDGETS)):
        cells = results.newest(variant=name)
        certified = [r["certificate"] for r in cells if "certificate" in r.result]
        if found := [certificate for certificate in certified if "server" in certificate]:
            columns = [[c["clients"][key] for c in found] for key in ("largest", "mean")]
            columns += [
                [c["server"][key] for c in found] for key in ("gain", "gain_of_the_aggregate")
            ]
            rows.append([name, len(found), *(f"{100 * fmean(values):.1f} %" for values in columns)])
    head = [
        "variant",
        "seeds",
        "largest client gain",
        "mean client gain",
        "server's gain, its utility",
    ]
    return table([*head, "the aggregate's"], rows)


def draw_ablation(results: Results, path: Path) -> None:
    """Figure 3: what each control does to both accuracies, in the paper's reading.

    Earlier cells: there each variant has three seeds.
    """
    names = ("fedavg", *ABLATION, "page")
    cells = {name: results.earlier.where(variant=name) for name in names}
    shown = [name for name, found in cells.items() if found]
    with drawing(path, 2, (9.2, 3.0)) as axes:
        for axis, side in zip(axes, ("global", "local"), strict=True):
            for place, name in enumerate(shown):
                values = [r[side] for r in cells[name]]
                axis.plot(values, [place] * len(values), "o", color="#0072B2", markersize=4)
                axis.plot(fmean(values), place, "|", color="#D55E00", markersize=14)
            labels = [f"{name} ({len(cells[name])})" for name in shown]
            axis.set_yticks(range(len(shown)), labels)
            axis.set(xlabel=f"{side} accuracy %, one point per seed", ylim=(len(shown) - 0.5, -0.5))


def pendulum(results: Results) -> list[str]:
    """Our DDPG beside a peer's (tests/learners/test_pendulum.py): return of each agent as it
    learns.
    """
    curves: dict[str, Sequence[list[float]]] = json.loads(
        (results.folder / "pendulum.json").read_text()
    )
    rows = [
        [
            f"{points[0][0]:.0f}",
            *(" / ".join(f"{value:.0f}" for value in point[1:]) for point in points),
        ]
        for points in zip(*curves.values(), strict=True)
    ]
    return table(["steps", *curves], rows)


def speed(results: Results) -> list[str]:
    return table(
        ["", "value"], json.loads((results.folder.parent / "page_speed.json").read_text()).items()
    )


STUDY = Study(
    name="page",
    cells=lambda results: grid(options, variant=VARIANTS, seed=FRESH),
    measure=measure,
    tables={
        "game": accuracies(*GAME),
        "bias": accuracies(*BIAS),
        "clients": accuracies(*CLIENTS),
        "energy": accuracies(*BUDGETS),
        **{
            "budgets": budgets,
            "pairs": pairs,
            "certificates": certificates,
            "pendulum": pendulum,
            "speed": speed,
        },
    },
    figures={"ablation.svg": draw_ablation},
)
