"""Which part of the model clients were given: shares of the choices over rounds, and by evenness of the labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.methods.fedpolicy.state import PAPER_PARTS, BlockSets
from equipoise.report.page.drawing import Figure, colour, figure, numbers
from equipoise.report.page.heat import BUSY, MOST_ROUNDS, replied
from equipoise.report.reading import Run

BINS = 5  # groups of clients with about equally many in each

Floats = npt.NDArray[np.float64]


def parts_of(run: Run) -> BlockSets:
    """The sets of blocks among which the run's method chose."""
    return BlockSets.parse(str(run.config.get("parts", "")))


def counted(run: Run) -> tuple[Floats, Floats] | None:
    """How often each part was chosen: ``[rounds, parts]``, neighbouring rounds together, and ``[clients, parts]``."""
    last, clients = run.last, run.most_clients
    stride = max(1, math.ceil(clients * last / BUSY))
    parts = len(parts_of(run))
    by_round, by_client = np.zeros((min(last, MOST_ROUNDS), parts)), np.zeros((clients, parts))
    for record in run.folder.stream():
        t, part, ids = (
            record.round,
            np.asarray(record.logged.get("part", []), np.int64),
            replied(record),
        )
        if (t % stride and t != last) or len(part) != len(ids) or ids.max() >= clients:
            continue
        by_round[(t - 1) * len(by_round) // last] += np.bincount(part, minlength=parts)
        np.add.at(by_client, (ids, part), 1)
    return (by_round, by_client) if by_round.any() else None


def over_rounds(by_round: Floats, last: int, parts: tuple[str, ...] = PAPER_PARTS) -> Figure:
    """One stacked area per part; rounds in which nobody was counted are left out."""
    seen = by_round.sum(1) > 0
    x = (1 + np.arange(len(by_round)) * last // len(by_round))[seen].tolist()
    share = 100 * by_round[seen] / by_round[seen].sum(1, keepdims=True)
    traces = [
        {
            **{"type": "scatter", "mode": "lines", "stackgroup": "parts", "name": part, "x": x},
            **{"y": numbers(share[:, i].tolist()), "line": {"color": colour(i), "width": 0.5}},
        }
        for i, part in enumerate(parts)
        if share[:, i].any()
    ]
    return figure(traces, "round", "share of clients, %", yaxis={"range": [0, 100]})


def evenness(labels: dict[str, list[float]]) -> tuple[npt.NDArray[np.int64], Floats]:
    """Clients, and the entropy of each one's labels as a part of the largest possible."""
    counts = np.array([column for name, column in labels.items() if name != "client"]).T
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(1) / math.log(
        max(2, counts.shape[1])
    )
    return np.array(labels["client"], np.int64), np.abs(entropy)  # no minus before a zero


def by_evenness(
    by_client: Floats, labels: dict[str, list[float]], parts: tuple[str, ...] = PAPER_PARTS
) -> Figure | None:
    """Clients in groups from few classes to all alike; each bar is the choices of one group."""
    if not labels:
        return None
    ids, entropy = evenness(labels)
    ids, entropy = ids[ids < len(by_client)], entropy[ids < len(by_client)]
    groups = [
        group for group in np.array_split(np.argsort(entropy, kind="stable"), BINS) if len(group)
    ]
    totals = np.array([by_client[ids[group]].sum(0) for group in groups])
    share = 100 * totals / np.maximum(totals.sum(1, keepdims=True), 1)
    names = [f"{entropy[group].min():.2f} – {entropy[group].max():.2f}" for group in groups]
    traces: list[dict[str, Any]] = [
        {
            **{
                "type": "bar",
                "name": part,
                "x": list(range(len(groups))),
                "y": numbers(share[:, i].tolist()),
            },
            **{"marker": {"color": colour(i)}, "hovertemplate": "%{y:.1f} %"},
        }
        for i, part in enumerate(parts)
        if share[:, i].any()
    ]
    ticks = {"tickvals": list(range(len(groups))), "ticktext": names}
    return figure(traces, "evenness of labels", "share of choices, %", xaxis=ticks, barmode="stack")
