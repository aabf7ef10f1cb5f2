"""Both customers at once: each method a point in the plane of global and personal score."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from equipoise.report.page import pareto
from equipoise.report.page.drawing import (
    GREY,
    Figure,
    Score,
    colour,
    figure,
    number,
    numbers,
    symbol,
)
from equipoise.report.reading import Group, Run


def both_sides(groups: Sequence[Group], score: Score) -> Figure | None:
    """Global against personal score: each method a point with its seeds, and the front that none beats on both."""
    points: dict[str, tuple[float, float]] = {}
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        pairs = [_last(run, score) for run in group.runs]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if not known:
            continue
        xs, ys = [x for x, _ in known], [y for _, y in known]
        points[group.label] = (fmean(xs), fmean(ys))
        seeds = {
            "type": "scatter",
            "mode": "markers",
            "x": numbers(xs),
            "y": numbers(ys),
            "showlegend": False,
        }
        if len(known) > 1:
            traces.append(
                {
                    **{**seeds, "hoverinfo": "skip", "legendgroup": group.label},
                    "marker": {
                        "color": colour(index),
                        "symbol": symbol(index),
                        "size": 6,
                        "opacity": 0.4,
                    },
                }
            )
        point: dict[str, Any] = {
            **{
                **seeds,
                "x": [number(fmean(xs))],
                "y": [number(fmean(ys))],
                "name": group.label,
                "showlegend": True,
            },
            "marker": {"color": colour(index), "symbol": symbol(index), "size": 12},
            "legendgroup": group.label,
        }
        if len(known) > 1:
            point |= {
                f"error_{way}": {"array": [number(stdev(v))]} for way, v in (("x", xs), ("y", ys))
            }
        traces.append(point)
    if len(points) < 2:
        return None
    best = pareto.front(points, score.higher)
    front = {
        **{
            "type": "scatter",
            "mode": "lines",
            "name": "Pareto front",
            "line": {"color": GREY, "dash": "dash"},
        },
        **{
            "x": [points[name][0] for name in best],
            "y": [points[name][1] for name in best],
            "hoverinfo": "skip",
        },
    }
    return figure([front, *traces], f"global {score.words}", f"personal {score.words}")


def _last(run: Run, score: Score) -> tuple[float | None, float | None]:
    ours, theirs = run.series("global"), run.series("personal")
    at = max(theirs, default=None)
    if at is None or at not in ours:
        return None, None
    return score.scale * ours[at], score.scale * theirs[at]
