"""Tables and figures of the study q."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import Record, Results
from benchmarks.lab.plots import Series, drawing, lines
from benchmarks.lab.tables import table
from equipoise.environments.theory import fit_slope

RULES = ("equal", "importance", "targets")
AT, AGENTS, TAUS = (50, 300, 500, 1000, 2000), (20, 40, 60, 80, 100), (5, 10, 25, 50, 100, 200)
PAPER3 = {
    "equal": (0.205, 0.149, 0.116, 0.063, 0.036),
    "importance": (0.168, 0.083, 0.059, 0.040, 0.035),
}
PAPER4 = {"equal": (0.34, 0.50, 0.61, 0.68, 0.72), "importance": (1.45, 2.37, 2.80, 3.00, 3.20)}
REFINED = (1, 4, 16)
SYNQ_TAUS, FADING = (1, 2, 5, 10, 25, 50, 100, 250), (1, 4, 16, 64, 256)
PERIOD_RATES = (0.01, 0.05, 0.2, 0.5, 0.9)
EXPONENTS: dict[str, tuple[float, ...]] = {
    "gamma": (0.5, 0.7, 0.8, 0.9, 0.95),
    "size": (4, 8, 16, 32),
    "mixing": (0.0, 0.5, 0.75, 0.9),
    "copies": (0.5, 0.1, 0.02, 0.005),
}
SCALES = {  # states, actions, agents
    "small": (5, 3, 5),
    "medium": (10, 5, 20),
    "large": (20, 5, 50),
}
OVERHEAD_TAUS, OVERHEAD_STEPS = (10, 50, 200), 8000
COLOURS = {"equal": "#c33", "importance": "#26c", "targets": "#283"}
ERROR = "(1 - γ) max |Q - Q*|"


def by(results: Results, axis: str, **axes: Any) -> list[Record]:
    return sorted(results.where(**axes), key=lambda r: r[axis])


def shown(result: dict[str, Any]) -> str:
    return f"{result['error']:.4f} ± {result['standard_error']:.4f} (η {result['eta']:g})"


def three(r: Record) -> list[str]:
    """The three rules of a cell, the best one bold (ties within two
    standard errors count as ties).
    """
    best = min((r[rule] for rule in RULES), key=lambda found: found["error"])
    line = best["error"] + 2 * best["standard_error"]
    return [
        f"**{shown(r[rule])}**" if r[rule]["error"] <= line else shown(r[rule]) for rule in RULES
    ]


def reached(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [["not reached" if value is None else value for value in row] for row in rows]


def fig3(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for r in results.where(experiment="fig3"):
        points = dict(zip(r["steps"], r["points"], strict=True))
        rate = "tuned for T = 2000" if r["rate"] == "tuned" else "as published"
        label = f"{r['rule']}, η = {r['eta']:g} ({rate})"
        bands = [
            f"{points[t]['error']:.3f} [{points[t]['p10']:.3f}, {points[t]['p90']:.3f}]" for t in AT
        ]
        rows.append([label, *bands])
        if r["rate"] == "paper":
            rows.append([f"{r['rule']}, the paper's figure", *PAPER3[r["rule"]]])
    for r in results.where(experiment="draws"):
        label = (
            f"{r['rule']}, η = {r['eta']:g}: least ... largest mean over {r['mdp_seeds']} draws "
            "of the MDP"
        )
        rows.append(
            [
                label,
                *(
                    f"{min(column):.3f} ... {max(column):.3f}"
                    for column in zip(*r["errors"], strict=True)
                ),
            ]
        )
    for r in results.where(experiment="mean-table"):
        label = f"{r['rule']}, η = {r['eta']:g}: error of the mean table of all simulations"
        rows.append([label, *(f"{value:.3f}" for value in r["common"])])
        label = f"{r['rule']}, η = {r['eta']:g}: mean of (1 - γ) (Q - Q*), with its sign"
        rows.append([label, *(f"{value:+.3f}" for value in r["signed"])])
    return table(["rule", *(f"T = {t}" for t in AT)], rows)


def first_tables(results: Results) -> list[str]:
    """One first table for all simulations: what of figure 3's spread it leaves, and how near the
    paper one comes.
    """
    rows: list[list[Any]] = []
    for r in results.where(experiment="tables"):
        means, spreads, paper = (
            np.array(part) for part in (r["means"], r["spreads"], PAPER3[r["rule"]])
        )
        off = np.abs(means / paper - 1)
        near = int(off.max(axis=1).argmin())
        count = len(means)
        rows.append(
            [
                f"{r['rule']}: mean over {count} first tables",
                *(f"{value:.3f}" for value in means.mean(0)),
            ]
        )
        rows.append(
            [
                "standard deviation between tables",
                *(f"{value:.4f}" for value in means.std(0, ddof=1)),
            ]
        )
        rows.append(
            ["standard deviation within a table", *(f"{value:.4f}" for value in spreads.mean(0))]
        )
        rows.append(
            [
                "off the paper's point, the table that is nearest",
                *(f"{value:.0%}" for value in off[near]),
            ]
        )
    return table(["", *(f"T = {t}" for t in AT)], rows)


def synq(results: Results) -> list[str]:
    found = by(results, "tau", experiment="synq")
    rows = [["η = 0.05", *(f"{r['eta 0.05']['error']:.4f}" for r in found)]]
    rows.append(["tuned", *(f"{r['tuned']['error']:.4f} (η {r['tuned']['eta']:g})" for r in found)])
    return table(["", *(f"τ = {r['tau']}" for r in found)], rows)


def periods(results: Results) -> list[str]:
    """Errors against tau; in brackets where tau is beyond our rule."""
    rows: list[list[Any]] = []
    for eta in PERIOD_RATES:
        row: list[Any] = [f"η = {eta:g}"]
        for r in by(results, "tau", experiment="period", eta=eta):
            text = f"{r['error']:.4f}"
            row.append(text if r["tau"] <= r["longest"] else f"({text})")
        rows.append(row)
    return table(["", *(f"τ = {tau}" for tau in SYNQ_TAUS)], rows)


def exponents(results: Results) -> list[str]:
    """Slopes of log error^2 against each parameter of the theorems, beside the bound's exponent."""
    rows: list[list[Any]] = []
    parameters: tuple[tuple[str, str, str, Callable[[Record], float]], ...] = (
        ("gamma", "1/(1 - γ), FedSynQ", "5", lambda r: 1 / (1 - r["value"])),
        ("size", "S A, FedAsynQ-ImAvg", "1 (as 1/μ_avg)", lambda r: 2 * r["value"]),
        ("size", "1/μ_avg, FedAsynQ-ImAvg", "1", lambda r: 1 / r["mu_avg"]),
        ("mixing", "t_mix by a chance to stay", "0 in the leading term", lambda r: r["t_mix"]),
        ("copies", "t_mix by two copies", "0 in the leading term", lambda r: r["t_mix"]),
    )
    for along, name, bound, x_of in parameters:
        found = by(results, "value", experiment="exponent", along=along)
        if len(found) < 3:
            continue
        x = [x_of(r) for r in found]
        slope, error = fit_slope(x, [r["largest"] ** 2 for r in found])
        values = " ".join(f"{value:.3g}" for value in x)
        errors = " ".join(f"{r['largest']:.4f}" for r in found)
        rows.append([name, values, errors, f"{slope:.2f} ± {error:.2f}", bound])
    return table(["along", "values", "largest error", "exponent", "bound's exponent"], rows)


def fades(results: Results) -> list[str]:
    """Error times sqrt(K), over that of one agent: 1 everywhere is the full speed-up."""
    rows: list[list[Any]] = []
    for gamma in sorted({r["gamma"] for r in results.where(experiment="fades")}):
        found = by(results, "K", experiment="fades", gamma=gamma)
        alone = found[0]["error"]
        shares = [f"{r['error']:.4f} ({r['error'] * r['K'] ** 0.5 / alone:.2f})" for r in found]
        rows.append([f"γ = {gamma:g}, 1/(1 - γ) = {1 / (1 - gamma):.0f}", *shares])
    return table(["", *(f"K = {k}" for k in FADING)], rows)


def fig4(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for rule in RULES:
        for kind, words in (("eta 0.05", "η = 0.05"), ("tuned", "tuned")):
            found = by(results, "K", experiment="fig4", rule=rule)
            rows.append(
                [f"{rule}, {words}", *(round((0.1 / r[kind]["error"]) ** 2, 2) for r in found)]
            )
        rows += [[f"{rule}, the paper's figure", *PAPER4[rule]]] if rule in PAPER4 else []
    return table(["rule", *(f"K = {k}" for k in AGENTS)], rows)


def fig5(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for rule in RULES:
        found = by(results, "tau", experiment="fig5", rule=rule)
        rows.append([f"{rule}, η = 0.05", *(f"{r['eta 0.05']['error']:.3f}" for r in found)])
        rows.append(
            [
                f"{rule}, tuned",
                *(f"{r['tuned']['error']:.3f} (η {r['tuned']['eta']:g})" for r in found),
            ]
        )
    return table(["rule", *(f"τ = {t}" for t in (1, 10, 25, 50, 75, 100))], rows)


def usual_T(method: str) -> int:
    return 4000 if method == "fedsynq" else 100_000


def slopes(results: Results) -> list[str]:
    rows = []
    for method in ("fedsynq", "fedasynq-eq", "fedasynq-im"):
        for axis, fixed in (("K", {"T": usual_T(method)}), ("T", {"K": 4})):
            mine = by(results, axis, experiment="slope", method=method, **fixed)
            slope, error = fit_slope([r[axis] for r in mine], [r["error"] for r in mine])
            [(other, at)] = fixed.items()
            span = f"{axis} = {mine[0][axis]} ... {mine[-1][axis]}, {other} = {at}"
            rows.append(
                [
                    method,
                    span,
                    f"{slope:.3f} ± {error:.3f}",
                    " ".join(f"{r['error']:.4f}" for r in mine),
                ]
            )
    return table(["method", "along", "slope", "errors"], rows)


def refined(results: Results) -> list[str]:
    """Fed-DVR-Q beside FedSynQ from as many samples, with the slopes in K and in samples."""
    rows: list[list[Any]] = []
    by_K, by_samples = (
        by(results, "K", experiment="refined", samples=32),
        by(results, "seen", experiment="refined", K=4),
    )
    for r in sorted(results.where(experiment="refined"), key=lambda r: (r["K"], r["seen"])):
        errors = [f"{r['error']:.5f} ± {r['standard_error']:.5f}", shown(r["fedsynq"])]
        rows.append([r["K"], r["seen"], *errors, r["rounds"], r["fedsynq"]["rounds"]])
    for words, found, axis in (("slope in K", by_K, "K"), ("slope in samples", by_samples, "seen")):
        if len(found) > 2:
            kinds = ([r["error"] for r in found], [r["fedsynq"]["error"] for r in found])
            slopes = [fit_slope([r[axis] for r in found], errors) for errors in kinds]
            rows.append(
                [words, "", *(f"{slope:.2f} ± {error:.2f}" for slope, error in slopes), "", ""]
            )
    return table(
        ["K", "samples of a pair", "feddvrq", "fedsynq, τ = 8, tuned", "rounds", "fedsynq: rounds"],
        rows,
    )


def communication(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for rule in RULES:
        found = by(results, "tau", experiment="bytes", rule=rule)
        rows.append([f"{rule}: kB", *(r["bytes"] and round(r["bytes"] / 1000) for r in found)])
        rows.append([f"{rule}: local steps", *(r["steps"] for r in found)])
    return table(["rule", *(f"τ = {t}" for t in TAUS)], reached(rows))


def overheads(results: Results) -> list[str]:
    """Bytes to the target by rule, over scales and degrees of heterogeneity."""
    rows: list[list[Any]] = []
    found = results.where(experiment="overhead")
    order = list(SCALES)
    for r in sorted(found, key=lambda r: (order.index(r["scale"]), -r["epsilon"])):
        states, actions, agents = SCALES[r["scale"]]
        spent = [r[rule] for rule in ("equal", "importance")]
        figures = [one and f"{one['bytes'] / 1e3:.0f} (τ {one['tau']})" for one in spent]
        ratio = None
        if all(spent):
            ratio = round(spent[1]["bytes"] / spent[0]["bytes"], 2)
        size = f"{states} x {actions}, K = {agents}"
        rows.append([size, r["epsilon"], f"{r['c_het']:.2g}", *figures, ratio])
    head = ["states x actions", "ε", "C_het", "equal: kB", "importance: kB", "ratio"]
    return table(head, reached(rows)) if rows else ["Not computed."]


def heterogeneity(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for r in sorted(results.where(experiment="het"), key=lambda r: (r["mdp"], -r["epsilon"])):
        steps = [r[rule]["steps"] for rule in RULES]
        ratio = round(steps[0] / steps[1], 2) if steps[0] and steps[1] else None
        cover = [f"{r[x]:.2g}" for x in ("mu_min", "mu_avg", "c_het", "t_mix")]
        predicted = round(r["equal"]["predicted"] / r["importance"]["predicted"], 1)
        rows.append([r["mdp"], r["epsilon"], *cover, *three(r), *steps, ratio, predicted])
    head = [
        "MDP",
        "ε",
        "μ_min",
        "μ_avg",
        "C_het",
        "t_mix",
        *RULES,
        *(f"{rule}: steps" for rule in RULES),
    ]
    return table([*head, "Eq/Im steps", "predicted (bound)"], reached(rows))


def coverage(results: Results) -> list[str]:
    rows = [
        [
            r["mdp"],
            r["T"],
            f"{r['mu_min']:.2g}",
            f"{r['mu_avg']:.2g}",
            *three(r),
            shown(r["one agent alone"]),
        ]
        for r in sorted(results.where(experiment="coverage"), key=lambda r: (r["mdp"], r["T"]))
    ]
    return table(["MDP", "T", "μ_min", "μ_avg", *RULES, "one agent alone"], rows)


def stragglers(results: Results) -> list[str]:
    rows = [
        [setting, r["pattern"], *three(r)]
        for setting in dict.fromkeys(r["setting"] for r in results.where(experiment="straggler"))
        for r in sorted(results.where(setting=setting), key=lambda r: r["pattern"] != "nobody late")
    ]
    return table(["setting", "pattern", *RULES], rows)


def environments(results: Results) -> list[str]:
    rows = [
        [r["strength"], r["epsilon"], r["pattern"], *three(r)]
        for r in results.where(experiment="env")
    ]
    return table(["strength", "ε", "pattern", *RULES], rows)


def band(
    points: Sequence[Any], x: Sequence[float], label: str, colour: str, dashed: bool = False
) -> Series:
    mean, low, high = ([point[name] for point in points] for name in ("error", "p10", "p90"))
    return Series(label, x, mean, colour, low, high, dashed)


def draw3(results: Results, path: Path) -> None:
    found = [
        r
        for r in results.where(experiment="fig3")
        if r["rate"] == "paper" or r["rule"] == "targets"
    ]
    series = [
        band(r["points"], r["steps"], f"{r['rule']}, η = {r['eta']:g}", COLOURS[r["rule"]])
        for r in found
    ]
    series += [
        Series(f"{rule}, paper", AT, values, COLOURS[rule], dashed=True)
        for rule, values in PAPER3.items()
    ]
    with drawing(path) as (axis,):
        lines(axis, series, "Figure 3: error, K = 20, τ = 50, band 10-90 %", "T", ERROR)


def draw4(results: Results, path: Path) -> None:
    series = []
    for rule in RULES:
        kind, words = ("tuned", "tuned η") if rule == "targets" else ("eta 0.05", "η = 0.05")
        found = by(results, "K", experiment="fig4", rule=rule)
        heights = [(0.1 / r[kind]["error"]) ** 2 for r in found]
        series.append(Series(f"{rule}, {words}", AGENTS, heights, COLOURS[rule]))
    series += [
        Series(f"{rule}, paper", AGENTS, values, COLOURS[rule], dashed=True)
        for rule, values in PAPER4.items()
    ]
    with drawing(path) as (axis,):
        lines(axis, series, "Figure 4: speed-up in K, T = 300, τ = 50", "K", "1 / max |Q - Q*|²")


def draw5(results: Results, path: Path) -> None:
    series = []
    for rule in RULES:
        found = by(results, "tau", experiment="fig5", rule=rule)
        for kind, words in (("eta 0.05", "η = 0.05"), ("tuned", "tuned η")):
            points, taus = [r[kind] for r in found], [r["tau"] for r in found]
            series.append(band(points, taus, f"{rule}, {words}", COLOURS[rule], kind == "tuned"))
    with drawing(path) as (axis,):
        lines(axis, series, "Figure 5: error, K = 20, T = 300, band 10-90 %", "τ", ERROR)


def draw_slopes(results: Results, path: Path) -> None:
    series = []
    for method, colour in (("fedsynq", "#733"), ("fedasynq-eq", "#c33"), ("fedasynq-im", "#26c")):
        T = usual_T(method)
        found = by(results, "K", experiment="slope", method=method, T=T)
        series.append(
            band([r.result for r in found], [r["K"] for r in found], f"{method}, T = {T}", colour)
        )
    first = series[0]
    guide = [first.y[0] * k**-0.5 for k in first.x]
    with drawing(path) as (axis,):
        series.append(Series("slope -1/2", first.x, guide, "#888", dashed=True))
        lines(axis, series, "Error against the number of agents", "K", ERROR, log=True)


TABLES = {
    "first_tables": first_tables, "synq": synq, "periods": periods, "exponents": exponents,
    "fades": fades, "refined": refined, "fig3": fig3, "fig4": fig4,
    "fig5": fig5, "slopes": slopes, "communication": communication, "overheads": overheads,
    "heterogeneity": heterogeneity, "coverage": coverage, "stragglers": stragglers,
    "environments": environments,
}  # fmt: skip
FIGURES = {"fig3.svg": draw3, "fig4.svg": draw4, "fig5.svg": draw5, "slopes.svg": draw_slopes}
