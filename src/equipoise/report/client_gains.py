"""Which clients gain from personal models, against local training and the received model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from equipoise.report.blocks import MISSING, Details, TableBlock, TableCell, TableColumn
from equipoise.report.figures import MetricDisplay
from equipoise.report.run_data import RunData, RunGroup
from equipoise.report.statistics import paired_difference

MAX_OPEN_CLIENTS = 30  # clients up to which the table is unfolded at once
MAX_LISTED_CLIENTS = 200  # clients of the table; of more, those that gain least and most
LOCAL = "local"  # the method without communication


@dataclass(frozen=True)
class ClientScores:
    """Scores of one client in the unit of the page, means over seeds."""

    name: str
    personal: float
    received: float | None
    """With the model that it receives, before it trains."""
    local: float | None
    """With local training alone, if that was run too: as a method, or as a baseline of this one."""

    @property
    def gain_over_local(self) -> float | None:
        """Personal score minus that of local training."""
        return None if self.local is None else self.personal - self.local

    @property
    def gain_over_received(self) -> float | None:
        """Personal score minus that of the received model."""
        return None if self.received is None else self.personal - self.received


class _Gain(NamedTuple):
    """Gain of one client."""

    value: float
    client: str


def client_scores(
    group: RunGroup, groups: Sequence[RunGroup], display: MetricDisplay
) -> list[ClientScores]:
    """Collect the scores of every client of a method.

    Args:
        group: The method.
        groups: All methods of the page, among which local training is looked for.
        display: How scores are scaled.

    Returns:
        The scores, ordered by client id.
    """
    is_local = group.first_run.config["method"] == LOCAL
    others = [other for other in groups if other is not group]
    local_groups = [other for other in others if other.first_run.config["method"] == LOCAL]
    personal = _mean_by_client(group, _personal_scores, display)
    received: dict[int, float] = {}
    if not is_local:
        received = _mean_by_client(group, _column(f"received_{display.metric}"), display)
    if local_groups:
        local = _mean_by_client(local_groups[0], _personal_scores, display)
    else:
        local = _mean_by_client(group, _column(f"{LOCAL}_{display.metric}"), display)
    name = group.first_run.client_name
    return [
        ClientScores(name(client), personal[client], received.get(client), local.get(client))
        for client in sorted(personal)
    ]


def _personal_scores(run: RunData) -> list[float]:
    return run.personal_scores


def _column(name: str) -> Callable[[RunData], list[float]]:
    """Return a getter for a column of `clients.csv`."""
    return lambda run: run.clients.get(name, [])


def _mean_by_client(
    group: RunGroup, scores: Callable[[RunData], list[float]], display: MetricDisplay
) -> dict[int, float]:
    """Average a score of each client over those seeds that have it."""
    by_client: dict[int, list[float]] = {}
    for run in group.runs:
        for client, score in zip(run.clients.get("client", []), scores(run), strict=False):
            if math.isfinite(score):
                by_client.setdefault(int(client), []).append(display.scale * score)
    return {client: fmean(values) for client, values in by_client.items()}


def best_group(groups: Sequence[RunGroup], display: MetricDisplay) -> RunGroup | None:
    """Return the method with the best mean personal score, None if no score is known yet."""
    means: list[tuple[float, RunGroup]] = []
    for group in groups:
        scores = _mean_by_client(group, _personal_scores, display)
        if scores:
            means.append((fmean(scores.values()), group))
    if not means:
        return None
    choose = max if display.higher_is_better else min
    return choose(means, key=lambda pair: pair[0])[1]


def gains_sentence(groups: Sequence[RunGroup], display: MetricDisplay) -> str:
    """Write one sentence for the top of the page; empty if no client's score is known yet."""
    group = best_group(groups, display)
    if group is None:
        return ""
    clients = client_scores(group, groups, display)
    unit = " %" if display.is_percent else ""
    mean = f"{fmean(client.personal for client in clients):.{_digits(display)}f}{unit}"
    metric = display.label.partition(",")[0]
    if len(groups) > 1:
        sentence = _best_words(group, groups, display, f"mean {metric} {mean}")
    else:
        sentence = f"Personal models of {group.label} reach a mean {metric} of {mean}"
    has_global = any(summary.global_ for summary in group.summaries)
    received = "the global model" if has_global else "the model that they receive"
    over_local = _gains(clients, lambda client: client.gain_over_local)
    over_received = _gains(clients, lambda client: client.gain_over_received)
    clauses = [
        _gains_clause(over_local, "local training alone", display),
        _gains_clause(over_received, received, display),
    ]
    known = "; ".join(clause for clause in clauses if clause)
    if known:
        sentence += f": {known}"
    seeds = f" Means over {len(group.runs)} seeds." if len(group.runs) > 1 else ""
    return f"{sentence}.{seeds}"


def _best_words(
    best: RunGroup, groups: Sequence[RunGroup], display: MetricDisplay, score: str
) -> str:
    """Name the best method, or say that it ties with others: a tie has no winner.

    Args:
        best: Method with the best mean.
        groups: All methods.
        display: How scores are scaled.
        score: Its score in words.
    """
    means = {group.label: _means_by_seed(group) for group in groups}
    num_seeds = len(means[best.label])
    if num_seeds < 2:
        rank = "highest" if display.higher_is_better else "lowest"
        return (
            f"{best.label} has the {rank} personal scores ({score}), of one seed: maybe by chance"
        )
    ties = []
    for label, values in means.items():
        if label == best.label or len(values) != num_seeds:
            continue
        difference = paired_difference(values, means[best.label], display.higher_is_better)
        if difference is not None and difference.verdict == "tie":
            ties.append(label)
    if not ties:
        return f"{best.label} has the best personal models ({score})"
    return f"{', '.join([best.label, *ties])} tie over seeds; {best.label} has {score}"


def _means_by_seed(group: RunGroup) -> list[float]:
    """Return the mean over clients with each seed."""
    means = []
    for run in group.runs:
        known = [score for score in run.personal_scores if math.isfinite(score)]
        if known:
            means.append(fmean(known))
    return means


def _gains(
    clients: Sequence[ClientScores], gain: Callable[[ClientScores], float | None]
) -> list[_Gain]:
    """Return the gains of those clients for which they are known."""
    gains = [(gain(client), client.name) for client in clients]
    return [_Gain(value, name) for value, name in gains if value is not None]


def _gains_clause(gains: Sequence[_Gain], baseline: str, display: MetricDisplay) -> str:
    """Write "against local training alone 3 of 4 clients gain (most: va, +5.1), 1 loses (...)"."""
    if not gains:
        return ""
    sign = 1 if display.higher_is_better else -1
    winners = [gain for gain in gains if sign * gain.value > 0]
    losers = [gain for gain in gains if sign * gain.value < 0]
    clause = f"against {baseline} {len(winners)} of {len(gains)} clients gain"
    clause += _largest_gain(winners, display)
    if losers:
        verb = "loses" if len(losers) == 1 else "lose"
        clause += f", {len(losers)} {verb}{_largest_gain(losers, display)}"
    return clause


def _largest_gain(gains: Sequence[_Gain], display: MetricDisplay) -> str:
    """Write the client that gains or loses most, in brackets."""
    if not gains:
        return ""
    largest = max(gains, key=lambda gain: abs(gain.value))
    client = f"most: {largest.client}" if len(gains) > 1 else largest.client
    unit = " points" if display.is_percent else ""
    return f" ({client}, {largest.value:+.{_digits(display)}f}{unit})"


def gains_table(groups: Sequence[RunGroup], display: MetricDisplay) -> Details | None:
    """List the clients of the best method with their scores and gains."""
    group = best_group(groups, display)
    if group is None:
        return None
    clients = client_scores(group, groups, display)
    unit = "%" if display.is_percent else display.metric
    columns: list[tuple[str, Callable[[ClientScores], float | None], str]] = [
        (f"personal, {unit}", lambda client: client.personal, "")
    ]
    if any(client.local is not None for client in clients):
        columns.append((f"local alone, {unit}", lambda client: client.local, ""))
        columns.append(("gain over local", lambda client: client.gain_over_local, "+"))
    if any(client.received is not None for client in clients):
        columns.append((f"received, {unit}", lambda client: client.received, ""))
        columns.append(("gain over received", lambda client: client.gain_over_received, "+"))
    selection = ""
    listed = clients
    if len(clients) > MAX_LISTED_CLIENTS:
        half = MAX_LISTED_CLIENTS // 2
        last_column = columns[-1][1]
        ordered = sorted(clients, key=lambda client: last_column(client) or 0.0)
        listed = [*ordered[:half], *ordered[-half:]]
        selection = f" (of {len(clients)}, {half} that gain least and as many that gain most)"
    rows = [
        [TableCell(client.name), *(_cell(get(client), sign, display) for _, get, sign in columns)]
        for client in listed
    ]
    head = [TableColumn("client")]
    head += [TableColumn(title, display.higher_is_better) for title, _, _ in columns]
    over_seeds = ", means over seeds" if len(group.runs) > 1 else ""
    summary = f"Clients of {group.label} by name{selection}{over_seeds}"
    return Details(summary, [TableBlock(head, rows)], is_open=len(clients) <= MAX_OPEN_CLIENTS)


def _cell(value: float | None, sign: str, display: MetricDisplay) -> TableCell:
    if value is None or not math.isfinite(value):
        return TableCell(MISSING, value)
    return TableCell(f"{value:{sign}.{_digits(display)}f}", value)


def _digits(display: MetricDisplay) -> int:
    if display.is_percent:
        return 1
    return 3 if math.isfinite(display.bounds[1]) else 4
