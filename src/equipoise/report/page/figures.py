"""The pictures of the report: each takes the groups and gives a figure, or nothing where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np

from equipoise.records.summary import NAMED
from equipoise.report.folders import Group, Run
from equipoise.report.page import pareto
from equipoise.report.page.drawing import GREY, Figure, Score, colour, dash, figure, line, number, numbers, symbol, thin

EACH = 200  # clients that are drawn as points of a box; more make the box alone
SCATTERED = 2000  # clients of a scatter plot

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
    utilities = {side: [_exp(run.note(f"log_utility_{side}")) for run in group.runs] for side in ("global", "local")}
    for index, (side, runs) in enumerate(utilities.items()):
        for trace in line(runs, f"utility, {side}", 4 + index, yaxis="y2", opacity=0.65):
            trace["line"] |= {"dash": "dot"} if trace["mode"] == "lines" and "fill" not in trace else {}
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
            for trace in line([run.series(name) for run in group.runs], group.label, index, scale=score.scale)
        ]
        return figure(traces, "round", score.words, yaxis=score.axis) if traces else None

    return draw


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
        seeds = {"type": "scatter", "mode": "markers", "x": numbers(xs), "y": numbers(ys), "showlegend": False}
        if len(known) > 1:
            traces.append(
                {
                    **{**seeds, "hoverinfo": "skip", "legendgroup": group.label},
                    "marker": {"color": colour(index), "symbol": symbol(index), "size": 6, "opacity": 0.4},
                }
            )
        point: dict[str, Any] = {
            **{**seeds, "x": [number(fmean(xs))], "y": [number(fmean(ys))], "name": group.label, "showlegend": True},
            "marker": {"color": colour(index), "symbol": symbol(index), "size": 12},
            "legendgroup": group.label,
        }
        if len(known) > 1:
            point |= {f"error_{way}": {"array": [number(stdev(v))]} for way, v in (("x", xs), ("y", ys))}
        traces.append(point)
    if len(points) < 2:
        return None
    best = pareto.front(points, score.higher)
    front = {
        **{"type": "scatter", "mode": "lines", "name": "Pareto front", "line": {"color": GREY, "dash": "dash"}},
        **{"x": [points[name][0] for name in best], "y": [points[name][1] for name in best], "hoverinfo": "skip"},
    }
    return figure([front, *traces], f"global {score.words}", f"personal {score.words}")


def path_of_one(groups: Sequence[Group], score: Score) -> Figure | None:
    """One run's way through the plane of global and personal score."""
    run = groups[0].first
    ours, theirs = run.series("global"), run.series("personal")
    rounds = thin(sorted(set(ours) & set(theirs)))
    if len(rounds) < 2:
        return None
    trace = {
        **{"type": "scatter", "mode": "lines+markers", "line": {"color": GREY, "width": 1}, "showlegend": False},
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


def spread(groups: Sequence[Group], score: Score) -> Figure | None:
    """Distribution of the clients' personal scores, all seeds together."""
    traces = []
    for index, group in enumerate(groups):
        values = [score.scale * v for run in group.runs for v in after(run) if math.isfinite(v)]
        if values:
            traces.append(
                {
                    **{"type": "box", "name": group.label, "showlegend": False, "marker": {"color": colour(index)}},
                    "y": numbers(_quantiles(values, 400)),
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
        pairs = list(zip(run.clients.get("client", []), before, after(run), strict=False))[:share]
        if not pairs:
            continue
        xs, ys = [score.scale * x for _, x, _ in pairs], [score.scale * y for _, _, y in pairs]
        seen += [v for v in (*xs, *ys) if math.isfinite(v)]
        traces.append(
            {
                **{"type": "scatter", "mode": "markers", "name": group.label, "x": numbers(xs), "y": numbers(ys)},
                "text": [f"client {client:.0f}" for client, _, _ in pairs],
                "hovertemplate": "%{text}: %{x:.4g} → %{y:.4g}",
                "marker": {"color": colour(index), "symbol": symbol(index), "size": 7, "opacity": 0.75},
            }
        )
    if not seen:
        return None
    ends = numbers([min(seen), max(seen)])
    same = {
        **{"type": "scatter", "mode": "lines", "name": "no change", "x": ends, "y": ends, "hoverinfo": "skip"},
        "line": {"color": GREY, "dash": "dash", "width": 1},
    }
    return figure([same, *traces], f"received model: {score.words}", f"personal model: {score.words}")


def training(what: str) -> Callable[[Sequence[Group], Score], Figure | None]:
    """Epochs or rates as taken: the mean over clients, with a band from the least to the most."""

    def draw(groups: Sequence[Group], score: Score) -> Figure | None:
        traces: list[dict[str, Any]] = []
        for index, group in enumerate(groups):
            taken = {log["round"]: log["train"][what] for log in group.first.logs if log["train"].get(what)}
            if any(value["min"] != value["max"] or value != next(iter(taken.values())) for value in taken.values()):
                ends: list[dict[int, float]] = [{t: v[end] for t, v in taken.items()} for end in ("min", "max")]
                means = line([{t: v["mean"] for t, v in taken.items()}], group.label, index)
                traces += [*line(ends, group.label, index)[:1], *means]
        axis: dict[str, Any] = {"type": "log", "dtick": 1} if what == "lr" else {}
        words = {"epochs": "epochs a round", "lr": "learning rate"}[what]
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
    """What the bytes bought: personal score (solid) and global score (dotted) against the traffic so far."""
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        sent = _sent(group.first)
        for name, style in (("personal", dash(index)), ("global", "dot")):
            points = group.first.series(name)
            rounds = thin(sorted(points))
            if rounds and sent[rounds[-1]]:
                traces.append(
                    {
                        **{"type": "scatter", "mode": "lines", "name": f"{group.label}, {name}"},
                        "x": numbers(sent[t] for t in rounds),
                        "y": numbers(score.scale * points[t] for t in rounds),
                        "line": {"color": colour(index), "dash": style, "width": 2},
                    }
                )
    return figure(traces, "MB up and down so far", score.words, yaxis=score.axis) if traces else None


def seconds(groups: Sequence[Group], score: Score) -> Figure | None:
    """Time of a round on the machine that ran it."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line([{log["round"]: log["seconds"] for log in group.first.logs}], group.label, index)
    ]
    return figure(traces, "round", "seconds a round", yaxis={"rangemode": "tozero"})


def newcomers(groups: Sequence[Group], score: Score) -> Figure | None:
    """Clients that training never saw, after some epochs of their own."""
    traces = []
    for index, group in enumerate(groups):
        runs = [
            {int(k): v[score.headline] for k, v in found.items() if k != "clients"}
            for summary in group.summaries
            if (found := summary.get("newcomers"))
        ]
        traces += line(runs, group.label, index, scale=score.scale, mode="lines+markers") if runs else []
    return figure(traces, "epochs (of agents: steps) of a newcomer's own training", score.words) if traces else None


def labels(groups: Sequence[Group], score: Score) -> Figure | None:
    """Who holds what: the share of each class in each client's training data, alike clients together."""
    table = next((run.labels for group in groups for run in group.runs if run.labels), {})
    classes = [name for name in table if name != "client"]
    if not classes:
        return None
    counts = np.array([table[name] for name in classes]).T
    clients = np.array(table["client"])
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    order = np.lexsort((-share.max(1), share.argmax(1)))
    order = order[np.linspace(0, len(order) - 1, min(len(order), EACH)).astype(int)]
    trace = {
        **{"type": "heatmap", "x": classes, "z": [numbers(row) for row in share[order].tolist()]},
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": "share"}},
        "text": [[f"client {clients[i]:.0f}: {n:.0f} of {counts[i].sum():.0f}" for n in counts[i]] for i in order],
        "hovertemplate": "%{text} samples of class %{x}<extra></extra>",
    }
    return figure([trace], "class", "clients, by their largest class", yaxis={"showticklabels": False})


def sizes(groups: Sequence[Group], score: Score) -> Figure | None:
    """How much everybody has: training samples of each client, from the most to the fewest; where they differ."""
    held = next((own for group in groups for run in group.runs if (own := run.clients.get("samples"))), [])
    if not held or min(held) == max(held):
        return None
    bars = {"type": "bar", "y": numbers(sorted(_quantiles(held, EACH), reverse=True)), "marker": {"color": colour(0)}}
    return figure([bars], "clients, by their size", "training samples", xaxis={"showticklabels": False}, bargap=0)


def theory(groups: Sequence[Group], score: Score) -> Figure | None:
    """Error of the server's table against steps, beside the slope of the theory, hung on the last point."""
    if score.headline != "error":
        return None
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        errors = {} if group.first.series("received", "subspace") else group.first.series("global")  # of tables alone
        steps = list(accumulate(log["train"]["epochs"]["mean"] for log in group.first.logs))
        at = {log["round"]: step for log, step in zip(group.first.logs, steps, strict=True)}
        rounds = thin([t for t in sorted(errors) if errors[t] > 0])
        if len(rounds) < 2:
            continue
        x = [at[t] for t in rounds]
        style = {"color": colour(index), "dash": dash(index), "width": 2}
        measured = {"type": "scatter", "mode": "lines", "name": group.label, "line": style, "legendgroup": group.label}
        traces.append({**measured, "x": numbers(x), "y": numbers(errors[t] for t in rounds)})
        predicted = [errors[rounds[-1]] * math.sqrt(x[-1] / step) for step in x]
        fainter = {**style, "dash": "dot", "width": 1}
        traces.append({**measured, "name": "∝ 1/√steps", "line": fainter, "x": numbers(x), "y": numbers(predicted)})
    axes: dict[str, Any] = {"xaxis": {"type": "log"}, "yaxis": {"type": "log"}}
    return figure(traces, "steps of an agent", "(1 − γ) max |Q − Q*|", **axes) if traces else None


def subspace(groups: Sequence[Group], score: Score) -> Figure | None:
    """Agents with a shared representation: its distance from the true subspace over rounds."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line([run.series("received", "subspace") for run in group.runs], group.label, index)
    ]
    return figure(traces, "round", "sine of the largest angle", yaxis={"type": "log"}) if traces else None


def privacy(groups: Sequence[Group], score: Score) -> Figure | None:
    """Under differential privacy: epsilon so far."""
    traces = [
        trace
        for index, group in enumerate(groups)
        for trace in line([run.series("privacy", "epsilon") for run in group.runs], group.label, index)
    ]
    return figure(traces, "round", "epsilon") if traces else None


def after(run: Run) -> list[float]:
    """Each client's score with its personal model, which is the trained one where the method makes no other."""
    head = run.headline
    return run.clients.get(f"personal_{head}") or run.clients.get(f"trained_{head}", [])


def _sent(run: Run) -> dict[int, float]:
    total = accumulate((log["bytes"]["up"] + log["bytes"]["down"]) / 1e6 for log in run.logs)
    return {log["round"]: megabytes for log, megabytes in zip(run.logs, total, strict=True)}


def _last(run: Run, score: Score) -> tuple[float | None, float | None]:
    ours, theirs = run.series("global"), run.series("personal")
    at = max(theirs, default=None)
    if at is None or at not in ours:
        return None, None
    return score.scale * ours[at], score.scale * theirs[at]


def _exp(values: dict[int, float]) -> dict[int, float]:
    return {t: math.exp(min(value, 50.0)) for t, value in values.items()}


def _quantiles(values: Sequence[float], most: int) -> list[float]:
    """As they are, or as so many quantiles: a box of them is the same."""
    if len(values) <= most:
        return list(values)
    return [float(v) for v in np.quantile(values, np.linspace(0, 1, most))]
