"""Plotly figures of clients: their scores and their data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from equipoise.report.figures import (
    GREY,
    Figure,
    MetricDisplay,
    Trace,
    color,
    figure,
    line_trace,
    quantiles,
    symbol,
    to_json_numbers,
)
from equipoise.report.run_data import RunGroup

MAX_BOX_POINTS = 200  # clients drawn as points of a box; more make the box alone
MAX_BOX_VALUES = 400
MAX_SCATTER_POINTS = 2000
MAX_PARTITION_CLIENTS = 200  # clients of the partition plot; of more, that many of them
MAX_NAMED_CLIENTS = 30  # clients up to which an axis names them


# ------------------------------------------------------------------ scores


def personal_score_boxes(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw the distribution of the clients' personal scores, all seeds together."""
    traces = []
    for index, group in enumerate(groups):
        scores = [score for run in group.runs for score in run.personal_scores]
        values = [display.scale * score for score in scores if math.isfinite(score)]
        if not values:
            continue
        traces.append(
            {
                "type": "box",
                "name": group.label,
                "showlegend": False,
                "marker": {"color": color(index)},
                "y": to_json_numbers(quantiles(values, MAX_BOX_VALUES)),
                "boxpoints": "all" if len(values) <= MAX_BOX_POINTS else False,
                "jitter": 0.5,
                "pointpos": 0,
                "boxmean": True,
            }
        )
    return figure(traces, "", f"{display.label}, a client each") if traces else None


def received_against_personal(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw each client's score with the received model against that with its personal one."""
    traces: list[Trace] = []
    values: list[float] = []
    max_clients = max(1, MAX_SCATTER_POINTS // len(groups))
    for index, group in enumerate(groups):
        run = group.first_run
        received = run.clients.get(f"received_{display.metric}", [])
        ids = run.clients.get("client", [])
        clients = list(zip(ids, received, run.personal_scores, strict=False))[:max_clients]
        if not clients:
            continue
        x_values = [display.scale * x for _, x, _ in clients]
        y_values = [display.scale * y for _, _, y in clients]
        values += [value for value in (*x_values, *y_values) if math.isfinite(value)]
        marker = {"color": color(index), "symbol": symbol(index), "size": 7, "opacity": 0.75}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": group.label,
                "x": to_json_numbers(x_values),
                "y": to_json_numbers(y_values),
                "text": [run.client_name(client) for client, _, _ in clients],
                "hovertemplate": "%{text}: %{x:.4g} → %{y:.4g}",
                "marker": marker,
            }
        )
    if not values:
        return None
    ends = to_json_numbers([min(values), max(values)])
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "name": "no change",
        "x": ends,
        "y": ends,
        "hoverinfo": "skip",
        "line": {"color": GREY, "dash": "dash", "width": 1},
    }
    x_title = f"received model: {display.label}"
    return figure([diagonal, *traces], x_title, f"personal model: {display.label}")


def heldout_clients(groups: Sequence[RunGroup], display: MetricDisplay) -> Figure | None:
    """Draw the scores of clients that training never saw, after some epochs of their own."""
    traces: list[Trace] = []
    for index, group in enumerate(groups):
        results = [summary.newcomers for summary in group.summaries if summary.newcomers]
        runs = []
        for result in results:
            scores = {
                epochs: metrics.get(display.metric) for epochs, metrics in result.after.items()
            }
            runs.append({epochs: value for epochs, value in scores.items() if value is not None})
        if runs:
            options = {**display.line_options, "mode": "lines+markers"}
            traces += line_trace(runs, group.label, index, **options)
    x_title = "epochs (of agents: steps) of a newcomer's own training"
    return figure(traces, x_title, display.label) if traces else None


# ------------------------------------------------------------------ data


def label_partition(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the share of each class in each client's training data, similar clients together."""
    run = next((run for group in groups for run in group.runs if run.labels), None)
    if run is None:
        return None
    classes = [name for name in run.labels if name != "client"]
    counts = np.array([run.labels[name] for name in classes]).T
    clients = np.array(run.labels["client"])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    order = np.lexsort((-shares.max(1), shares.argmax(1)))
    num_shown = min(len(order), MAX_PARTITION_CLIENTS)
    order = order[np.linspace(0, len(order) - 1, num_shown).astype(int)]
    names = [run.client_name(clients[i]) for i in order]
    texts = [
        [f"{name}: {count:.0f} of {counts[i].sum():.0f}" for count in counts[i]]
        for name, i in zip(names, order, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "x": classes,
        "z": [to_json_numbers(row) for row in shares[order].tolist()],
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": "share"}},
        "text": texts,
        "hovertemplate": "%{text} samples of class %{x}<extra></extra>",
    }
    axis: Figure = {"showticklabels": False}
    if len(names) <= MAX_NAMED_CLIENTS:
        axis = {"tickvals": list(range(len(names))), "ticktext": names, "automargin": True}
    y_title = "clients, by their largest class"
    return figure([trace], "class", y_title, xaxis={"type": "category"}, yaxis=axis)


def client_sizes(groups: Sequence[RunGroup]) -> Figure | None:
    """Draw the number of training samples of each client, largest first; None if all are equal."""
    runs = (run for group in groups for run in group.runs if run.clients.get("samples"))
    run = next(runs, None)
    if run is None:
        return None
    sizes = run.clients["samples"]
    if min(sizes) == max(sizes):
        return None
    bars: Trace = {"type": "bar", "marker": {"color": color(0)}}
    if run.names and len(sizes) <= MAX_NAMED_CLIENTS:
        ordered = sorted(zip(sizes, run.clients["client"], strict=True), reverse=True)
        bars["x"] = [run.client_name(client) for _, client in ordered]
        bars["y"] = to_json_numbers(size for size, _ in ordered)
        return figure([bars], "", "training samples", xaxis={"type": "category"})
    shown = sorted(quantiles(sizes, MAX_PARTITION_CLIENTS), reverse=True)
    bars["y"] = to_json_numbers(shown)
    hidden = {"showticklabels": False}
    return figure([bars], "clients, by their size", "training samples", xaxis=hidden, bargap=0)
