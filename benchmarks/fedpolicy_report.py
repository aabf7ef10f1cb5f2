"""The page of FedPolicy's results: what is in the cells of results/fedpolicy, as tables and pictures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.report.paired import difference

Cell = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "fedpolicy"
FIXED = {"full": "fedavg", "backbone": "fedper", "head": "lgfedavg", "none": "local"}
"""What each fixed choice is known as."""
BASELINES = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "fedper",
    "fedrep",
    "ditto",
    "fedala",
    "fedbabu",
    "lgfedavg",
    "local",
    "finetune",
)
CLAIMANTS = ("learned", "learned-with-none", "learned-finetune", "joint", "equilibrium")
"""Ours; equilibrium is what joint is without choices."""
PUBLISHED = "3.93 % on average, 8.40 % at most"
TARGETS = (0.80, 0.90, 0.95)
SEEDS, FRESH = (11, 12, 13), (21, 22, 23)
LAST = 3  # evaluations whose mean is the final accuracy: one alone is noisy


def cells(scenario: str, variant: str, seeds: tuple[int, ...] = SEEDS) -> list[Cell]:
    paths = [RESULTS / f"{scenario}-{variant}-seed{seed}.json" for seed in seeds]
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    return [{**cell, "last": statistics.fmean(p[1] for p in cell["curve"][-LAST:])} for cell in found]


def mean(found: list[Cell], key: str) -> float | None:
    values = [cell[key] for cell in found if cell[key] is not None]
    return statistics.fmean(values) if values else None


def spread(values: Iterable[float | None], digits: int = 1) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.fmean(known):.{digits}f} ± {statistics.stdev(known) if len(known) > 1 else 0.0:.{digits}f}"


def converged(cell: Cell) -> int:
    """The first evaluation whose mean over three is within half a point of the best such mean."""
    points = cell["curve"]
    means = [(points[i][0], statistics.fmean(p[1] for p in points[i - 2 : i + 1])) for i in range(2, len(points))]
    return int(next(t for t, value in means if value >= max(value for _, value in means) - 0.5))


def spent_until(cell: Cell, goal: float) -> float | None:
    """Megabytes, down and up, until the mean over three evaluations reaches the goal."""
    points = cell["curve"]
    for i in range(2, len(points)):
        if statistics.fmean(p[1] for p in points[i - 2 : i + 1]) >= goal:
            return float(points[i][3]) / 1e6
    return None


def scenario_table(scenario: str, variants: Iterable[str]) -> list[str]:
    lines = [
        f"## {scenario}",
        "",
        "| variant | seeds | personal | last round | spread | worst 10 % | fine-tuned | global | newcomer | converged |"
        " MB down | MB up |",
        "|---" * 12 + "|",
    ]
    for variant in variants:
        if found := cells(scenario, variant):
            names = ("last", "personal", "std", "p10", "tuned", "global", "newcomer")
            figures = [spread(cell[name] for cell in found) for name in names]
            rounds = f"{statistics.fmean(converged(cell) for cell in found):.0f}"
            traffic = [f"{statistics.fmean(cell[way] for cell in found) / 1e6:.1f}" for way in ("down", "up")]
            lines.append(f"| {' | '.join([variant, str(len(found)), *figures, rounds, *traffic])} |")
    return [*lines, ""] if len(lines) > 4 else []


def paired(one: list[Cell], other: list[Cell], key: str) -> str:
    mine, theirs = ({cell["seed"]: cell[key] for cell in group} for group in (one, other))
    seeds = sorted(mine.keys() & theirs.keys())
    found = difference([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    return "-" if found is None else f"{found.mean:+.1f} ± {found.high - found.mean:.1f}"


def against_fixed(scenarios: Iterable[str], seeds: tuple[int, ...]) -> list[str]:
    lines = [
        "| scenario | best fixed | its accuracy | "
        + " | ".join(CLAIMANTS)
        + " | global: FedAvg / learned | MB: FedAvg /"
        " learned |",
        "|---" * (5 + len(CLAIMANTS)) + "|",
    ]
    for scenario in scenarios:
        fixed = {name: cells(scenario, variant, seeds) for name, variant in FIXED.items()}
        learned = cells(scenario, "learned", seeds)
        if not learned or not all(fixed.values()):
            continue
        best = max(fixed, key=lambda name: mean(fixed[name], "last") or 0.0)
        gains = [paired(cells(scenario, claimant, seeds), fixed[best], "last") for claimant in CLAIMANTS]
        whole = [f"{mean(group, 'global'):.1f}" for group in (fixed["full"], learned)]
        traffic = [
            f"{statistics.fmean(c['down'] + c['up'] for c in group) / 1e6:.0f}" for group in (fixed["full"], learned)
        ]
        row = [scenario, best, spread(cell["last"] for cell in fixed[best]), *gains, " / ".join(whole)]
        lines.append(f"| {' | '.join([*row, ' / '.join(traffic)])} |")
    return [*lines, ""]


def relative_gains(scenarios: Iterable[str]) -> list[str]:
    lines = [
        "## Relative gain over the strongest baseline of each scenario",
        "",
        f"(accuracy − strongest) / strongest, of {len(BASELINES)} baselines, plain and with everybody fine-tuned alike."
        f" Published: {PUBLISHED}.",
        "",
        "| scenario | strongest | "
        + " | ".join(CLAIMANTS)
        + " | strongest fine-tuned | "
        + " | ".join(f"{claimant}, fine-tuned" for claimant in CLAIMANTS)
        + " |",
        "|---" * (3 + 2 * len(CLAIMANTS)) + "|",
    ]
    gains: dict[tuple[str, str], list[float]] = {}
    for scenario in scenarios:
        if not cells(scenario, "learned"):
            continue
        row = [scenario]
        for key in ("last", "tuned"):
            known = {name: value for name in BASELINES if (value := mean(cells(scenario, name), key)) is not None}
            strongest = max(known, key=lambda name: known[name])
            row.append(f"{strongest} {known[strongest]:.1f}")
            for claimant in CLAIMANTS:
                value = mean(cells(scenario, claimant), key)
                if value is None:
                    row.append("-")
                else:
                    gain = 100 * (value / known[strongest] - 1)
                    gains.setdefault((key, claimant), []).append(gain)
                    row.append(f"{gain:+.2f} %")
        lines.append(f"| {' | '.join(row)} |")
    for title, pick in (("average", statistics.fmean), ("largest", max)):
        row = [f"**{title}**"]
        for key in ("last", "tuned"):
            row += ["", *(f"{pick(gains[key, name]):+.2f} %" if (key, name) in gains else "-" for name in CLAIMANTS)]
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def bytes_to_targets(scenarios: Iterable[str]) -> list[str]:
    shown = ("fedavg", "fedper", "finetune", "probe-sync", "learned", "learned-with-none", "joint")
    lines = [
        "## Megabytes to 80, 90 and 95 % of FedAvg's best personal accuracy",
        "",
        "Down and up, mean over seeds; in brackets how many seeds got there, where not all did.",
        "",
        "| scenario | " + " | ".join(shown) + " |",
        "|---" * (1 + len(shown)) + "|",
    ]
    for scenario in scenarios:
        best = {cell["seed"]: max(point[1] for point in cell["curve"]) for cell in cells(scenario, "fedavg")}
        if not best:
            continue
        row = [scenario]
        for variant in shown:
            found, texts = cells(scenario, variant), []
            for share in TARGETS if found else ():
                spent = [spent_until(cell, share * best[cell["seed"]]) for cell in found if cell["seed"] in best]
                there = [value for value in spent if value is not None]
                text = f"{statistics.fmean(there):.0f}" if there else "-"
                texts.append(text if len(there) == len(spent) else f"{text} ({len(there)} of {len(spent)})")
            row.append(" / ".join(texts) or "-")
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def page(heading: str, scenarios: tuple[str, ...], variants: Iterable[str]) -> str:
    names = list(variants)
    lines = [
        "# FedPolicy: which part each client gets back",
        "",
        heading.strip(),
        "",
        "Accuracy in %, mean ± standard deviation over seeds. *personal* is the mean of the last three evaluations",
        "(three rounds apart), *spread* the standard deviation over clients, *fine-tuned* after the same",
        "validation-stopped tuning for everybody, *newcomer* a fresh population's clients after five epochs from the",
        "global model, *converged* the first round within half a point of the best.",
        "",
        "## Learned choices against the best fixed one",
        "",
        "Personal accuracy; the best fixed choice is the best of full, backbone, head and none *after the fact*. The",
        "differences are paired by seed, with 95 % intervals.",
        "",
        *against_fixed(scenarios, SEEDS),
        f"The same on seeds {', '.join(map(str, FRESH))}, which nobody had looked at before the policy was finished:",
        "",
        *against_fixed(scenarios, FRESH),
        *relative_gains(scenarios),
        *bytes_to_targets(scenarios),
        "## What clients were given",
        "",
        "![parts over rounds and clients](parts.svg)",
        "",
    ]
    for scenario in scenarios:
        lines += scenario_table(scenario, names)
    return "\n".join(lines)


def picture(scenarios: tuple[str, ...] = ("M3", "M1", "L.1")) -> None:
    """Heat maps of ``learned``: which part each client installed, round by round (first seed), in three populations."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ("#0072B2", "#56B4E9", "#E69F00", "#999999")
    known = [(scenario, found[0]) for scenario in scenarios if (found := cells(scenario, "learned"))]
    if not known:
        return
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"
    figure, axes = pyplot.subplots(1, len(known), figsize=(3.6 * len(known), 3.2), squeeze=False)
    for axis, (scenario, cell) in zip(axes[0], known, strict=True):
        parts = [list(column) for column in zip(*cell["parts"], strict=True)]
        axis.imshow(parts, aspect="auto", cmap=ListedColormap(colours), vmin=-0.5, vmax=3.5, interpolation="nearest")
        axis.set(title=scenario, xlabel="round", ylabel="client")
    handles = [Patch(color=colour, label=name) for colour, name in zip(colours, FIXED, strict=True)]
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(RESULTS / "parts.svg", metadata={"Date": None})
