"""Decisions as heat maps over clients and rounds: lists are streamed from disk and averaged into a bounded grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.methods.fedpolicy.state import BlockSets
from equipoise.records.rounds import RoundRecord
from equipoise.report.page.drawing import Figure, number
from equipoise.report.reading import Run

MOST_CLIENTS, MOST_ROUNDS = 200, 300  # cells of a picture; more are averaged
BUSY = 2_000_000  # entries of one list, from which every so many rounds are looked at
TITLES = {
    "epochs": "Epochs that each client chose",
    "lr": "Learning rate that each client chose",
    "p": "Weight of each client's update in the aggregate",
    "gradients": "Gradient steps of each client",
    "joules": "Energy that each client spent, J",
    "excess": "Energy above the budget, as a part of it",
    "multiplier": "Price of energy (multiplier of the budget)",
}
GIVEN = "Who was given the {} (share of rounds)"
LOGARITHMIC = ("lr",)
RESOURCES = ("gradients", "joules", "excess", "multiplier")  # what is spent rather than decided

Floats = npt.NDArray[np.float64]


class Grid:
    """Sums and counts of one quantity in cells of some clients by some rounds."""

    def __init__(self, clients: int, last: int) -> None:
        self.clients, self.last = clients, last
        shape = (min(clients, MOST_CLIENTS), min(last, MOST_ROUNDS))
        self.total, self.count = np.zeros(shape), np.zeros(shape)

    def add(self, t: int, ids: npt.NDArray[np.int64], values: Floats) -> None:
        row = ids * self.total.shape[0] // self.clients
        column = np.full_like(row, (t - 1) * self.total.shape[1] // self.last)
        known = np.isfinite(values)
        np.add.at(self.total, (row[known], column[known]), values[known])
        np.add.at(self.count, (row[known], column[known]), 1)

    def mean(self) -> Floats:
        unknown = self.count == 0
        return np.where(unknown, np.nan, self.total / np.where(unknown, 1, self.count))


def grids(run: Run) -> dict[str, Grid]:
    """Every per-client list of the rounds: epochs, rates, and what the method noted."""
    last, clients = run.last, run.most_clients
    stride = max(1, math.ceil(clients * last / BUSY))
    found: dict[str, Grid] = {}
    parts = BlockSets.parse(str(run.config.get("parts", "")))
    for record in run.folder.stream():
        t = record.round
        if t % stride and t != last:
            continue
        ids = replied(record)
        for name, values in _lists(record, parts).items():
            here = ids if len(values) == len(ids) else ids[~np.isin(ids, record.dropped)]
            if len(here) == len(values) and here.max() < clients:
                found.setdefault(name, Grid(clients, last)).add(t, here, values)
    return found


def replied(record: RoundRecord) -> npt.NDArray[np.int64]:
    """The clients of a round's lists."""
    return np.arange(record.clients) if record.ids is None else np.asarray(record.ids, np.int64)


def _lists(record: RoundRecord, parts: BlockSets) -> dict[str, Floats]:
    everything = {**(record.decisions or {}), **record.logged}
    lists = {
        name: np.asarray(v, np.float64)
        for name, v in everything.items()
        if isinstance(v, list) and v
    }
    if "part" in lists:  # who was given a block can be averaged, numbers of parts cannot
        taken = parts.membership.numpy()[lists.pop("part").astype(np.int64)].astype(np.float64)
        lists |= {
            GIVEN.format(block): taken[:, column] for column, block in enumerate(parts.blocks)
        }
    return lists


def heat_map(name: str, grid: Grid) -> tuple[str, Figure, str] | None:
    """Title, figure and caption; nothing where all entries are alike."""
    mean = grid.mean()
    if not np.isfinite(mean).any() or np.nanmin(mean) == np.nanmax(mean):
        return None
    rows, columns = mean.shape
    shown = (
        np.log10(mean, where=mean > 0, out=np.full_like(mean, np.nan))
        if name in LOGARITHMIC
        else mean
    )
    x = [1 + (i * grid.last) // columns for i in range(columns)]
    y = [(i * grid.clients) // rows for i in range(rows)]
    low, high = np.nanquantile(
        shown, [0.01, 0.99]
    ).tolist()  # a few extremes must not flatten all colours
    ends = {"zmin": number(low), "zmax": number(high)} if low < high else {}
    trace: dict[str, Any] = {
        "type": "heatmap",
        **ends,
        "x": x,
        "y": y,
        "z": [[number(value) for value in row] for row in shown.tolist()],
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": "log₁₀" if name in LOGARITHMIC else ""}},
        "hovertemplate": "round %{x}, client %{y}: %{z:.4g}<extra></extra>",
    }
    noted = name if name.startswith(GIVEN[:8]) else f"'{name}', noted by the method"
    title = TITLES.get(name, noted)
    caption = "Colours end at the lowest and the highest hundredth."
    if rows < grid.clients or columns < grid.last:
        many = (
            f"{math.ceil(grid.clients / rows)} clients and {math.ceil(grid.last / columns)} rounds"
        )
        caption = f"Each cell is a mean over up to {many}. {caption}"
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "client"}}}
    return title, {"data": [trace], "layout": layout}, caption
