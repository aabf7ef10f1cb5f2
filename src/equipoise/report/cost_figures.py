"""Plotly figures of costs (epochs, bytes, time, energy, privacy) and of the theory of agents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from equipoise.records.cost_to_target import Spending, spendings
from equipoise.report.figures import (
    NON_NEGATIVE,
    Figure,
    MetricDisplay,
    Trace,
    color,
    dash,
    figure,
    group_lines,
    line_trace,
    thin,
    to_json_numbers,
)
from equipoise.report.run_data import RunData, RunGroup
from equipoise.utils.metrics import metric_info

TRAINING_TITLES = {"epochs": "epochs per round", "lr": "learning rate"}


def local_training(groups: Sequence[RunGroup], name: str) -> Figure | None:
    """Draw epochs or learning rates over rounds, where they vary.

    Args:
        groups: Groups to draw; of each the first seed.
        name: ``epochs`` or ``lr``.

    Returns:
        The mean over clients, with a band from the smallest to the largest.
    """
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        values = {r.round: r.train[name] for r in group.first_run.records if name in r.train}
        if len(set(values.values())) < 2 and all(v.min == v.max for v in values.values()):
            continue
        lowest = {t: value.min for t, value in values.items()}
        highest = {t: value.max for t, value in values.items()}
        means = {t: value.mean for t, value in values.items()}
        traces += line_trace([lowest, highest], group.label, index)[:1]
        traces += line_trace([means], group.label, index)
    axis: Figure = {"type": "log", "dtick": 1} if name == "lr" else {}
    return figure(traces, "round", TRAINING_TITLES[name], yaxis=axis) if traces else None


def bytes_so_far(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the bytes sent so far, up and down together; first seed."""
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        megabytes = _megabytes(group.first_run)
        if any(megabytes.values()):
            traces += line_trace([megabytes], group.label, index)
    return figure(traces, "round", "MB up and down so far") if traces else None


def score_against_bytes(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw scores against bytes sent."""
    return _score_against(groups, display, _megabytes, "MB up and down so far")


def score_against_time(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw scores against the clock of runs that have one."""
    cost = _clock_cost(lambda spending: spending.seconds)
    return _score_against(groups, display, cost, "seconds by the run's clock")


def score_against_energy(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw scores against the energy of all clients, of runs that have a clock."""
    cost = _clock_cost(lambda spending: spending.joules / 1000)
    return _score_against(groups, display, cost, "kJ of all clients so far")


def _score_against(
    groups: Sequence[RunGroup],
    display: MetricDisplay,
    cost: Callable[[RunData], dict[int, float]],
    title: str,
) -> Figure | None:
    """Draw personal (solid) and global score (dotted) of the first seed against a cost by round."""
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        costs = cost(group.first_run)
        for name, style in (("personal", dash(index)), ("global", "dot")):
            scores = group.first_run.scores_by_round(name)
            rounds = thin(sorted(scores))
            if not rounds or not costs.get(rounds[-1]):
                continue
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{group.label}, {name}",
                    "x": to_json_numbers(costs[t] for t in rounds),
                    "y": to_json_numbers(display.scale * scores[t] for t in rounds),
                    "line": {"color": color(index), "dash": style, "width": 2},
                }
            )
    return figure(traces, title, display.label, yaxis=display.axis) if traces else None


def seconds_per_round(groups: Sequence[RunGroup]) -> Figure:
    """Draw how long rounds took on the machine that ran them; first seed."""
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        seconds = {record.round: record.seconds for record in group.first_run.records}
        traces += line_trace([seconds], group.label, index)
    return figure(traces, "round", "seconds per round", yaxis={"rangemode": "tozero"})


def privacy_spent(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw epsilon over rounds, of runs with differential privacy."""
    traces = group_lines(groups, _epsilon, bounds=NON_NEGATIVE)
    return figure(traces, "round", "epsilon") if traces else None


def _megabytes(run: RunData) -> dict[int, float]:
    totals = accumulate(record.bytes.total / 1e6 for record in run.records)
    return {record.round: total for record, total in zip(run.records, totals, strict=True)}


def _clock_cost(cost: Callable[[Spending], float]) -> Callable[[RunData], dict[int, float]]:
    """Return a function that gives a cost by round; empty for runs that asked for no clock."""

    def by_round(run: RunData) -> dict[int, float]:
        if not run.uses_clock:
            return {}
        costs = {spending.round: cost(spending) for spending in spendings(run.records)}
        return {t: value for t, value in costs.items() if math.isfinite(value)}

    return by_round


def _epsilon(run: RunData) -> dict[int, float]:
    spent = {record.round: record.privacy for record in run.records}
    return {t: s.epsilon for t, s in spent.items() if s is not None and s.epsilon is not None}


# ------------------------------------------------------------------ agents


def error_against_theory(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw the error of the server's Q table against steps, with the theory's slope 1/sqrt(steps).

    The slope passes through the last point, because the constants of the theory are unknown.
    """
    if display.metric != "error":
        return None
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        run = group.first_run
        if run.scores_by_round("received", "subspace"):  # linear agents: their error is another one
            continue
        errors = run.scores_by_round("global")
        totals = accumulate(record.train["epochs"].mean for record in run.records)
        steps = {record.round: total for record, total in zip(run.records, totals, strict=True)}
        rounds = thin([t for t in sorted(errors) if errors[t] > 0])
        if len(rounds) < 2:
            continue
        x = [steps[t] for t in rounds]
        predicted = [errors[rounds[-1]] * math.sqrt(x[-1] / step) for step in x]
        shared = {"type": "scatter", "mode": "lines", "legendgroup": group.label}
        style = {"color": color(index), "dash": dash(index), "width": 2}
        measured = {
            "name": group.label,
            "line": style,
            "y": to_json_numbers(errors[t] for t in rounds),
        }
        theory = {
            "name": "∝ 1/√steps",
            "line": {**style, "dash": "dot", "width": 1},
            "y": to_json_numbers(predicted),
        }
        traces += [{**shared, "x": to_json_numbers(x), **trace} for trace in (measured, theory)]
    if not traces:
        return None
    log_axes: Figure = {"xaxis": {"type": "log"}, "yaxis": {"type": "log"}}
    return figure(traces, "steps of an agent", "(1 − γ) max |Q − Q*|", **log_axes)


def subspace_distance(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the distance between the agents' shared representation and the true subspace."""
    info = metric_info("subspace")
    traces = group_lines(
        groups,
        lambda run: run.scores_by_round("received", "subspace"),
        bounds=(info.lowest, info.highest),
        log_axis=True,
    )
    if not traces:
        return None
    return figure(traces, "round", "sine of the largest angle", yaxis={"type": "log"})
