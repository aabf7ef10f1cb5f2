"""The verdict: who gains and who loses with personal models, against local training and against the shared model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from equipoise.report.page.drawing import Score
from equipoise.report.page.table import Cell, table
from equipoise.report.reading import Group, Run

OPEN = 30  # clients up to which the table is open at once
LISTED = 200  # clients of the table; of more, those that gain least and most
LOCAL = "local"


@dataclass(frozen=True)
class Standing:
    """One client: its score with its personal model and what others would give it, in the page's unit; over seeds."""

    name: str
    personal: float
    shared: float | None
    """With the model that it receives, before it trains."""
    local: float | None
    """With local training alone, where that was run too, as a method or beside this one."""

    def over(self, other: float | None) -> float:
        return math.nan if other is None else self.personal - other


def standings(group: Group, groups: Sequence[Group], score: Score) -> list[Standing]:
    """Every client of a method, by number."""
    local = next(
        (other for other in groups if other.first.config["method"] == LOCAL and other is not group),
        None,
    )
    received = f"received_{score.headline}"
    mine = _means(group, lambda run: run.personal, score)
    shared = (
        {}
        if group.first.config["method"] == LOCAL
        else _means(group, lambda run: run.clients.get(received, []), score)
    )
    beside = f"{LOCAL}_{score.headline}"  # by --beside-local
    alone = (
        _means(local, _personal, score)
        if local
        else _means(group, lambda run: run.clients.get(beside, []), score)
    )
    return [
        Standing(group.first.called(c), mine[c], shared.get(c), alone.get(c)) for c in sorted(mine)
    ]


def best(groups: Sequence[Group], score: Score) -> Group | None:
    """The method whose clients' personal models score best in the mean."""
    means = {
        i: fmean(found.values())
        for i, group in enumerate(groups)
        if (found := _means(group, _personal, score))
    }
    if not means:
        return None
    return groups[(max if score.higher else min)(means, key=lambda i: means[i])]


def sentence(groups: Sequence[Group], score: Score) -> str:
    """One sentence for the top of the page; empty where no client's score is known yet."""
    group = best(groups, score)
    if group is None:
        return ""
    clients = standings(group, groups, score)
    mean = f"{fmean(c.personal for c in clients):.{_digits(score)}f}{' %' if score.scale == 100 else ''}"
    if len(groups) > 1:
        start = f"{group.label} has the best personal models (mean {_word(score)} {mean})"
    else:
        start = f"Personal models of {group.label} reach a mean {_word(score)} of {mean}"
    told = [
        _against(clients, [client.local for client in clients], "local training alone", score),
        _against(clients, [client.shared for client in clients], _shared(group), score),
    ]
    against = "; ".join(words for words in told if words)
    seeds = f" Means over {len(group.runs)} seeds." if len(group.runs) > 1 else ""
    return f"{start}{': ' + against if against else ''}.{seeds}"


def by_name(groups: Sequence[Group], score: Score) -> str:
    """The clients of the best method as a table: score, gain over local training, gain over the received model."""
    group = best(groups, score)
    clients = standings(group, groups, score) if group else []
    if group is None or not clients:
        return ""
    unit = "%" if score.scale == 100 else score.headline
    columns: list[tuple[str, Callable[[Standing], float | None], str]] = [
        (f"personal, {unit}", lambda c: c.personal, "")
    ]
    if any(client.local is not None for client in clients):
        columns += [
            (f"local alone, {unit}", lambda c: c.local, ""),
            ("gain over local", lambda c: c.over(c.local), "+"),
        ]
    if any(client.shared is not None for client in clients):
        columns += [
            (f"received, {unit}", lambda c: c.shared, ""),
            ("gain over received", lambda c: c.over(c.shared), "+"),
        ]
    order = (
        sorted(clients, key=lambda client: columns[-1][1](client) or 0.0)
        if len(clients) > LISTED
        else clients
    )
    kept = order if len(order) <= LISTED else [*order[: LISTED // 2], *order[-LISTED // 2 :]]
    rows = [
        [(c.name, None, False), *(_cell(get(c), sign, score) for _, get, sign in columns)]
        for c in kept
    ]
    which = (
        ""
        if len(clients) <= LISTED
        else f" (of {len(clients)}, {LISTED // 2} that gain least and as many that gain most)"
    )
    head = [("client", False), *((title, score.higher) for title, _, _ in columns)]
    about = f"<summary>Clients of {group.label} by name{which}, means over seeds</summary>"
    return f"<details{' open' if len(clients) <= OPEN else ''}>{about}{table(head, rows)}</details>"


def _personal(run: Run) -> list[float]:
    return run.personal


def _means(group: Group, get: Callable[[Run], list[float]], score: Score) -> dict[int, float]:
    """A score of each client, the mean over those seeds that have it."""
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for client, value in zip(run.clients.get("client", []), get(run), strict=False):
            if math.isfinite(value):
                found.setdefault(int(client), []).append(score.scale * value)
    return {client: fmean(values) for client, values in found.items()}


def _against(
    clients: Sequence[Standing], others: Sequence[float | None], whom: str, score: Score
) -> str:
    """``against local training alone 3 of 4 clients gain (most: va, +5.1), 1 loses (switzerland, -2.0)``."""
    sign = 1 if score.higher else -1
    gains = [
        (client.over(other), client.name)
        for client, other in zip(clients, others, strict=True)
        if other is not None
    ]
    if not gains:
        return ""
    up = [gain for gain in gains if sign * gain[0] > 0]
    down = [gain for gain in gains if sign * gain[0] < 0]
    words = f"against {whom} {len(up)} of {len(gains)} clients gain{_most(up, score)}"
    if down:
        words += f", {len(down)} lose{'s' if len(down) == 1 else ''}{_most(down, score)}"
    return words


def _most(gains: Sequence[tuple[float, str]], score: Score) -> str:
    if not gains:
        return ""
    value, name = max(gains, key=lambda gain: abs(gain[0]))
    which = f"most: {name}" if len(gains) > 1 else name
    return f" ({which}, {value:+.{_digits(score)}f}{' points' if score.scale == 100 else ''})"


def _cell(value: float | None, sign: str, score: Score) -> Cell:
    known = value is not None and math.isfinite(value)
    return (f"{value:{sign}.{_digits(score)}f}" if known else "—"), value, False


def _digits(score: Score) -> int:
    return 1 if score.scale == 100 else 4


def _shared(group: Group) -> str:
    """What clients receive: the global model, or what the method makes of its shared parts."""
    whole = any(summary.global_ for summary in group.summaries)
    return "the global model" if whole else "the model that they receive"


def _word(score: Score) -> str:
    return score.words.partition(",")[0]
