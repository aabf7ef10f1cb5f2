"""The pictures of the README, from committed results, and the one of the page on inputs, from the
sample of tables: `python -m benchmarks.pictures` (extra `plot`).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import equipoise as eq
from benchmarks.lab import Results
from benchmarks.lab.provenance import RESULTS, ROOT
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


def both_customers(axes: Axes) -> None:
    """Global against personal accuracy on Synthetic, methods at their defaults: means and
    deviations over seeds.
    """
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


def speed(axes: Axes) -> None:
    """Milliseconds of one round of 100 clients, against peers on the same machine."""
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


def inputs(bars: Axes, curve: Axes) -> None:
    """Importance of the inputs, and partial dependence of the most important number, by site."""
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


def main() -> None:
    pictures = ((both_customers, (6.0, 4.2), 1), (speed, (6.0, 2.4), 1), (inputs, (7.0, 2.8), 2))
    for draw, size, panels in pictures:
        with rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained", facecolor="white")
            draw(*figure.subplots(1, panels, squeeze=False)[0])
            metadata: dict[str, Any] = {"Date": None}
            figure.savefig(OUT / f"{draw.__name__}.svg", metadata=metadata)


if __name__ == "__main__":
    main()
