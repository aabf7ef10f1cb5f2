"""Plotly figures of decisions over clients and rounds.

Per-client lists are streamed from disk and averaged into grids of bounded size.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from equipoise.methods.fedpolicy.state import PAPER_PARTS, BlockSets
from equipoise.records.rounds import RoundRecord
from equipoise.report.figures import (
    Figure,
    Trace,
    color,
    figure,
    to_json_number,
    to_json_numbers,
)
from equipoise.report.run_data import RunData

MAX_GRID_CLIENTS = 200  # rows of a heat map; more clients are averaged
MAX_GRID_ROUNDS = 300  # columns of a heat map; more rounds are averaged
MAX_LIST_ENTRIES = 2_000_000  # clients times rounds above which rounds are skipped
NUM_EVENNESS_BINS = 5

GRID_TITLES = {
    "epochs": "Epochs that each client chose",
    "lr": "Learning rate that each client chose",
    "p": "Weight of each client's update in the aggregate",
    "gradients": "Gradient steps of each client",
    "joules": "Energy that each client spent, J",
    "excess": "Energy above the budget, as a part of it",
    "multiplier": "Price of energy (multiplier of the budget)",
}
GIVEN_BLOCK = "Who was given the {} (share of rounds)"
MIN_FILLED_ROUNDS = 0.1  # share of the rounds that must have an entry to be worth a heatmap
LOG_SCALE_NAMES = ("lr",)
RESOURCE_NAMES = ("gradients", "joules", "excess", "multiplier")  # spent rather than decided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class ClientRoundGrid:
    """Means of one quantity over cells of some clients by some rounds."""

    def __init__(self, num_clients: int, num_rounds: int) -> None:
        """Create an empty grid of clients and rounds."""
        self.num_clients = num_clients
        self.num_rounds = num_rounds
        shape = (min(num_clients, MAX_GRID_CLIENTS), min(num_rounds, MAX_GRID_ROUNDS))
        self.sums = np.zeros(shape)
        self.counts = np.zeros(shape)

    def add(self, round: int, ids: Ints, values: Floats) -> None:
        """Add one round.

        Args:
            round: Number of the round, from 1.
            ids: Clients, ``[K]``.
            values: Their values, ``[K]``; those that are not finite are ignored.
        """
        rows = ids * self.sums.shape[0] // self.num_clients
        columns = np.full_like(rows, (round - 1) * self.sums.shape[1] // self.num_rounds)
        known = np.isfinite(values)
        cells = (rows[known], columns[known])
        np.add.at(self.sums, cells, values[known])
        np.add.at(self.counts, cells, 1)

    def mean(self) -> Floats:
        """Return the means ``[clients, rounds]``, NaN in cells without values."""
        is_empty = self.counts == 0
        return np.where(is_empty, np.nan, self.sums / np.where(is_empty, 1, self.counts))


def decision_grids(run: RunData) -> dict[str, ClientRoundGrid]:
    """Average every per-client list of a run: epochs, learning rates and what the method logged."""
    parts = model_parts(run)
    grids: dict[str, ClientRoundGrid] = {}
    for record in run.folder.stream():
        if _skip_round(run, record.round):
            continue
        replied = _replied_ids(record)
        for name, values in _client_lists(record, parts).items():
            ids = replied
            if len(values) != len(ids):  # clients that were dropped have no entry
                ids = ids[~np.isin(ids, record.dropped)]
            if len(ids) == len(values) and ids.max() < run.num_clients:
                grid = grids.setdefault(name, ClientRoundGrid(run.num_clients, run.last_round))
                grid.add(record.round, ids, values)
    return grids


def _skip_round(run: RunData, round: int) -> bool:
    """Skip rounds of very large runs, but never the last one."""
    stride = max(1, math.ceil(run.num_clients * run.last_round / MAX_LIST_ENTRIES))
    return round % stride != 0 and round != run.last_round


def _replied_ids(record: RoundRecord) -> Ints:
    """Return the clients that a round's lists are about."""
    if record.ids is None:
        return np.arange(record.clients)
    return np.asarray(record.ids, np.int64)


def _client_lists(record: RoundRecord, parts: BlockSets) -> dict[str, Floats]:
    """Return the per-client lists of a round as arrays ``[K]``."""
    entries = {**(record.decisions or {}), **record.logged}
    lists = {
        name: np.asarray(values, np.float64)
        for name, values in entries.items()
        if isinstance(values, list) and values
    }
    if "part" in lists:  # numbers of parts cannot be averaged, but who got a block can
        indices = lists.pop("part").astype(np.int64)
        membership = parts.membership.numpy()[indices].astype(np.float64)
        for column, block in enumerate(parts.blocks):
            lists[GIVEN_BLOCK.format(block)] = membership[:, column]
    return lists


def decision_heatmap(name: str, grid: ClientRoundGrid) -> tuple[str, Figure, str] | None:
    """Draw one quantity over clients and rounds.

    Args:
        name: Name of the quantity in the log.
        grid: Its means.

    Returns:
        Title, figure and caption; None if all entries are equal, or nearly all are missing.
    """
    mean = grid.mean()
    if not np.isfinite(mean).any() or np.nanmin(mean) == np.nanmax(mean):
        return None
    if np.isfinite(mean).any(0).mean() < MIN_FILLED_ROUNDS:
        return None
    num_rows, num_columns = mean.shape
    is_log = name in LOG_SCALE_NAMES
    shown = mean
    if is_log:
        shown = np.log10(mean, where=mean > 0, out=np.full_like(mean, np.nan))
    # A few extremes must not flatten all other colours.
    low, high = np.nanquantile(shown, [0.01, 0.99]).tolist()
    color_range = {}
    if low < high:
        color_range = {"zmin": to_json_number(low), "zmax": to_json_number(high)}
    trace: Trace = {
        "type": "heatmap",
        **color_range,
        "x": [1 + (i * grid.num_rounds) // num_columns for i in range(num_columns)],
        "y": [(i * grid.num_clients) // num_rows for i in range(num_rows)],
        "z": [to_json_numbers(row) for row in shown.tolist()],
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "title": {"text": "log₁₀" if is_log else ""}},
        "hovertemplate": "round %{x}, client %{y}: %{z:.4g}<extra></extra>",
    }
    is_block = name.startswith(GIVEN_BLOCK.partition("{")[0])
    title = GRID_TITLES.get(name, name if is_block else f"'{name}', noted by the method")
    caption = "Colours end at the lowest and the highest hundredth."
    if num_rows < grid.num_clients or num_columns < grid.num_rounds:
        clients = math.ceil(grid.num_clients / num_rows)
        rounds = math.ceil(grid.num_rounds / num_columns)
        caption = f"Each cell is a mean over up to {clients} clients and {rounds} rounds. {caption}"
    return title, figure([trace], "round", "client"), caption


# ------------------------------------------------------------------ parts of the model


def model_parts(run: RunData) -> BlockSets:
    """Return the sets of blocks among which the run's method chose."""
    return BlockSets.parse(str(run.config.get("parts", "")))


def part_counts(run: RunData) -> tuple[Floats, Floats] | None:
    """Count how often each part of the model was given.

    Returns:
        Counts ``[rounds, parts]``, with neighbouring rounds of long runs added up, and counts
        ``[clients, parts]``; None if the method gives no parts.
    """
    num_parts = len(model_parts(run))
    by_round = np.zeros((min(run.last_round, MAX_GRID_ROUNDS), num_parts))
    by_client = np.zeros((run.num_clients, num_parts))
    for record in run.folder.stream():
        parts = np.asarray(record.logged.get("part", []), np.int64)
        ids = _replied_ids(record)
        if _skip_round(run, record.round) or len(parts) != len(ids) or ids.max() >= run.num_clients:
            continue
        row = (record.round - 1) * len(by_round) // run.last_round
        by_round[row] += np.bincount(parts, minlength=num_parts)
        np.add.at(by_client, (ids, parts), 1)
    return (by_round, by_client) if by_round.any() else None


def parts_over_rounds(
    by_round: Floats, last_round: int, parts: tuple[str, ...] = PAPER_PARTS
) -> Figure:
    """Draw the share of clients that got each part, as stacked areas over rounds.

    Args:
        by_round: Counts ``[rounds, parts]``. Rounds without counts are left out.
        last_round: Number of the last round.
        parts: Names of the parts.

    Returns:
        The figure.
    """
    has_counts = by_round.sum(1) > 0
    rounds = 1 + np.arange(len(by_round)) * last_round // len(by_round)
    counts = by_round[has_counts]
    shares = 100 * counts / counts.sum(1, keepdims=True)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "parts",
            "name": part,
            "x": rounds[has_counts].tolist(),
            "y": to_json_numbers(shares[:, i].tolist()),
            "line": {"color": color(i), "width": 0.5},
        }
        for i, part in enumerate(parts)
        if shares[:, i].any()
    ]
    return figure(traces, "round", "share of clients, %", yaxis={"range": [0, 100]})


def label_evenness(labels: dict[str, list[float]]) -> tuple[Ints, Floats]:
    """Compute the entropy of each client's labels, divided by the largest possible entropy.

    Args:
        labels: Columns of `labels.csv`.

    Returns:
        Client ids and evenness, ``[K]`` each: 0 for one class, 1 for equal shares of all classes.
    """
    counts = np.array([column for name, column in labels.items() if name != "client"]).T
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1)
    evenness = np.abs(entropy / math.log(max(2, counts.shape[1])))  # abs: no minus before a zero
    return np.array(labels["client"], np.int64), evenness


def parts_by_evenness(
    by_client: Floats, labels: dict[str, list[float]], parts: tuple[str, ...] = PAPER_PARTS
) -> Figure | None:
    """Draw the share of each part among groups of clients, from uneven to even labels.

    Args:
        by_client: Counts ``[clients, parts]``.
        labels: Columns of `labels.csv`; None is returned if it is empty.
        parts: Names of the parts.

    Returns:
        The figure; None without label counts.
    """
    if not labels:
        return None
    ids, evenness = label_evenness(labels)
    known = ids < len(by_client)
    ids = ids[known]
    evenness = evenness[known]
    bins = np.array_split(np.argsort(evenness, kind="stable"), NUM_EVENNESS_BINS)
    bins = [members for members in bins if len(members)]
    counts = np.array([by_client[ids[members]].sum(0) for members in bins])
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [f"{evenness[bin].min():.2f} – {evenness[bin].max():.2f}" for bin in bins]
    positions = list(range(len(bins)))
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": part,
            "x": positions,
            "y": to_json_numbers(shares[:, i].tolist()),
            "marker": {"color": color(i)},
            "hovertemplate": "%{y:.1f} %",
        }
        for i, part in enumerate(parts)
        if shares[:, i].any()
    ]
    ticks = {"tickvals": positions, "ticktext": names}
    title = "evenness of labels"
    return figure(traces, title, "share of choices, %", xaxis=ticks, barmode="stack")
