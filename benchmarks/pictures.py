"""The pictures of the README and of the documents, from committed results (titles name the seeds of
the cells that are shown), and the one of the page on inputs, from the sample of tables: `python -m
benchmarks.pictures` (extra `plot`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import equipoise as eq
from benchmarks import what_pays
from benchmarks.lab import Record, Results
from benchmarks.lab.provenance import RESULTS, ROOT
from benchmarks.studies.fedpolicy import SCENARIOS
from benchmarks.studies.synthetic import summaries
from equipoise.data.tabular.sample import write_sample
from equipoise.records.explanation import Explanation
from equipoise.report.statistics import pareto_front

OUT = ROOT / "docs" / "pictures"
OURS, OTHERS = "#D55E00", "#0072B2"
DOTS: Any = {"color": "#D55E00", "markersize": 3, "alpha": 0.7}
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "e",
}


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#999999")
"""Of curves, in the order of their labels; readable with colour blindness."""


def both_customers(figure: Figure) -> None:
    """Global against personal accuracy on Synthetic, methods at their defaults: means and
    deviations over seeds.
    """
    axes = figure.subplots()
    found = summaries(Results(RESULTS / "synthetic"), "default")
    scores = {
        method: [
            [100 * score.acc for score in side]
            for side in zip(*((s.global_, s.personal) for s in found[method]), strict=True)
        ]
        for method in found
        if all(s.global_ for s in found[method])
    }
    means = {method: (fmean(x), fmean(y)) for method, (x, y) in scores.items()}
    best = pareto_front(means)
    axes.plot(*zip(*(means[name] for name in best), strict=True), "--", color="#999999", zorder=1)
    labels: list[list[str]] = []
    for method, (x, y) in scores.items():
        colour = OURS if method in best else OTHERS
        axes.errorbar(
            *means[method],
            xerr=stdev(x) if len(x) > 1 else None,
            yerr=stdev(y) if len(y) > 1 else None,
            fmt="o",
            color=colour,
            markersize=4,
            elinewidth=0.7,
        )
        near = (
            c
            for c in labels
            if max(abs(a - b) for a, b in zip(means[method], means[c[0]], strict=True)) < 1.2
        )
        if (cluster := next(near, None)) is None:
            labels.append([method])
        else:
            cluster.append(method)
    for cluster in labels:  # neighbours share a label
        axes.annotate(
            ", ".join(cluster),
            means[cluster[0]],
            xytext=(5, -9),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set(
        xlabel="the provider's model, accuracy %", ylabel="the clients' own models, accuracy %"
    )
    axes.set_title("Both customers at once: Synthetic, 200 rounds, defaults", fontsize=9)


def page_curves(figure: Figure) -> None:
    """Global and local accuracy by round of FedAvg and PAGE on Synthetic."""
    cells = Results(RESULTS / "readings")
    shown = {
        "fedavg": cells.where(column="synthetic-900", variant="fedavg"),
        "page": cells.where(column="synthetic-900", variant="relative"),
    }
    _curves(figure, shown, {"global": 1, "local": 2}, f"Synthetic, {_seeds(shown.values())}")


def fedpolicy_curves(figure: Figure) -> None:
    """Personal and global accuracy by round of redistribution policies, mean over populations.

    Populations of a larger size have more rounds and are left out.
    """
    cells = Results(RESULTS / "redistribution")
    variants = {
        "fedavg": "fedavg",
        "gate": "gate",
        "full for 80 %, then none": "full:0.8,none",
    }
    found = {
        label: [r for r in cells.where(variant=variant) if r.axes["population"] in SCENARIOS]
        for label, variant in variants.items()
    }
    places = [{(r.axes["population"], r.axes["seed"]) for r in some} for some in found.values()]
    common = set.intersection(*places)
    shown = {
        label: [r for r in some if (r.axes["population"], r.axes["seed"]) in common]
        for label, some in found.items()
    }
    populations = len({population for population, _ in common})
    title = f"Fashion-MNIST, {populations} populations, {_seeds(shown.values())}"
    _curves(figure, shown, {"personal": 1, "global": 2}, title, band=False)


def finetuning(figure: Figure) -> None:
    """Personal accuracy of every method on Synthetic, as it is and after the same fine-tuning."""
    axes = figure.subplots()
    cells = Results(RESULTS / "synthetic")
    found = summaries(cells, "default")
    means = {
        method: (
            100 * fmean(s.personal.acc for s in some),
            100 * fmean(s.finetuned.scores.acc for s in some if s.finetuned),
        )
        for method, some in found.items()
        if all(s.personal and s.finetuned for s in some)
    }
    order = sorted(means, key=lambda method: means[method][1])
    for place, method in enumerate(order):
        before, after = means[method]
        axes.plot([before, after], [place, place], color="#bbbbbb", linewidth=1.5, zorder=1)
    axes.scatter([means[m][0] for m in order], range(len(order)), s=18, color=OTHERS, label="as is")
    axes.scatter(
        [means[m][1] for m in order], range(len(order)), s=18, color=OURS, label="fine-tuned"
    )
    axes.set_yticks(range(len(order)), order, fontsize=7)
    axes.set(xlabel="the clients' own models, accuracy %")
    axes.legend(frameon=False, fontsize=8)
    seeds = _seeds([cells.where(settings="default")])
    axes.set_title(f"Fine-tuning for everybody: Synthetic, 200 rounds, {seeds}", fontsize=9)


def what_pays_points(figure: Figure) -> None:
    """Points of accuracy by setting, with 95 % intervals: the certain ones of what pays."""
    axes = figure.subplots()
    known = [row for row in what_pays.rows() if row[1].verdict != "tie"]
    known.sort(key=lambda row: row[1].mean)
    for place, (question, found, _, _) in enumerate(known):
        colour = OURS if question.column == "global" else OTHERS
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.2)
        axes.plot(found.mean, place, "o", color=colour, markersize=4)
    labels = [f"{q.setting} / {q.instead}".replace("`", "") for q, *_ in known]
    axes.set_yticks(range(len(known)), labels, fontsize=7)
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=0)
    axes.plot([], [], "o-", color=OURS, markersize=4, label="global model")
    axes.plot([], [], "o-", color=OTHERS, markersize=4, label="personal models")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set(xlabel="points of accuracy, with 95 % intervals")
    axes.set_title("Setting / instead of", fontsize=9)


def _curves(
    figure: Figure,
    shown: Mapping[str, Sequence[Record]],
    columns: Mapping[str, int],
    title: str,
    *,
    band: bool = True,
) -> None:
    """Draw one panel per column: the mean over cells by round, in a band from least to most.

    Args:
        figure: Where to draw.
        shown: Cells by the label of their curve.
        columns: Place of each score in a point of a cell's `curve`, by name.
        title: Text above the panels.
        band: Whether to draw the band: not over cells that differ in more than the seed.
    """
    panels: Sequence[Axes] = figure.subplots(1, len(columns), squeeze=False)[0]
    for axes, (name, column) in zip(panels, columns.items(), strict=True):
        for colour, (label, records) in zip(COLOURS, shown.items(), strict=False):
            rounds = [point[0] for point in records[0]["curve"]]
            values = [[point[column] for point in record["curve"]] for record in records]
            means = [fmean(some) for some in zip(*values, strict=True)]
            axes.plot(rounds, means, color=colour, linewidth=1.4, label=label)
            if band:
                least = [min(some) for some in zip(*values, strict=True)]
                most = [max(some) for some in zip(*values, strict=True)]
                axes.fill_between(rounds, least, most, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlabel="round", ylabel=f"{name} accuracy %")
    panels[-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(title, fontsize=9)


def _seeds(cells: Iterable[Sequence[Record]]) -> str:
    """Name the seeds of cells: "seeds 11 to 15"."""
    seeds = sorted({record.axes["seed"] for records in cells for record in records})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def speed(figure: Figure) -> None:
    """Milliseconds of one round of 100 clients, against peers on the same machine."""
    axes = figure.subplots()
    measured = json.loads((RESULTS / "peers.json").read_text())["W1, 1 epoch(s)"]
    order = sorted(measured, key=lambda name: -measured[name]["ms"])
    times = [measured[name]["ms"] for name in order]
    bars = axes.barh(
        order, times, color=[OURS if "equipoise" in name else OTHERS for name in order]
    )
    axes.bar_label(bars, [f"{t:,.0f} ms" for t in times], padding=3, fontsize=8)
    axes.set(
        xscale="log",
        xlabel="one round of 100 clients, one epoch each (logarithmic)",
        xlim=(5, 3 * max(times)),
    )
    axes.set_title("Speed on one thread (Flower: two workers)", fontsize=9)


def explained_sample() -> Explanation:
    """The commands of docs/how-to/inputs.md."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "clinics"
        write_sample(data, 0)
        options: dict[str, Any] = {"data": str(data), "target": "readmitted", "metric": "auc"}
        run = eq.run(Path(folder) / "run", task="tables", method="fedtrees", **options)
        return run.explain()


def inputs(figure: Figure) -> None:
    """Importance of the inputs, and partial dependence of the most important number, by site."""
    bars, curve = figure.subplots(1, 2)
    found = explained_sample()
    shown = found.importances[::-1]
    names = [one.column for one in shown]
    bars.barh(
        names,
        [one.importances_mean for one in shown],
        xerr=[one.importances_std for one in shown],
        color=OTHERS,
        error_kw={"ecolor": "#999999"},
    )
    for site in found.sites:
        own = {one.column: one.importances_mean for one in site.importances}
        bars.plot([own[name] for name in names if own], [n for n in names if own], "o", **DOTS)
    bars.set(xlabel=f"drop of {found.metric} if permuted; a dot is a clinic")
    numbers = [one for one in found.partial_dependence if one.kind == "number"]
    for values in numbers[0].sites.values():
        curve.plot(numbers[0].grid_values, values[0], color="#999999", linewidth=0.8)
    curve.plot(numbers[0].grid_values, numbers[0].average[0], color=OTHERS, linewidth=3)
    curve.set(xlabel=numbers[0].column, ylabel=found.outputs[0])


PICTURES: dict[Callable[[Figure], None], tuple[float, float]] = {
    both_customers: (6.0, 4.2),
    speed: (6.0, 2.4),
    page_curves: (6.4, 2.6),
    fedpolicy_curves: (6.4, 2.6),
    finetuning: (6.0, 4.6),
    what_pays_points: (6.4, 3.8),
    inputs: (7.0, 2.8),
}
"""What draws each picture, with its width and height in inches."""


def main() -> None:
    for draw, size in PICTURES.items():
        with rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained", facecolor="white")
            draw(figure)
            metadata: dict[str, Any] = {"Date": None}
            figure.savefig(OUT / f"{draw.__name__}.svg", metadata=metadata)


if __name__ == "__main__":
    main()
