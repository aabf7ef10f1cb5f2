"""PAGE's tables 2 and 4, figures 2 and 3 and appendix D on Synthetic with 50 clients."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Record, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.plots import drawing
from benchmarks.lab.tables import as_options, made_at, paired, spread, table
from equipoise.experiment.certificate import certify_run

SEEDS = (11, 12, 13)
ROUNDS, EVERY, SAMPLES = 150, 10, 16
SIDES = {"global": "global", "local": "trained"}
PAGE: dict[str, Any] = {"method": "page", "window": 0}
GAMES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "default": PAGE,
    "paper": PAGE | {"reading": "paper"},
    "authors-code": PAGE | {"reading": "authors-code"},
}
ABLATION: dict[str, dict[str, Any]] = {
    "only p": {"controls": "p"},
    "only eta": {"controls": "eta"},
    "only alpha": {"controls": "alpha"},
    "alpha and eta": {"controls": "alpha,eta"},
}
CONTROLS: dict[str, dict[str, Any]] = {
    "zero": {"control": "zero"},
    "random": {"control": "random"},
}
BIAS: dict[str, dict[str, Any]] = {"10:1": {"bias": "10:1"}, "1:10": {"bias": "1:10"}}
SIZES: dict[str, dict[str, Any]] = {
    "100 clients": {"clients": 100},
    "1000 clients": {"clients": 1000, "rounds": 100},
}
BUDGETS: dict[str, dict[str, Any]] = {
    # Prices that never rise: what the agents would spend if nobody asked.
    "unpriced budget": {"energy_budget": "default", "dual_lr": 1e-9},
    "priced budget": {"energy_budget": "default"},
}
# The paper's D_i: the rows that the client trains on.
ON_TRAIN: dict[str, dict[str, Any]] = {"measured on training rows": {"measured_on": "train"}}
SETTLED: dict[str, dict[str, Any]] = {"until settled": {"rounds": 1000, "window": 50}}
VARIANTS: dict[str, dict[str, Any]] = {
    "learned": {},
    **CONTROLS,
    **BIAS,
    **ABLATION,
    **SETTLED,
    **SIZES,
    **BUDGETS,
    **ON_TRAIN,
}
OF_GAME = {
    "fedavg": ("learned", *SIZES),
    "default": tuple(name for name in VARIANTS if name not in (*BUDGETS, *ON_TRAIN)),
    "paper": tuple(VARIANTS),
    "authors-code": ("learned", *CONTROLS),
}
"""Variants of each game; FedAvg's `learned` is FedAvg."""
PUBLISHED = {  # global %, local % and round of tables 1, 2 and 4
    "learned": (91.75, 96.62, 618),
    "until settled": (91.75, 96.62, 618),
    "100 clients": (92.67, 96.24, 891),
    "1000 clients": (92.39, 96.43, 928),
}


def own_options(game: str, variant: str) -> dict[str, Any]:
    """Return what a row adds to the common options."""
    return {**GAMES[game], **VARIANTS[variant]}


def options(game: str, variant: str, seed: int) -> dict[str, Any] | None:
    """Return the options of a cell; None if the game has no such variant."""
    if variant not in OF_GAME[game]:
        return None
    common = {
        "task": "synthetic",
        "clients": 50,
        "rounds": ROUNDS,
        "executor": "stacked",
        "eval_every": EVERY,
        "checkpoint_every": 10**6,
        "save_personal": False,
    }
    return {**common, **own_options(game, variant), "seed": seed}


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell; return its curve, with the utilities of PAGE, and the certificate of the game."""
    done = run(cell.options, folder)
    curve = [
        [log["round"], *(percent(log[name], 3) for name in SIDES.values())]
        for log in done.evaluated
    ]
    logged = [log.get("logged", {}) for log in done.evaluated]
    utilities = [
        [round(math.exp(notes[f"log_utility_{side}"]), 4) for side in SIDES]
        for notes in logged
        if "log_utility_global" in notes
    ]
    stopped = done.summary["rounds"] if done.summary["stopped"] else None
    result = {**dict(zip(SIDES, curve[-1][1:], strict=True)), "stopped": stopped, "curve": curve}
    if utilities:
        result["utilities"] = utilities
    if cell.axes["variant"] in BUDGETS:
        notes = [log["logged"] for log in done.logs if "excess" in log.get("logged", {})]
        result["budget"] = [
            [
                round(fmean(excess > 0 for excess in note["excess"]), 5),
                round(fmean(note["multiplier"]), 5),
                round(fmean(note["joules"]), 5),
            ]
            for note in notes[::EVERY]
        ]
    if cell.axes["variant"] == "learned":
        certify_run(folder, SAMPLES)
        result["certificate"] = done.summary["certificate"]
    return result


def rows(*variants: str) -> Any:
    """Return a table of these variants in every game that has them."""

    def made(results: Results) -> list[str]:
        lines = []
        for game, own in OF_GAME.items():
            for variant in variants:
                found = results.where(game=game, variant=variant)
                if variant in own and found:
                    lines.append(_row(game, variant, found))
        head = ["game", "variant", "options", "rounds", "seeds", "global %", "local %"]
        head += ["paper (global / local, round)", "commit"]
        return table(head, lines) if lines else ["Not run yet."]

    return made


def _row(game: str, variant: str, found: list[Record]) -> list[Any]:
    """Return one row of accuracies."""
    published = PUBLISHED.get(variant) if game != "fedavg" else None
    paper = None
    if published:
        paper = f"{published[0]:.2f} / {published[1]:.2f}, {published[2]}"
    return [
        game,
        "-" if game == "fedavg" else variant,
        as_options(own_options(game, variant)),
        ", ".join(str(r["stopped"] or r["rounds"]) for r in found),
        ", ".join(str(r["seed"]) for r in found),
        *(spread([r[side] for r in found], 2) for side in SIDES),
        paper,
        made_at(found),
    ]


def pairs(results: Results) -> list[str]:
    """Return differences of each game to FedAvg and to its controls, over common seeds."""
    lines = []
    for game in ("default", "paper", "authors-code"):
        for other, variant in (("fedavg", "learned"), (game, "zero"), (game, "random")):
            ours = results.where(game=game, variant="learned")
            theirs = results.where(game=other, variant=variant)
            figures = [paired(ours, theirs, side, 2) for side in SIDES]
            if None not in figures:
                name = "FedAvg" if other == "fedavg" else variant
                count = len({r["seed"] for r in ours} & {r["seed"] for r in theirs})
                lines.append([f"{game} − {name}", count, *figures])
    return table(["difference", "seeds", *SIDES], lines) if lines else ["One seed: no intervals."]


def certificates(results: Results) -> list[str]:
    """Return the largest gains by deviating alone."""
    lines = []
    for game in GAMES:
        cells = results.where(game=game, variant="learned")
        found = [r["certificate"] for r in cells if "server" in r["certificate"]]
        if found:
            columns = [[c["clients"][key] for c in found] for key in ("largest", "mean")]
            columns.append([c["server"]["gain"] for c in found])
            lines.append(
                [game, len(found), *(f"{100 * fmean(values):.1f} %" for values in columns)]
            )
    head = ["game", "seeds", "largest client gain", "mean client gain", "server's gain"]
    return table(head, lines)


def budgets(results: Results) -> list[str]:
    """Return how many clients are above their energy budget, early and late, and the prices."""
    lines = []
    for variant in BUDGETS:
        if found := results.where(game="paper", variant=variant):
            fifth = max(1, len(found[0]["budget"]) // 5)
            shares = [
                spread([100 * fmean(row[0] for row in r["budget"][part]) for r in found])
                for part in (slice(fifth), slice(-fifth, None))
            ]
            prices = spread([r["budget"][-1][1] for r in found], 2)
            joules = spread([fmean(row[2] for row in r["budget"][-fifth:]) for r in found], 3)
            lines.append([variant, len(found), *(f"{share} %" for share in shares), prices, joules])
    head = ["variant", "seeds", "above budget, first fifth", "above budget, last fifth"]
    head += ["last multiplier", "joules per round"]
    return table(head, lines) if lines else ["Not run yet."]


def pendulum(results: Results) -> list[str]:
    """Return the return of each agent as it learns: our DDPG and a peer's."""
    path = results.folder.parent / "pendulum.json"
    curves: dict[str, Sequence[list[float]]] = json.loads(path.read_text())
    lines = [
        [
            f"{points[0][0]:.0f}",
            *(" / ".join(f"{value:.0f}" for value in point[1:]) for point in points),
        ]
        for points in zip(*curves.values(), strict=True)
    ]
    return table(["steps", *curves], lines)


def speed(results: Results) -> list[str]:
    """Return what a round costs, and the agents' share of it."""
    found = json.loads((results.folder.parent / "page_speed.json").read_text())
    return table(["", "value"], found.items())


def draw_rewards(results: Results, path: Path) -> None:
    """Figure 2: accuracies (solid, left) and utilities (dotted, right) over rounds, first seed."""
    cells = [results.where(game=game, variant="learned") for game in ("default", "paper")]
    shown = [found[0] for found in cells if found]
    if not shown:
        return
    with drawing(path, len(shown), (9.2, 3.2)) as axes:
        for axis, record in zip(axes, shown, strict=True):
            other = axis.twinx()
            at = [point[0] for point in record["curve"]]
            for place, (side, colour) in enumerate(
                zip(SIDES, ("#0072B2", "#D55E00"), strict=True), 1
            ):
                accuracies = [point[place] for point in record["curve"]]
                rewards = [values[place - 1] for values in record["utilities"]]
                axis.plot(at, accuracies, color=colour, label=f"{side} accuracy")
                other.plot(at, rewards, ":", color=colour, label=f"{side} utility 1 / f")
            axis.set(title=f"reading: {record['game']}", xlabel="round", ylabel="accuracy %")
            other.set(ylabel="utility (dotted)")
            handles = [*axis.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
            axis.legend(handles=handles, frameon=False, fontsize=7, loc="lower right")


def draw_ablation(results: Results, path: Path) -> None:
    """Figure 3: both accuracies by what the agents may decide, in both readings."""
    games = ("default", "paper")
    names = (*ABLATION, "learned")
    with drawing(path, 2, (9.2, 3.0)) as axes:
        for axis, side in zip(axes, SIDES, strict=True):
            for game, colour, shift in zip(games, ("#0072B2", "#D55E00"), (-0.1, 0.1), strict=True):
                found = [
                    (place + shift, r[side])
                    for place, name in enumerate(names)
                    for r in results.where(game=game, variant=name)
                ]
                if found:
                    places, values = zip(*found, strict=True)
                    axis.plot(values, places, "o", color=colour, markersize=4, label=game)
            for record in results.where(game="fedavg", variant="learned"):
                axis.axvline(record[side], color="#999999", linestyle="--", linewidth=0.8)
            labels = [name if name != "learned" else "all three" for name in names]
            axis.set_yticks(range(len(names)), labels)
            axis.set(xlabel=f"{side} accuracy % (dashed: FedAvg)", ylim=(len(names) - 0.5, -0.5))
        axes[0].legend(frameon=False, fontsize=7)


def cells(results: Results) -> list[Cell]:
    """Return the grid, the first seed of every row before the others."""
    return [
        cell for seed in SEEDS for cell in grid(options, variant=VARIANTS, game=GAMES, seed=(seed,))
    ]


STUDY = Study(
    name="table4",
    cells=cells,
    measure=measure,
    tables={
        "games": rows("learned", *ON_TRAIN, *CONTROLS),
        "bias": rows("10:1", "learned", "1:10"),
        "clients": rows("learned", *SIZES),
        "settled": rows("until settled"),
        "ablation": rows(*ABLATION, "learned"),
        "pairs": pairs,
        "certificates": certificates,
        "energy": rows("learned", *BUDGETS),
        "budgets": budgets,
        "pendulum": pendulum,
        "speed": speed,
    },
    figures={"rewards.svg": draw_rewards, "ablation.svg": draw_ablation},
)
