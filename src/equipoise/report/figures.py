"""Plotly figures of scores and costs, as plain dictionaries; and the Pareto plot as SVG.

Every function takes the groups to draw and how to write their main metric. It returns None if there
is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from equipoise.records.scores import NAMED
from equipoise.report.run_data import RunData, RunGroup
from equipoise.report.statistics import UNBOUNDED, Point, confidence_band, pareto_front
from equipoise.utils import io
from equipoise.utils.metrics import metric_info

Figure = dict[str, Any]
Trace = dict[str, Any]

# The colours of Okabe and Ito, which colour-blind readers can tell apart. Without black and yellow,
# which are invisible in one of the two themes.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8A7CC2", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star")
GREY = "#8C8C8C"
MAX_LINE_POINTS = 500
MAX_LOG_UTILITY = 50.0  # exp(50) is far above any utility of interest, and finite
SCORE_TITLES = {
    "global": "global model, server's test set",
    "received": "received, clients' own test sets",
    "trained": "trained, clients' own test sets",
    "personal": "personal, clients' own test sets",
}
NON_NEGATIVE = (0.0, math.inf)


class MetricDisplay:
    """How a metric is drawn: accuracies in per cent, errors on a logarithmic axis."""

    def __init__(self, metric: str) -> None:
        """Choose scale, label and range of a metric."""
        info = metric_info(metric)
        self.metric = metric
        self.is_percent = metric == "acc"
        self.scale = 100.0 if self.is_percent else 1.0
        self.label = "accuracy, %" if self.is_percent else metric
        self.log_axis = metric == "error"
        self.axis = {"type": "log"} if self.log_axis else {}
        self.higher_is_better = info.higher_is_better
        self.bounds = (self.scale * info.lowest, self.scale * info.highest)
        """Range of the metric in the unit of the plot."""

    @property
    def line_options(self) -> Trace:
        """Arguments of `line` for values of this metric."""
        return {"scale": self.scale, "bounds": self.bounds, "log_axis": self.log_axis}


def color(index: int) -> str:
    """Return the colour of the line with this index."""
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """Return the dash style of a line. Neighbours differ, so that equal lines are both seen."""
    return DASHES[index % len(DASHES)]


def symbol(index: int) -> str:
    """Return the marker of a point: circles until all colours are in use."""
    return SYMBOLS[index // len(PALETTE) % len(SYMBOLS)]


def to_json_number(value: float | None) -> float | None:
    """Round to four digits, enough for a plot; None for NaN and infinity, which JSON lacks."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def to_json_numbers(values: Iterable[float | None]) -> list[float | None]:
    """Apply `to_json_number` to all values."""
    return [to_json_number(value) for value in values]


def quantiles(values: Sequence[float], max_values: int) -> list[float]:
    """Return the values, or that many of their quantiles, whose box plot is the same."""
    if len(values) <= max_values:
        return list(values)
    return [float(value) for value in np.quantile(values, np.linspace(0, 1, max_values))]


def thin(rounds: Sequence[int]) -> list[int]:
    """Return at most `MAX_LINE_POINTS` of the rounds, evenly spaced, with the last one."""
    if len(rounds) <= MAX_LINE_POINTS:
        return list(rounds)
    step = math.ceil(len(rounds) / (MAX_LINE_POINTS - 1))
    return [*rounds[: len(rounds) - 1 : step], rounds[-1]]


def line_trace(
    runs: Sequence[Mapping[int, float]],
    name: str,
    index: int,
    *,
    scale: float = 1.0,
    bounds: tuple[float, float] = UNBOUNDED,
    log_axis: bool = False,
    **options: Any,
) -> list[Trace]:
    """Draw the mean over seeds by round, with a band if there are several seeds.

    Args:
        runs: Values by round, one mapping per seed.
        name: Name in the legend.
        index: Number of the line, which decides its colour.
        scale: Factor for all values.
        bounds: Range of the scaled values, to which the band is clipped.
        log_axis: Whether the axis is logarithmic. It cannot show a band that reaches down to 0, so
            such a band ends at the lowest seed.
        options: Further attributes of the traces.

    Returns:
        The band, if any, and the line; empty without values.
    """
    rounds = thin(sorted(set().union(*runs)))
    if not rounds:
        return []
    values = [[scale * run[t] for run in runs if t in run] for t in rounds]
    mean_line: Trace = {
        "type": "scatter",
        "mode": "lines" if len(rounds) > 1 else "markers",  # one evaluation is a point, not a line
        "name": name,
        "x": rounds,
        "y": to_json_numbers(map(fmean, values)),
        "line": {"color": color(index), "dash": dash(index), "width": 2},
        "legendgroup": name,
        **options,
    }
    if len(runs) < 2 or len(rounds) < 2:
        return [mean_line]
    bands = [confidence_band(seeds, bounds) for seeds in values]
    if log_axis:
        bands = [
            (low if low > 0 else min(seeds), high)
            for (low, high), seeds in zip(bands, values, strict=True)
        ]
    return [{**_band(rounds, bands, color(index)), "legendgroup": name, **options}, mean_line]


def _band(rounds: Sequence[int], bands: Sequence[tuple[float, float]], hex_color: str) -> Trace:
    """Draw the area between the lower and the upper ends of intervals by round."""
    lower = [low for low, _ in bands]
    upper = [high for _, high in bands]
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "x": [*rounds, *reversed(rounds)],
        "y": to_json_numbers([*lower, *reversed(upper)]),
        "fill": "toself",
        "fillcolor": _transparent(hex_color, 0.18),
    }


def _transparent(hex_color: str, opacity: float) -> str:
    red, green, blue = (int(hex_color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def figure(traces: Sequence[Trace], x_title: str, y_title: str, **layout: Any) -> Figure:
    """Make a figure. Colours of text and grid follow the theme of the page.

    Args:
        traces: Curves, bars or points.
        x_title: Title of the horizontal axis.
        y_title: Title of the vertical axis.
        **layout: Entries of Plotly's layout, which replace the usual ones.

    Returns:
        The figure.
    """
    x_axis = layout.pop("xaxis", {})
    y_axis = layout.pop("yaxis", {})
    axes = {
        "xaxis": {"title": {"text": x_title}, **x_axis},
        "yaxis": {"title": {"text": y_title}, **y_axis},
    }
    return {"data": list(traces), "layout": {**axes, **layout}}


def group_lines(
    groups: Sequence[RunGroup], values: Callable[[RunData], dict[int, float]], **options: Any
) -> list[Trace]:
    """Draw one line per group."""
    traces = []
    for index, group in enumerate(groups):
        traces += line_trace([values(run) for run in group.runs], group.label, index, **options)
    return traces


# ------------------------------------------------------------------ scores


def scores_of_one_method(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw the scores of one method over rounds, and the players' utilities on a second axis."""
    runs = groups[0].runs
    traces: list[Trace] = []
    for index, name in enumerate(NAMED):
        scores = [run.scores_by_round(name) for run in runs]
        is_same = scores == [run.scores_by_round("trained") for run in runs]
        if name == "personal" and is_same:  # the method makes no personal models of its own
            continue
        traces += line_trace(scores, SCORE_TITLES[name], index, **display.line_options)
    layout: Figure = {"yaxis": display.axis}
    for index, side in enumerate(("global", "local"), start=len(NAMED)):
        utilities = [_utility(run, side) for run in runs]
        options: Trace = {"bounds": NON_NEGATIVE, "yaxis": "y2", "opacity": 0.65}
        utility_traces = line_trace(utilities, f"utility, {side}", index, **options)
        if utility_traces and utility_traces[-1]["mode"] == "lines":
            utility_traces[-1]["line"]["dash"] = "dot"
        traces += utility_traces
        if utility_traces:
            layout["yaxis2"] = {
                "title": {"text": "utility, 1/loss"},
                "overlaying": "y",
                "side": "right",
                "tickmode": "auto",
            }
    return figure(traces, "round", display.label, **layout) if traces else None


def _utility(run: RunData, side: str) -> dict[int, float]:
    logged = run.logged_by_round(f"log_utility_{side}")
    return {t: math.exp(min(value, MAX_LOG_UTILITY)) for t, value in logged.items()}


def score_of_methods(
    groups: Sequence[RunGroup], display: MetricDisplay, name: str
) -> Figure | None:
    """Draw one score of several methods over rounds.

    Args:
        groups: Runs by method.
        display: Name and unit of the metric.
        name: Which of the four evaluations.

    Returns:
        The figure; None if no run has this score.
    """
    traces = group_lines(groups, lambda run: run.scores_by_round(name), **display.line_options)
    return figure(traces, "round", display.label, yaxis=display.axis) if traces else None


def score_path(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw how the first seed's global and personal scores move together over rounds."""
    run = groups[0].first_run
    global_scores = run.scores_by_round("global")
    personal_scores = run.scores_by_round("personal")
    rounds = thin(sorted(global_scores.keys() & personal_scores.keys()))
    if len(rounds) < 2:
        return None
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": GREY, "width": 1},
        "showlegend": False,
        "x": to_json_numbers(display.scale * global_scores[t] for t in rounds),
        "y": to_json_numbers(display.scale * personal_scores[t] for t in rounds),
        "text": [f"round {t}" for t in rounds],
        "hovertemplate": "%{text}: global %{x:.2f}, personal %{y:.2f}<extra></extra>",
        "marker": {
            "size": 7,
            "color": rounds,
            "colorscale": "Cividis",
            "showscale": True,
            "colorbar": {"thickness": 12, "title": {"text": "round"}},
        },
    }
    return figure([trace], f"global {display.label}", f"personal {display.label}")


def global_against_personal(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw each method as a point, global against personal score, with the Pareto front."""
    points: dict[str, Point] = {}
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        seeds = [point for run in group.runs if (point := _last_point(run, display)) is not None]
        if not seeds:
            continue
        x_values = [x for x, _ in seeds]
        y_values = [y for _, y in seeds]
        points[group.label] = (fmean(x_values), fmean(y_values))
        shared = {"type": "scatter", "mode": "markers", "legendgroup": group.label}
        marker = {"color": color(index), "symbol": symbol(index)}
        mean_point: Trace = {
            **shared,
            "x": [to_json_number(fmean(x_values))],
            "y": [to_json_number(fmean(y_values))],
            "name": group.label,
            "showlegend": True,
            "marker": {**marker, "size": 12},
        }
        if len(seeds) > 1:
            seed_points = {"x": to_json_numbers(x_values), "y": to_json_numbers(y_values)}
            hidden = {"showlegend": False, "hoverinfo": "skip"}
            faint = {**marker, "size": 6, "opacity": 0.4}
            traces.append({**shared, **seed_points, **hidden, "marker": faint})
            mean_point["error_x"] = _error_bar(x_values, display.bounds)
            mean_point["error_y"] = _error_bar(y_values, display.bounds)
        traces.append(mean_point)
    if len(points) < 2:
        return None
    front = pareto_front(points, display.higher_is_better)
    front_line = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "line": {"color": GREY, "dash": "dash"},
        "x": [points[name][0] for name in front],
        "y": [points[name][1] for name in front],
        "hoverinfo": "skip",
    }
    return figure([front_line, *traces], f"global {display.label}", f"personal {display.label}")


def _last_point(run: RunData, display: MetricDisplay) -> Point | None:
    """Return global and personal score of the last evaluation, if it has both."""
    global_scores = run.scores_by_round("global")
    personal_scores = run.scores_by_round("personal")
    last = max(personal_scores, default=None)
    if last is None or last not in global_scores:
        return None
    return display.scale * global_scores[last], display.scale * personal_scores[last]


def _error_bar(values: Sequence[float], bounds: tuple[float, float]) -> Trace:
    """Draw the standard deviation over seeds, clipped to the range of the metric."""
    mean = fmean(values)
    std = stdev(values)
    up = to_json_number(min(std, bounds[1] - mean))
    down = to_json_number(min(std, mean - bounds[0]))
    return {"symmetric": False, "array": [up], "arrayminus": [down]}


def write_pareto_svg(
    points: Mapping[str, Point], title: str, path: Path, unit: str, higher_is_better: bool
) -> bool:
    """Write the Pareto plot of a comparison as SVG.

    Args:
        points: Global and personal score by method.
        title: Title of the plot.
        path: File to write.
        unit: Unit of the scores.
        higher_is_better: Whether larger scores are better.

    Returns:
        False if the extra ``plot`` (Matplotlib) is not installed.
    """
    try:
        from matplotlib.figure import Figure as MatplotlibFigure
    except ImportError:
        return False
    plot = MatplotlibFigure(figsize=(8, 5.5), layout="constrained")
    axes = plot.subplots()
    front = pareto_front(points, higher_is_better)
    direction = "" if higher_is_better else " (less is better)"
    front_x = [points[name][0] for name in front]
    front_y = [points[name][1] for name in front]
    axes.plot(front_x, front_y, "--", color="#999999", zorder=1)
    for name, (x, y) in points.items():
        axes.scatter([x], [y], color="#D55E00" if name in front else "#0072B2", zorder=2)
        axes.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel(f"global model on the server's test set, {unit}{direction}")
    axes.set_ylabel(f"personal models on their own test sets, {unit}{direction}")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    io.write_with(path, lambda file: plot.savefig(file, metadata={"Date": None}))
    return True
