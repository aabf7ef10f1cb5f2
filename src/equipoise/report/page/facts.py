"""Tables of single facts: clients, certificates, coverage of the agents."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.report.page.table import figure, table
from equipoise.report.reading import Group, Run

LISTED = 200  # clients of the table; of more, the worst and the best


def clients(run: Run) -> str:
    """One line per client; of very many, the worst and the best by their personal model."""
    known = list(run.clients)
    count = len(run.clients.get("client", []))
    if not count:
        return ""
    final = run.personal or [0.0] * count
    order = sorted(range(count), key=lambda i: final[i] if math.isfinite(final[i]) else math.inf)
    half = LISTED // 2
    kept = sorted(order if count <= LISTED else [*order[:half], *order[-half:]])
    rows = [[_cell(run, name, i) for name in known] for i in kept]
    which = (
        ""
        if count <= LISTED
        else f" ({half} with the lowest and {half} with the highest score of {count})"
    )
    head = [(name.replace("_", " "), False) for name in known]
    return f"<details><summary>Table of clients{which}</summary>{table(head, rows)}</details>"


def _cell(run: Run, name: str, i: int) -> tuple[str, float, bool]:
    value = run.clients[name][i]
    return (run.called(value) if name == "client" and run.names else figure(value)), value, False


def certificates(groups: Sequence[Group]) -> str:
    """What `equipoise certify` found."""
    rows = []
    for group in groups:
        for summary in group.summaries:
            if found := summary.certificate:
                players, server = found.clients, found.server.gain if found.server else None
                values = [
                    found.largest_gain,
                    players.largest,
                    players.mean,
                    players.gaining,
                    server,
                ]
                name = f"{group.label}, seed {summary.about.seed}"
                figures = [(_percent(value), value, False) for value in values]
                rows.append(
                    [
                        (name, None, False),
                        *figures,
                        (str(found.samples), float(found.samples), False),
                    ]
                )
    if not rows:
        return ""
    titles = (
        "run",
        "largest gain of all",
        "client: largest gain",
        "client: mean gain",
        "clients that gain",
        "server: gain",
        "tried",
    )
    about = (
        "What any player would gain in utility by deviating alone, relative to what it has; 0 % is an equilibrium. "
        "The choices are sampled, so these are lower bounds."
    )
    return f'<p class="faint">{about}</p>{table([(title, False) for title in titles], rows)}'


def coverage(groups: Sequence[Group]) -> str:
    """How the agents' trajectories cover the state-action space, which the theory's predictions rest on."""
    rows = []
    for group in groups:
        for summary in group.summaries[:1]:
            if found := summary.extra.get("coverage"):
                values = [
                    summary.extra["error"],
                    *(found[name] for name in ("mu_min", "mu_avg", "c_het", "t_mix")),
                ]
                rows.append(
                    [
                        (group.label, None, False),
                        *((figure(value), value, False) for value in values),
                    ]
                )
    titles = ("method", "final error", "μ_min", "μ_avg", "C_het", "t_mix")
    return table([(title, False) for title in titles], rows) if rows else ""


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f} %"
