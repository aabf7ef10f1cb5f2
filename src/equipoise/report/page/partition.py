"""Who holds what: the classes and the sizes of the clients' training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.report.page.drawing import Figure, Score, colour, figure, numbers, quantiles
from equipoise.report.reading import Group

EACH = 200  # clients that are drawn; of more, so many
NAMED = 30  # clients up to which the axis names them


def labels(groups: Sequence[Group], score: Score) -> Figure | None:
    """Who holds what: the share of each class in each client's training data, alike clients together."""
    run = next((run for group in groups for run in group.runs if run.labels), None)
    if run is None:
        return None
    table = run.labels
    classes = [name for name in table if name != "client"]
    counts = np.array([table[name] for name in classes]).T
    clients = np.array(table["client"])
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    order = np.lexsort((-share.max(1), share.argmax(1)))
    order = order[np.linspace(0, len(order) - 1, min(len(order), EACH)).astype(int)]
    trace = {
        **{"type": "heatmap", "x": classes, "z": [numbers(row) for row in share[order].tolist()]},
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": "share"}},
        "text": [
            [f"{run.called(clients[i])}: {n:.0f} of {counts[i].sum():.0f}" for n in counts[i]]
            for i in order
        ],
        "hovertemplate": "%{text} samples of class %{x}<extra></extra>",
    }
    names = [run.called(clients[i]) for i in order]
    named = {"tickvals": list(range(len(names))), "ticktext": names, "automargin": True}
    axis = named if len(names) <= NAMED else {"showticklabels": False}
    return figure(
        [trace], "class", "clients, by their largest class", xaxis={"type": "category"}, yaxis=axis
    )


def sizes(groups: Sequence[Group], score: Score) -> Figure | None:
    """How much everybody has: training samples of each client, from the most to the fewest; where they differ."""
    held = next(
        (own for group in groups for run in group.runs if (own := run.clients.get("samples"))), []
    )
    if not held or min(held) == max(held):
        return None
    bars = {
        "type": "bar",
        "y": numbers(sorted(quantiles(held, EACH), reverse=True)),
        "marker": {"color": colour(0)},
    }
    return figure(
        [bars],
        "clients, by their size",
        "training samples",
        xaxis={"showticklabels": False},
        bargap=0,
    )
