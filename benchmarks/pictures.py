"""The pictures of the README, from committed results: `python -m benchmarks.pictures` (extra
`plot`).
"""

from __future__ import annotations

import json
from statistics import fmean, stdev
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.lab import Results
from benchmarks.lab.provenance import RESULTS, ROOT
from benchmarks.studies.synthetic import summaries
from equipoise.report.statistics import pareto_front

OUT = ROOT / "docs" / "pictures"
OURS, OTHERS = "#D55E00", "#0072B2"
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


def main() -> None:
    for draw, size in ((both_customers, (6.0, 4.2)), (speed, (6.0, 2.4))):
        with rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained", facecolor="white")
            draw(figure.subplots())
            metadata: dict[str, Any] = {"Date": None}
            figure.savefig(OUT / f"{draw.__name__}.svg", metadata=metadata)


if __name__ == "__main__":
    main()
