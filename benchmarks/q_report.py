"""Tables of the stored cells of q_figures.py: benchmarks/results/q/README.md."""

from __future__ import annotations

import json
from typing import Any

from equipoise.frl.theory import fit_slope
from q_plot import Series, chart
from q_runs import FOLDER

RULES = ("equal", "importance", "targets")
PAPER3 = {"equal": (0.205, 0.149, 0.116, 0.063, 0.036), "importance": (0.168, 0.083, 0.059, 0.040, 0.035)}
PAPER4 = {"equal": (0.34, 0.50, 0.61, 0.68, 0.72), "importance": (1.45, 2.37, 2.80, 3.00, 3.20)}
Cell = dict[str, Any]


def load(prefix: str) -> list[Cell]:
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{prefix}-*.json"))]


def table(head: list[str], rows: list[list[Any]]) -> list[str]:
    def line(cells: list[Any]) -> str:
        return "| " + " | ".join("not reached" if c is None else str(c) for c in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows), ""]


def shown(result: Cell) -> str:
    return f"{result['error']:.4f} ± {result['standard_error']:.4f} (η {result['eta']:g})"


def three(c: Cell) -> list[str]:
    """The three rules of a cell, the best one bold (ties within two standard errors count as ties)."""
    best = min((c[r] for r in RULES), key=lambda r: r["error"])
    line = best["error"] + 2 * best["standard_error"]
    return [f"**{shown(c[r])}**" if c[r]["error"] <= line else shown(c[r]) for r in RULES]


def figures() -> list[str]:
    out = ["## Figure 3: error against T (K = 20, τ = 50, 100 simulations; 10-90 % band in brackets)", ""]
    steps = (50, 300, 500, 1000, 2000)
    rows: list[list[Any]] = []
    for c in load("fig3"):
        points = dict(zip(c["steps"], c["points"], strict=True))
        label = f"{c['rule']}, η = {c['eta']:g}{' (tuned for T = 2000)' if c['tuned'] else ' (as published)'}"
        rows.append(
            [label, *(f"{points[t]['error']:.3f} [{points[t]['p10']:.3f}, {points[t]['p90']:.3f}]" for t in steps)]
        )
        if not c["tuned"]:
            rows.append([f"{c['rule']}, the paper's figure", *PAPER3[c["rule"]]])
    for c in load("draws"):
        label = f"{c['rule']}, η = {c['eta']:g}: least ... largest mean over {c['mdp_seeds']} draws of the MDP"
        rows.append([label, *(f"{min(column):.3f} ... {max(column):.3f}" for column in zip(*c["errors"], strict=True))])
    out += table(["rule", *(f"T = {t}" for t in steps)], rows)
    out += ["## Figure 4: 1 / max|Q - Q*|² against K (T = 300, τ = 50)", ""]
    rows = []
    for rule in RULES:
        cells = sorted((c for c in load("fig4") if c["rule"] == rule), key=lambda c: c["K"])
        for kind in ("eta 0.05", "tuned"):
            label = f"{rule}, {'η = 0.05' if kind != 'tuned' else 'tuned'}"
            rows.append([label, *(round((0.1 / c[kind]["error"]) ** 2, 2) for c in cells)])
        if rule in PAPER4:
            rows.append([f"{rule}, the paper's figure", *PAPER4[rule]])
    out += table(["rule", *(f"K = {k}" for k in (20, 40, 60, 80, 100))], rows)
    out += ["## Figure 5: error against τ (K = 20, T = 300)", ""]
    rows = []
    for rule in RULES:
        cells = sorted((c for c in load("fig5") if c["rule"] == rule), key=lambda c: c["tau"])
        rows.append([f"{rule}, η = 0.05", *(f"{c['eta 0.05']['error']:.3f}" for c in cells)])
        rows.append([f"{rule}, tuned", *(f"{c['tuned']['error']:.3f} (η {c['tuned']['eta']:g})" for c in cells)])
    return out + table(["rule", *(f"τ = {t}" for t in (1, 10, 25, 50, 75, 100))], rows)


def slopes() -> list[str]:
    out = ["## Slopes of the error in K and T (predicted -0.5; η = 14 / ((1 - γ) μ T), 100 simulations)", ""]
    rows: list[list[Any]] = []
    cells = load("slope")
    for method in ("fedsynq", "fedasynq-eq", "fedasynq-im"):
        T = 4000 if method == "fedsynq" else 100_000
        for axis, fixed in (("K", f"T = {T}"), ("T", "K = 4")):
            mine = [c for c in cells if c["method"] == method and (c["T"] == T if axis == "K" else c["K"] == 4)]
            mine.sort(key=lambda c: c[axis])
            if len(mine) > 2:
                slope, error = fit_slope([c[axis] for c in mine], [c["error"] for c in mine])
                span = f"{axis} = {mine[0][axis]} ... {mine[-1][axis]}, {fixed}"
                rows.append([method, span, f"{slope:.3f} ± {error:.3f}", " ".join(f"{c['error']:.4f}" for c in mine)])
    return out + table(["method", "along", "slope", "errors"], rows)


def open_questions() -> list[str]:
    out = ["## Communication: to mean error 0.06 on the paper's experiment, each τ at its fastest rate", ""]
    rows: list[list[Any]] = []
    taus = (5, 10, 25, 50, 100, 200)
    for rule in RULES:
        mine = {c["tau"]: c for c in load("bytes") if c["rule"] == rule}
        got = [mine[t] for t in taus if t in mine]
        rows.append([f"{rule}: kB", *(c["bytes"] and round(c["bytes"] / 1000) for c in got)])
        rows.append([f"{rule}: local steps", *(c["steps"] for c in got)])
    out += table(["rule", *(f"τ = {t}" for t in taus)], rows)
    out += ["## Policy heterogeneity: from equal (ε = 1) to disjoint (ε = 0); steps to the target, theory beside", ""]
    rows = []
    for c in sorted(load("het"), key=lambda c: (c["mdp"], -c["epsilon"])):
        predicted = c["equal"]["predicted"] / c["importance"]["predicted"]
        steps = [c[r]["steps"] for r in RULES]
        ratio = round(steps[0] / steps[1], 2) if steps[0] and steps[1] else None
        cover = [f"{c[x]:.2g}" for x in ("mu_min", "mu_avg", "c_het", "t_mix")]
        rows.append([c["mdp"], c["epsilon"], *cover, *three(c), *steps, ratio, round(predicted, 1)])
    head = ["MDP", "ε", "μ_min", "μ_avg", "C_het", "t_mix", *RULES, *(f"{r}: steps" for r in RULES)]
    out += table([*head, "Eq/Im steps", "predicted (bound)"], rows)
    out += ["## Partial coverage: regions, K = 6, τ = 100, Q0 = 0", ""]
    rows = [
        [c["mdp"], c["T"], f"{c['mu_min']:.2g}", f"{c['mu_avg']:.2g}", *three(c), shown(c["one agent alone"])]
        for c in sorted(load("coverage"), key=lambda c: (c["mdp"], c["T"]))
    ]
    out += table(["MDP", "T", "μ_min", "μ_avg", *RULES, "one agent alone"], rows)
    out += ["## Stragglers: K = 20, τ = 50, T = 6000, each rule at its own tuned rate", ""]
    rows = [[c["setting"], c["pattern"], *three(c)] for c in load("straggler")]
    out += table(["setting", "pattern", *RULES], rows)
    out += ["## Heterogeneous environments: each agent's MDP perturbed, yardstick Q* of the mean MDP, T = 6000", ""]
    rows = [[c["strength"], c["epsilon"], c["pattern"], *three(c)] for c in load("env")]
    return out + table(["strength", "ε", "pattern", *RULES], rows)


COLOUR = {"equal": "#c33", "importance": "#26c", "targets": "#283"}


def draw() -> None:
    """Figures 3, 4, 5 and the slopes, the paper's values dashed where they are known."""
    lines = []
    for c in load("fig3"):
        if c["tuned"] and c["rule"] != "targets":
            continue
        mean, low, high = ([p[x] for p in c["points"]] for x in ("error", "p10", "p90"))
        lines.append(Series(f"{c['rule']}, η = {c['eta']:g}", c["steps"], mean, COLOUR[c["rule"]], low, high))
    for rule, values in PAPER3.items():
        lines.append(Series(f"{rule}, paper", (50, 300, 500, 1000, 2000), values, COLOUR[rule], dashed=True))
    chart(FOLDER / "fig3.svg", "Figure 3: error, K = 20, τ = 50, band 10-90 %", "T", "(1 - γ) max |Q - Q*|", lines)
    lines = []
    for rule in RULES:
        kind = "tuned" if rule == "targets" else "eta 0.05"
        label = f"{rule}, {'tuned η' if rule == 'targets' else 'η = 0.05'}"
        cells = sorted((c for c in load("fig4") if c["rule"] == rule), key=lambda c: c["K"])
        lines.append(
            Series(label, [c["K"] for c in cells], [(0.1 / c[kind]["error"]) ** 2 for c in cells], COLOUR[rule])
        )
    for rule, values in PAPER4.items():
        lines.append(Series(f"{rule}, paper", (20, 40, 60, 80, 100), values, COLOUR[rule], dashed=True))
    chart(FOLDER / "fig4.svg", "Figure 4: speed-up in K, T = 300, τ = 50", "K", "1 / max |Q - Q*|²", lines)
    lines = []
    for rule in RULES:
        cells = sorted((c for c in load("fig5") if c["rule"] == rule), key=lambda c: c["tau"])
        for kind, label in (("eta 0.05", "η = 0.05"), ("tuned", "tuned η")):
            mean, low, high = ([c[kind][x] for c in cells] for x in ("error", "p10", "p90"))
            taus, dashed = [c["tau"] for c in cells], kind == "tuned"
            lines.append(Series(f"{rule}, {label}", taus, mean, COLOUR[rule], low, high, dashed))
    chart(FOLDER / "fig5.svg", "Figure 5: error, K = 20, T = 300, band 10-90 %", "τ", "(1 - γ) max |Q - Q*|", lines)
    lines = []
    for method, colour in (("fedsynq", "#733"), ("fedasynq-eq", "#c33"), ("fedasynq-im", "#26c")):
        T = 4000 if method == "fedsynq" else 100_000
        cells = sorted((c for c in load("slope") if c["method"] == method and c["T"] == T), key=lambda c: c["K"])
        Ks = [c["K"] for c in cells]
        mean, low, high = ([c[x] for c in cells] for x in ("error", "p10", "p90"))
        lines.append(Series(f"{method}, T = {T}", Ks, mean, colour, low, high))
    first = lines[0].y[0]
    lines.append(Series("slope -1/2", lines[0].x, [first * k**-0.5 for k in lines[0].x], "#888", dashed=True))
    chart(FOLDER / "slopes.svg", "Error against the number of agents", "K", "(1 - γ) max |Q - Q*|", lines, log=True)


def write_report() -> None:
    draw()
    head = [
        "# Federated Q-learning: results",
        "",
        "Written by `python benchmarks/q_figures.py`. Errors are (1 - γ) max|Q - Q*|, mean over simulations ± standard",
        "error. A tuned rate η was chosen among 27 on other random numbers than those reported. Bold: the best rule,",
        "or within two standard errors of it. Rules: equal = FedAsynQ-EqAvg, importance = FedAsynQ-ImAvg, targets =",
        "FedAsynQ-TaAvg (ours).",
        "",
        "What ± does not cover: every table stands on one draw of its MDP (two-state seed 0, garnet seeds 0, 2, 3)",
        "and on the grid of rates. An earlier pass with 22 rates (0.001 to 0.8) was dropped, since equal and targets",
        "sat at its edges; it named another winner in 8 of the 50 cells on stragglers and environments (6 of 20, 2 of",
        "30). In one cell (two-state, Q0 = 0, nobody late) importance and targets changed places by a factor of 1.5",
        "through the position of the grid alone. Differences below a factor of 1.5 between tuned rules are no verdict.",
        "Equal sits at 0.95, the top of the present grid, in several cells.",
        "",
        "![figure 3](fig3.svg) ![figure 4](fig4.svg) ![figure 5](fig5.svg) ![slopes](slopes.svg)",
        "",
    ]
    (FOLDER / "README.md").write_text("\n".join(head + figures() + slopes() + open_questions()).rstrip() + "\n")
