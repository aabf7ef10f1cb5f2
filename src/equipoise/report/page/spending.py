"""What rounds cost: epochs and rates as taken, bytes, time, privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from equipoise.records.cost_to_target import Spending, spendings
from equipoise.report.page.drawing import Figure, Score, colour, dash, figure, line, numbers, thin
from equipoise.report.reading import Group, Run


def training(what: str) -> Callable[[Sequence[Group], Score], Figure | None]:
    """Epochs or rates as taken: the mean over clients, with a band from the least to the most."""

    def draw(groups: Sequence[Group], score: Score) -> Figure | None:
        traces: list[dict[str, Any]] = []
        for index, group in enumerate(groups):
            taken = {
                record.round: record.train[what]
                for record in group.first.records
                if what in record.train
            }
            if any(
                value.min != value.max or value != next(iter(taken.values()))
                for value in taken.values()
            ):
                ends = [{t: v.min for t, v in taken.items()}, {t: v.max for t, v in taken.items()}]
                means = line([{t: v.mean for t, v in taken.items()}], group.label, index)
                traces += [*line(ends, group.label, index)[:1], *means]
        axis: dict[str, Any] = {"type": "log", "dtick": 1} if what == "lr" else {}
        words = {"epochs": "epochs per round", "lr": "learning rate"}[what]
        return figure(traces, "round", words, yaxis=axis) if traces else None

    return draw


def megabytes(groups: Sequence[Group], score: Score) -> Figure | None:
    """Bytes sent so far, both ways together."""
    traces = []
    for index, group in enumerate(groups):
        sent = _sent(group.first)
        if any(sent.values()):
            traces += line([sent], group.label, index)
    return figure(traces, "round", "MB up and down so far") if traces else None


def against_bytes(groups: Sequence[Group], score: Score) -> Figure | None:
    """What the bytes bought."""
    return _against(groups, score, _sent, "MB up and down so far")


def against_time(groups: Sequence[Group], score: Score) -> Figure | None:
    """What the time bought."""
    return _against(
        groups, score, lambda run: _spent(run, lambda at: at.seconds), "seconds by the run's clock"
    )


def against_energy(groups: Sequence[Group], score: Score) -> Figure | None:
    """What the energy of the clients bought."""
    return _against(
        groups,
        score,
        lambda run: _spent(run, lambda at: at.joules / 1000),
        "kJ of all clients so far",
    )


def _against(
    groups: Sequence[Group], score: Score, cost: Callable[[Run], dict[int, float]], words: str
) -> Figure | None:
    """Personal score (solid) and global score (dotted) against what rounds have cost so far."""
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        spent = cost(group.first)
        for name, style in (("personal", dash(index)), ("global", "dot")):
            points = group.first.series(name)
            rounds = thin(sorted(points))
            if rounds and spent.get(rounds[-1]):
                traces.append(
                    {
                        **{"type": "scatter", "mode": "lines", "name": f"{group.label}, {name}"},
                        "x": numbers(spent[t] for t in rounds),
                        "y": numbers(score.scale * points[t] for t in rounds),
                        "line": {"color": colour(index), "dash": style, "width": 2},
                    }
                )
    return figure(traces, words, score.words, yaxis=score.axis) if traces else None


def seconds(groups: Sequence[Group], score: Score) -> Figure | None:
    """Time of a round on the machine that ran it."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line(
            [{record.round: record.seconds for record in group.first.records}], group.label, index
        )
    ]
    return figure(traces, "round", "seconds per round", yaxis={"rangemode": "tozero"})


def privacy(groups: Sequence[Group], score: Score) -> Figure | None:
    """Under differential privacy: epsilon so far."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line([_epsilon(run) for run in group.runs], group.label, index)
    ]
    return figure(traces, "round", "epsilon") if traces else None


def _sent(run: Run) -> dict[int, float]:
    total = accumulate(record.bytes.both / 1e6 for record in run.records)
    return {record.round: megabytes for record, megabytes in zip(run.records, total, strict=True)}


def _spent(run: Run, of: Callable[[Spending], float]) -> dict[int, float]:
    costs = {spent.round: of(spent) for spent in spendings(run.records)}
    return {round: cost for round, cost in costs.items() if math.isfinite(cost)}


def _epsilon(run: Run) -> dict[int, float]:
    spent = ((record.round, record.privacy) for record in run.records)
    return {t: told.epsilon for t, told in spent if told and told.epsilon is not None}
