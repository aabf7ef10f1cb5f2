"""Clients one by one: their scores before and after, and newcomers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equipoise.report.page.drawing import (
    GREY,
    Figure,
    Score,
    colour,
    figure,
    line,
    numbers,
    quantiles,
    symbol,
)
from equipoise.report.reading import Group

EACH = 200  # clients that are drawn as points of a box; more make the box alone
SCATTERED = 2000  # clients of a scatter plot


def spread(groups: Sequence[Group], score: Score) -> Figure | None:
    """Distribution of the clients' personal scores, all seeds together."""
    traces = []
    for index, group in enumerate(groups):
        values = [score.scale * v for run in group.runs for v in run.personal if math.isfinite(v)]
        if values:
            traces.append(
                {
                    **{
                        "type": "box",
                        "name": group.label,
                        "showlegend": False,
                        "marker": {"color": colour(index)},
                    },
                    "y": numbers(quantiles(values, 400)),
                    "boxpoints": "all" if len(values) <= EACH else False,
                    **{"jitter": 0.5, "pointpos": 0, "boxmean": True},
                }
            )
    return figure(traces, "", f"{score.words}, a client each") if traces else None


def before_after(groups: Sequence[Group], score: Score) -> Figure | None:
    """Each client's score with the received model against that with its personal one; above the line it gained."""
    traces: list[dict[str, Any]] = []
    seen: list[float] = []
    share = max(1, SCATTERED // len(groups))
    for index, group in enumerate(groups):
        run = group.first
        before = run.clients.get(f"received_{score.headline}", [])
        pairs = list(zip(run.clients.get("client", []), before, run.personal, strict=False))[:share]
        if not pairs:
            continue
        xs, ys = [score.scale * x for _, x, _ in pairs], [score.scale * y for _, _, y in pairs]
        seen += [v for v in (*xs, *ys) if math.isfinite(v)]
        traces.append(
            {
                **{
                    "type": "scatter",
                    "mode": "markers",
                    "name": group.label,
                    "x": numbers(xs),
                    "y": numbers(ys),
                },
                "text": [run.called(client) for client, _, _ in pairs],
                "hovertemplate": "%{text}: %{x:.4g} → %{y:.4g}",
                "marker": {
                    "color": colour(index),
                    "symbol": symbol(index),
                    "size": 7,
                    "opacity": 0.75,
                },
            }
        )
    if not seen:
        return None
    ends = numbers([min(seen), max(seen)])
    same = {
        **{
            "type": "scatter",
            "mode": "lines",
            "name": "no change",
            "x": ends,
            "y": ends,
            "hoverinfo": "skip",
        },
        "line": {"color": GREY, "dash": "dash", "width": 1},
    }
    return figure(
        [same, *traces], f"received model: {score.words}", f"personal model: {score.words}"
    )


def newcomers(groups: Sequence[Group], score: Score) -> Figure | None:
    """Clients that training never saw, after some epochs of their own."""
    traces = []
    for index, group in enumerate(groups):
        runs = [
            {
                k: value
                for k, scores in summary.newcomers.after.items()
                if (value := scores.get(score.headline)) is not None
            }
            for summary in group.summaries
            if summary.newcomers
        ]
        traces += (
            line(runs, group.label, index, scale=score.scale, mode="lines+markers") if runs else []
        )
    return (
        figure(traces, "epochs (of agents: steps) of a newcomer's own training", score.words)
        if traces
        else None
    )
