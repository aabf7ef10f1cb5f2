"""Scores over rounds: of one method, of several, and its way through the plane of both scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from equipoise.records.scores import NAMED
from equipoise.report.page.drawing import GREY, Figure, Score, figure, line, numbers, thin
from equipoise.report.reading import Group

NAMES = {
    "global": "global model, server's test set",
    "received": "received, clients' own test sets",
    "trained": "trained, clients' own test sets",
    "personal": "personal, clients' own test sets",
}


def curves(groups: Sequence[Group], score: Score) -> Figure | None:
    """One method: its four named scores over rounds, with the players' utilities on a second axis."""
    group, traces = groups[0], []
    for index, name in enumerate(NAMED):
        runs = [run.series(name) for run in group.runs]
        if name == "personal" and runs == [run.series("trained") for run in group.runs]:
            continue
        traces += line(runs, NAMES[name], index, scale=score.scale)
    layout: dict[str, Any] = {"yaxis": score.axis}
    utilities = {
        side: [_exp(run.note(f"log_utility_{side}")) for run in group.runs]
        for side in ("global", "local")
    }
    for index, (side, runs) in enumerate(utilities.items()):
        for trace in line(runs, f"utility, {side}", 4 + index, yaxis="y2", opacity=0.65):
            trace["line"] |= (
                {"dash": "dot"} if trace["mode"] == "lines" and "fill" not in trace else {}
            )
            traces.append(trace)
            layout["yaxis2"] = {
                "title": {"text": "utility, 1/loss"},
                "overlaying": "y",
                "side": "right",
                "tickmode": "auto",
            }
    return figure(traces, "round", score.words, **layout) if traces else None


def curves_of(name: str) -> Callable[[Sequence[Group], Score], Figure | None]:
    """Several methods: one named score over rounds."""

    def draw(groups: Sequence[Group], score: Score) -> Figure | None:
        traces = [
            trace
            for index, group in enumerate(groups)
            for trace in line(
                [run.series(name) for run in group.runs], group.label, index, scale=score.scale
            )
        ]
        return figure(traces, "round", score.words, yaxis=score.axis) if traces else None

    return draw


def path_of_one(groups: Sequence[Group], score: Score) -> Figure | None:
    """One run's way through the plane of global and personal score."""
    run = groups[0].first
    ours, theirs = run.series("global"), run.series("personal")
    rounds = thin(sorted(set(ours) & set(theirs)))
    if len(rounds) < 2:
        return None
    trace = {
        **{
            "type": "scatter",
            "mode": "lines+markers",
            "line": {"color": GREY, "width": 1},
            "showlegend": False,
        },
        "x": numbers(score.scale * ours[t] for t in rounds),
        "y": numbers(score.scale * theirs[t] for t in rounds),
        "text": [f"round {t}" for t in rounds],
        "hovertemplate": "%{text}: global %{x:.2f}, personal %{y:.2f}<extra></extra>",
        "marker": {
            **{"size": 7, "color": rounds, "colorscale": "Cividis", "showscale": True},
            "colorbar": {"thickness": 12, "title": {"text": "round"}},
        },
    }
    return figure([trace], f"global {score.words}", f"personal {score.words}")


def _exp(values: dict[int, float]) -> dict[int, float]:
    return {t: math.exp(min(value, 50.0)) for t, value in values.items()}
