"""Agents against theory: errors of tables, and the distance of a shared representation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from equipoise.report.page.drawing import Figure, Score, colour, dash, figure, line, numbers, thin
from equipoise.report.reading import Group


def theory(groups: Sequence[Group], score: Score) -> Figure | None:
    """Error of the server's table against steps, beside the slope of the theory, hung on the last point."""
    if score.headline != "error":
        return None
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        errors = (
            {} if group.first.series("received", "subspace") else group.first.series("global")
        )  # of tables alone
        steps = list(accumulate(record.train["epochs"].mean for record in group.first.records))
        at = {record.round: step for record, step in zip(group.first.records, steps, strict=True)}
        rounds = thin([t for t in sorted(errors) if errors[t] > 0])
        if len(rounds) < 2:
            continue
        x = [at[t] for t in rounds]
        style = {"color": colour(index), "dash": dash(index), "width": 2}
        measured = {
            "type": "scatter",
            "mode": "lines",
            "name": group.label,
            "line": style,
            "legendgroup": group.label,
        }
        traces.append({**measured, "x": numbers(x), "y": numbers(errors[t] for t in rounds)})
        predicted = [errors[rounds[-1]] * math.sqrt(x[-1] / step) for step in x]
        fainter = {**style, "dash": "dot", "width": 1}
        traces.append(
            {
                **measured,
                "name": "∝ 1/√steps",
                "line": fainter,
                "x": numbers(x),
                "y": numbers(predicted),
            }
        )
    axes: dict[str, Any] = {"xaxis": {"type": "log"}, "yaxis": {"type": "log"}}
    return figure(traces, "steps of an agent", "(1 − γ) max |Q − Q*|", **axes) if traces else None


def subspace(groups: Sequence[Group], score: Score) -> Figure | None:
    """Agents with a shared representation: its distance from the true subspace over rounds."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line(
            [run.series("received", "subspace") for run in group.runs], group.label, index
        )
    ]
    return (
        figure(traces, "round", "sine of the largest angle", yaxis={"type": "log"})
        if traces
        else None
    )
