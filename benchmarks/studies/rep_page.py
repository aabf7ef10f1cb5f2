"""Tables and figures of the study rep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import Record, Results
from benchmarks.lab.plots import Series, drawing, lines
from benchmarks.lab.tables import table
from equipoise.environments.theory import fit_slope

COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d5a97", "#c17c00", "#444444")
METHODS = {
    "v": {"nothing": "linear-td", "everything": "fedtd", "representation": "pfedtd-rep"},
    "q": {"nothing": "linear-q", "everything": "fedq", "representation": "pfedq-rep"},
}
DRAWS, T0, EARLY = 2000, 3000.0, 5000
TIMESCALES = {  # alpha0, beta0, t0, exponent of the decay of beta; alpha decays as t^(-2/3)
    "two timescales (the schedule of this page)": (0.05, 0.3, T0, 1.0),
    "one timescale: beta decays as alpha": (0.05, 0.3, T0, 2 / 3),
    "one timescale: beta equals alpha": (0.05, 0.05, T0, 2 / 3),
    "constant rates": (0.05, 0.3, np.inf, 1.0),
    "beta ten times larger": (0.05, 3.0, T0, 1.0),
    "beta ten times smaller": (0.05, 0.03, T0, 1.0),
}
FREQUENCIES = (1, 2, 5, 10, 20, 50)
ABSENT, DELAYS = (0.0, 0.1, 0.3, 0.5), (1, 5, 20)


def sizes(results: Results, experiment: str, **axes: Any) -> list[Record]:
    return sorted(results.where(experiment=experiment, **axes), key=lambda r: r["agents"])


def interval(values: Sequence[float | None]) -> str:
    """Mean over seeds and the half-width of its 95 % interval (normal); how
    many diverged, if any.
    """
    v = np.array([value for value in values if value is not None])
    if len(v) < len(values):
        return f"{len(values) - len(v)} of {len(values)} seeds diverged"
    return f"{v.mean():.3f} ± {1.96 * v.std(ddof=1) / np.sqrt(len(v)):.3f}"


def slope(x: Sequence[float], by_size: np.ndarray) -> str:
    """Slope of the geometric mean over seeds, and its 95 % interval when seeds are drawn anew;
    by_size [x, seeds].
    """
    logs, rng = np.log(by_size), np.random.default_rng(0)
    value, _ = fit_slope(x, np.exp(logs.mean(1)))
    picks = rng.integers(logs.shape[1], size=(DRAWS, *logs.shape))
    again = np.take_along_axis(logs[None], picks, axis=2).mean(2)
    drawn = np.polyfit(np.log(x), again.T, 1)[0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def geometric(values: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval."""
    logs = np.log(np.asarray(values, float))
    half = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs))
    return (
        float(np.exp(logs.mean())),
        float(np.exp(logs.mean() - half)),
        float(np.exp(logs.mean() + half)),
    )


def hits_slope(found: list[Record], target: str, before: float = 0.0) -> str:
    """Of rounds plus `before` against N."""
    if any(hit is None for r in found for hit in r["hits"][target]):
        return "not reached"
    return slope(
        [r["agents"] for r in found], before + np.array([r["hits"][target] for r in found], float)
    )


def rounds(experiment: str) -> Any:
    def made(results: Results) -> list[str]:
        found, rows = sizes(results, experiment), []
        for target in found[0]["hits"]:
            row = [target]
            for r in found:
                got = r["hits"][target]
                row.append(
                    "not reached"
                    if None in got
                    else "{:.0f} [{:.0f}, {:.0f}]".format(*geometric(got))
                )
            rows.append([*row, hits_slope(found, target), hits_slope(found, target, T0)])
        return table(
            ["ε", *(f"N = {r['agents']}" for r in found), "slope of T", "slope of T + t0"], rows
        )

    return made


def constant(results: Results) -> list[str]:
    """What the prediction wants level: N (1 + T/t0) at the smallest distance."""
    found = sizes(results, "speedup")
    finest = list(found[0]["hits"])[-1]
    values = ", ".join(
        f"{r['agents'] * (1 + geometric(r['hits'][finest])[0] / T0):.0f}" for r in found
    )
    return [f"{values} for N = {', '.join(str(r['agents']) for r in found)}"]


def slopes(results: Results) -> list[str]:
    """Squares against N at one T, and against T at one N."""

    def squares(r: Record, name: str, at: list[int]) -> np.ndarray:
        """[marks, seeds]."""
        values: np.ndarray = np.array(r[name], float).T[at] ** 2
        return values

    found, rows, names = sizes(results, "speedup"), [], ("distance", "error")
    agents = [r["agents"] for r in found]
    for place, at in enumerate(found[-1]["at"]):
        if at >= EARLY:
            stacks = [np.stack([squares(r, name, [place])[0] for r in found]) for name in names]
            rows.append(
                [
                    f"T = {at}, N = {agents[0]} ... {agents[-1]}",
                    *(slope(agents, stack) for stack in stacks),
                ]
            )
    for r in found:
        late = [i for i, t in enumerate(r["at"]) if t >= EARLY]
        along = f"N = {r['agents']}, T = {r['at'][late[0]]} ... {r['at'][late[-1]]}"
        rows.append(
            [along, *(slope([r["at"][i] for i in late], squares(r, name, late)) for name in names)]
        )
    return table(["along", "squared subspace distance", "squared value error"], rows)


def regimes(results: Results) -> list[str]:
    rows = []
    for name, values in (("t0", (1000.0, 10_000.0)), ("alpha0", (0.2,))):
        for value in values:
            found = sizes(results, "regime", **{name: value})
            arrived = [[hit for hit in r["hits"]["0.06"] if hit] for r in found]
            whole = [len(hits) == len(r["seeds"]) for hits, r in zip(arrived, found, strict=True)]
            means = [
                f"{geometric(hits)[0]:.0f}" if all_ else "–"
                for hits, all_ in zip(arrived, whole, strict=True)
            ]
            targets = [hits_slope(found, target) for target in ("0.1", "0.06", "0.04")]
            rows.append([f"{name} = {value:g}", " ".join(means), *targets])
    return table(
        [
            "changed",
            "rounds to 0.06, N = 2 ... 64",
            "slope at 0.1",
            "slope at 0.06",
            "slope at 0.04",
        ],
        rows,
    )


def first(results: Results) -> list[str]:
    rows = []
    found = sizes(results, "first")
    for r in found:
        errors = [interval(column) for column in zip(*r["error"], strict=True)]
        angle = "–" if r["sharing"] == "nothing" else interval([row[-1] for row in r["distance"]])
        rows.append([r["agents"], METHODS["v"][r["sharing"]], *errors, angle])
    at = found[0]["at"]
    return table(["N", "method", *(f"T = {t}" for t in at), f"distance at T = {at[-1]}"], rows)


def control(results: Results) -> list[str]:
    rows = []
    found = results.where(experiment="control")
    for r in found:
        columns = [interval(column) for column in zip(*r["error"], strict=True)]
        names = ("visited", "regret", "distance")
        last = [
            interval([row[-1] for row in r[name]]) if name in r.result else "" for name in names
        ]
        last[2] = "–" if r["sharing"] == "nothing" else last[2]
        words = "" if r["step"] == "relative" else ", steps as published"
        rows.append([r["kind"], METHODS[r["kind"][-1]][r["sharing"]] + words, *columns, *last])
    head = [f"error, T = {t}" for t in found[0]["at"]]
    return table(["task", "method", *head, "error by visits", "regret", "distance"], rows)


def units(results: Results) -> list[str]:
    rows = []
    for r in sorted(results.where(experiment="unit"), key=lambda r: (r["step"], r["unit"])):
        figures = [interval([row[-1] for row in r[name]]) for name in ("error", "distance")]
        rows.append([r["step"], f"times {r['unit']:g}", *figures])
    return table(["step on Phi", "rewards", "error, T = 10000", "distance"], rows)


def grid_world(results: Results) -> list[str]:
    """PFedTD-Rep on the windy cliff by rates; what the best subspaces leave."""
    found = results.where(experiment="grid")
    rows = []
    for r in found:
        errors = [interval(column) for column in zip(*r["error"], strict=True)]
        distance = interval([row[-1] for row in r["distance"]])
        rows.append([f"{r['beta0']:g}", f"{r['t0']:g}", *errors, distance, len(r["error"])])
    marks = [f"error, T = {t}" for t in found[0]["at"]] if found else []
    return table(["beta0", "t0", *marks, "distance at the end", "seeds"], rows)


def floors(results: Results) -> list[str]:
    """The singular values of the windy cliff's values, and the floors of rank 1 and 2."""
    found = results.where(experiment="grid")
    if not found:
        return ["Not computed."]
    values = ", ".join(f"{value:g}" for value in found[0]["singular"])
    return [
        f"The sixteen agents' values have the singular values {values}: rank 1 leaves an error of "
        f"{found[0]['floor_rank1']:.3f}, rank {found[0]['rank']} one of {found[0]['floor']:.3f}."
    ]


def timescales(results: Results) -> list[str]:
    """The ablation of the two timescales."""
    found = {r["variant"]: r for r in results.where(experiment="timescale")}
    rows = []
    for name in TIMESCALES:
        if name in found:
            errors = [interval(column) for column in zip(*found[name]["error"], strict=True)]
            rows.append([name, *errors, interval([row[-1] for row in found[name]["distance"]])])
    marks = next(iter(found.values()))["at"] if found else ()
    head = ["rates", *(f"error, T = {t}" for t in marks), "distance at the end"]
    return table(head, rows) if rows else ["Not computed."]


def frequencies(results: Results) -> list[str]:
    """The steps between two averages, at equal rounds and at equal samples."""
    found = sorted(results.where(experiment="frequency"), key=lambda r: r["local_steps"])
    rows = []
    for r in found:
        figures = [
            interval([row[place] for row in r[name]])
            for place in (0, 1)
            for name in ("error", "distance")
        ]
        rows.append([r["local_steps"], *figures, r["at"][1]])
    head = ["K", "error, 4,000 rounds", "distance, 4,000 rounds", "error, equal samples"]
    head += ["distance, equal samples", "rounds then"]
    return table(head, rows) if rows else ["Not computed."]


def troubles(results: Results) -> list[str]:
    """Agents that miss rounds, or whose changes arrive late."""
    found = sorted(results.where(experiment="troubled"), key=lambda r: (r["delay"], r["absent"]))
    rows = []
    for r in found:
        figures = [interval(r[name]) for name in ("error", "distance")]
        rows.append([f"{100 * r['absent']:.0f} %", r["delay"], *figures])
    head = ["absent in a round", "rounds late", "error, T = 8000", "distance"]
    return table(head, rows) if rows else ["Not computed."]


def draw_lyapunov(results: Results, path: Path) -> None:
    series = [
        banded(list(zip(*r["lyapunov"], strict=True)), r["at"], f"N = {r['agents']}", colour)
        for colour, r in zip(COLOURS, sizes(results, "lyapunov"), strict=False)
    ]
    with drawing(path) as (axis,):
        lines(axis, series, "Lyapunov function over rounds", "rounds T", "M", log=True)


def minutes(results: Results) -> list[str]:
    return [f"{sum(r.seconds or 0.0 for r in results) / 60:.0f}"]


def banded(
    groups: Sequence[Sequence[float]], x: Sequence[float], label: str, colour: str
) -> Series:
    middle, low, high = (list(part) for part in zip(*map(geometric, groups), strict=True))
    return Series(label, x, middle, colour, low, high)


def draw_speedup(results: Results, path: Path) -> None:
    found = sizes(results, "speedup")
    agents, series = [r["agents"] for r in found], []
    for colour, target in zip(COLOURS, found[0]["hits"], strict=False):
        if not any(None in r["hits"][target] for r in found):
            series.append(
                banded([r["hits"][target] for r in found], agents, f"distance {target}", colour)
            )
    guide = [series[-1].y[0] * agents[0] / n for n in agents]
    with drawing(path) as (axis,):
        series.append(Series("slope -1", agents, guide, "#999999", dashed=True))
        lines(axis, series, "Rounds to a fixed subspace distance", "agents N", "rounds", log=True)


def draw_distance(results: Results, path: Path) -> None:
    series = [
        banded(list(zip(*r["curve"], strict=True)), r["curve_at"], f"N = {r['agents']}", colour)
        for colour, r in zip(COLOURS, sizes(results, "speedup"), strict=True)
    ]
    with drawing(path) as (axis,):
        lines(
            axis,
            series,
            "Subspace distance over rounds",
            "rounds T",
            "sine of largest angle",
            log=True,
        )


TABLES = {
    "speedup": rounds("speedup"), "confirm": rounds("confirm"), "constant": constant,
    "slopes": slopes, "regimes": regimes, "first": first, "control": control, "units": units,
    "minutes": minutes, "grid": grid_world, "floors": floors,
    "timescales": timescales, "frequencies": frequencies, "troubles": troubles,
}  # fmt: skip
FIGURES = {
    "speedup.svg": draw_speedup,
    "distance.svg": draw_distance,
    "lyapunov.svg": draw_lyapunov,
}
