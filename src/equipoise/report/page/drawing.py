"""Plotly figures as plain dictionaries: palette, lines with bands, bounded numbers of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from equipoise.report.paired import half_width
from equipoise.utils.metrics import higher_is_better

Figure = dict[str, Any]

# Okabe and Ito's colours, told apart by colour-blind readers; without black and yellow, which one theme swallows.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8A7CC2", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star")
POINTS = 500  # of a line
GREY = "#8C8C8C"


class Score:
    """How a headline is written: accuracies in per cent, errors on a logarithmic axis."""

    def __init__(self, headline: str) -> None:
        self.headline = headline
        self.scale = 100.0 if headline == "acc" else 1.0
        self.words = "accuracy, %" if headline == "acc" else headline
        self.axis = {"type": "log"} if headline == "error" else {}
        self.higher = higher_is_better(headline)


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """Once all colours are in use, the next lines are dashed."""
    return DASHES[index // len(PALETTE) % len(DASHES)]


def symbol(index: int) -> str:
    return SYMBOLS[index // len(PALETTE) % len(SYMBOLS)]


def number(value: float | None) -> float | None:
    """Four digits are enough for a picture; JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def numbers(values: Iterable[float | None]) -> list[float | None]:
    return [number(value) for value in values]


def quantiles(values: Sequence[float], most: int) -> list[float]:
    """As they are, or as so many quantiles: a box of them is the same."""
    if len(values) <= most:
        return list(values)
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, most))]


def thin(rounds: Sequence[int]) -> list[int]:
    """At most :data:`POINTS` of them, evenly, with the last."""
    if len(rounds) <= POINTS:
        return list(rounds)
    step = math.ceil(len(rounds) / (POINTS - 1))
    return [*rounds[: len(rounds) - 1 : step], rounds[-1]]


def line(
    runs: Sequence[Mapping[int, float]], name: str, index: int, *, scale: float = 1.0, **more: Any
) -> list[dict[str, Any]]:
    """The mean over seeds by round, with a band where there are several (see :func:`band`)."""
    rounds = thin(sorted(set().union(*runs)))
    if not rounds:
        return []
    values = [[scale * run[t] for run in runs if t in run] for t in rounds]
    style = {"color": colour(index), "dash": dash(index), "width": 2}
    # One evaluation is no line: show it as a point.
    mode = "lines" if len(rounds) > 1 else "markers"
    main = {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": rounds,
        "y": numbers(map(fmean, values)),
        "line": style,
        "legendgroup": name,
        **more,
    }
    if len(runs) < 2 or len(rounds) < 2:
        return [main]
    shade = {
        **{
            "type": "scatter",
            "mode": "lines",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        "x": [*rounds, *reversed(rounds)],
        "y": numbers([*(band(v)[0] for v in values), *(band(v)[1] for v in reversed(values))]),
        **{
            "fill": "toself",
            "fillcolor": transparent(colour(index), 0.18),
            "legendgroup": name,
            **more,
        },
    }
    return [shade, main]


def band(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean from three seeds on; of two, for which it says nothing, their range."""
    if len(values) < 3:
        return min(values), max(values)
    mean, half = fmean(values), half_width(values)
    return mean - half, mean + half


def transparent(hexadecimal: str, opacity: float) -> str:
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def figure(traces: Sequence[dict[str, Any]], x: str, y: str, **layout: Any) -> Figure:
    """Axis titles and the rest of the layout; colours of text and grid are the page's, by theme."""
    extra_x, extra_y = layout.pop("xaxis", {}), layout.pop("yaxis", {})
    return {
        "data": list(traces),
        "layout": {
            "xaxis": {"title": {"text": x}, **extra_x},
            "yaxis": {"title": {"text": y}, **extra_y},
            **layout,
        },
    }
