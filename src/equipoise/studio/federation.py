"""The live page of one federation: rounds, clients, lateness, refusals, budgets and scores.

Everything is read from files: the run's folder, and the audit log beside it in a deployment. So the
page can be opened and closed at any time, and follows simulations too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from equipoise import __version__
from equipoise.flower.codec import NO_REPLY
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.report.run_data import main_metric
from equipoise.report.terminal import format_duration
from equipoise.studio.security import Guard, Secrets
from equipoise.studio.shared_files import shared_with_report
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import format_score

MAX_LISTED_CLIENTS = 500
MAX_LINES = 200  # of the run's own lines
MAX_AUDIT_BYTES = 2**26  # of a larger audit log the end is read
RECENT_ROUNDS = 20  # from which the time left is estimated


@dataclass
class ClientLine:
    """What is known of one client.

    Attributes:
        name: Its name or number.
        replied: Rounds with a reply that counted.
        late: Rounds that waited for it in vain.
        absent: Rounds in which it was not connected or could not answer.
        refused: Rounds whose reply was left out.
        last_reply: Round of its last reply; 0 for none.
        note: What happened last, if it did not reply then.
    """

    name: str
    replied: int = 0
    late: int = 0
    absent: int = 0
    refused: int = 0
    last_reply: int = 0
    note: str = ""


@dataclass
class Curve:
    """Scores of one kind of model by round, for a small line chart."""

    name: str
    last: str
    best: str
    points: str
    """Points of an SVG line in a box of 300 x 60."""


@dataclass
class FederationView:
    """Everything that the page shows."""

    name: str
    state: str
    """``waiting``, ``running``, ``stopped`` or ``finished``."""
    title: str = ""
    rounds_done: int = 0
    rounds: int = 0
    time_left: str = ""
    seconds: str = ""
    clients: list[ClientLine] = field(default_factory=list)
    num_clients: int = 0
    curves: list[Curve] = field(default_factory=list)
    metric: str = ""
    budgets: list[str] = field(default_factory=list)
    epsilon_share: float | None = None
    """Share of ``max_epsilon`` that is spent; None without a limit."""
    refusals: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def read_federation(path: Path) -> FederationView:
    """Read the state of a run.

    Args:
        path: Folder of the run; it may not exist yet.

    Returns:
        What the page shows.
    """
    folder = RunFolder(path)
    lines = _read_lines(path / "progress.log")[-MAX_LINES:]
    audit = _read_audit(path.with_name(f"{path.name}-audit.jsonl"))
    refusals = [
        f"node {event.get('node')}: {event.get('reason')}"
        for event in audit
        if event.get("event") == "refused"
    ]
    if not folder.has_config():
        return FederationView(path.name, "waiting", refusals=refusals, lines=lines)
    config = folder.read_config()
    records = folder.records()
    view = FederationView(
        name=path.name,
        state=_state(folder),
        title=f"{config['method']} on {config['task']}, seed {config['seed']}",
        rounds_done=records[-1].round if records else 0,
        rounds=int(config["rounds"]),
        refusals=refusals[-MAX_LINES:],
        lines=lines,
    )
    if not records:
        return view
    recent = [record.seconds for record in records[-RECENT_ROUNDS:]]
    view.seconds = f"{fmean(recent):.1f}"
    if view.state == "running":
        view.time_left = format_duration(fmean(recent) * (view.rounds - view.rounds_done))
    clients = count_replies(records, _names(folder, audit))
    view.num_clients = len(clients)
    view.clients = clients[:MAX_LISTED_CLIENTS]
    view.metric = main_metric(records)
    view.curves = [
        curve for name in ("global", "personal") if (curve := _curve(records, name, view.metric))
    ]
    last = records[-1]
    if last.privacy is not None:
        view.budgets.append(describe_spent(last.privacy))
        limit = float(config.get("max_epsilon") or 0)
        if limit and last.privacy.epsilon is not None:
            view.epsilon_share = min(1.0, last.privacy.epsilon / limit)
            view.budgets.append(f"max_epsilon is {limit:g}: the run ends before it is passed")
    if last.stop:
        view.budgets.append(f"stopped: {last.stop}")
    return view


def count_replies(records: Sequence[RoundRecord], names: Mapping[int, str]) -> list[ClientLine]:
    """Count for each client how often it replied, was late, absent or refused.

    Args:
        records: Rounds so far.
        names: Names of clients.

    Returns:
        Clients by number, of those that were asked.
    """
    lines_by_client: dict[int, ClientLine] = {}
    for record in records:
        ids = set(range(record.clients) if record.ids is None else record.ids)
        for client in sorted(ids | record.absent.keys() | set(record.dropped)):
            line = lines_by_client.setdefault(
                client, ClientLine(names.get(client) or f"client {client}")
            )
            if client in record.absent:
                reason = record.absent[client]
                is_late = reason == NO_REPLY
                line.late += is_late
                line.absent += not is_late
                line.note = f"round {record.round}: {reason}"
            elif client in record.dropped:
                line.refused += 1
                reason = record.rejected.get(client, "its numbers are not finite")
                line.note = f"round {record.round}: left out, {reason}"
            else:
                line.replied += 1
                line.last_reply = record.round
                line.note = ""
    return [lines_by_client[client] for client in sorted(lines_by_client)]


def _state(folder: RunFolder) -> str:
    if folder.summary.exists():
        return "finished"
    return "running" if io.is_locked(folder.path) else "stopped"


def _curve(records: Sequence[RoundRecord], name: str, metric: str) -> Curve | None:
    """Return the main metric of some models over rounds; None if they have none."""
    scores = [(record.round, record.evaluation(name).get(metric)) for record in records]
    known = [(round, score) for round, score in scores if score is not None]
    if not known:
        return None
    values = [score for _, score in known]
    low = min(values)
    span = max(values) - low or 1.0
    last_round = max(known[-1][0], 2)
    points = " ".join(
        f"{300 * (round - 1) / (last_round - 1):.1f},{58 - 56 * (score - low) / span:.1f}"
        for round, score in known
    )
    return Curve(
        name,
        format_score(metric, values[-1]),
        f"{format_score(metric, low)} to {format_score(metric, max(values))}",
        points,
    )


def _names(folder: RunFolder, audit: Sequence[Mapping[str, object]]) -> dict[int, str]:
    """Return the names of clients, of the finished run or as they gave them."""
    names = {
        int(str(event["client"])): str(event["name"])
        for event in audit
        if event.get("event") == "joined" and event.get("name") and "role" not in event
    }
    return {**names, **folder.read_names()}


def _read_lines(file: Path) -> list[str]:
    """Return the whole lines of a file that may be growing."""
    if not file.is_file():
        return []
    with open(file, "rb") as stream:
        size = file.stat().st_size
        stream.seek(max(0, size - MAX_AUDIT_BYTES))
        text = stream.read().decode("utf-8", "replace")
    return text.split("\n")[:-1]


def _read_audit(file: Path) -> list[dict[str, object]]:
    """Return the events of a deployment's audit log; lines that are not JSON are skipped."""
    events = []
    for line in _read_lines(file):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


class FederationPages:
    """The page and the part of it that is fetched again and again."""

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        """Create the pages.

        Args:
            folder: Folder of the run.
            secrets: Secrets of this start.
        """
        self.folder = folder
        self.secrets = secrets
        loader = ChoiceLoader(
            [
                PackageLoader("equipoise.studio", "templates"),
                PackageLoader("equipoise.report", "templates"),
            ]
        )
        self.templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)

    async def page(self, request: Request) -> Response:
        """Return the whole page."""
        return await self._render("federation.html.j2")

    async def live(self, request: Request) -> Response:
        """Return what changes; the page fetches it every few seconds."""
        return await self._render("federation_live.html.j2")

    async def _render(self, template: str) -> Response:
        problem = ""
        view = FederationView(self.folder.name, "stopped")
        try:
            view = await run_in_threadpool(read_federation, self.folder)
        except (UsageError, OSError) as error:
            problem = str(error)
        page = self.templates.get_template(template)
        values = {"csrf": self.secrets.csrf, "version": __version__, "problem": problem}
        return HTMLResponse(page.render(view=view, folder=str(self.folder), **values))


def create_app(folder: Path, secrets: Secrets) -> Starlette:
    """Create the web application of one federation.

    Args:
        folder: Folder of the run.
        secrets: Secrets of this start.

    Returns:
        The application.
    """
    pages = FederationPages(folder, secrets)
    routes = [
        Route("/federation", pages.page),
        Route("/federation/live", pages.live),
        Route("/static/shared/{file}", shared_with_report),
        Mount("/static", StaticFiles(packages=[("equipoise.studio", "static")])),
    ]
    guard = Middleware(Guard, secrets=secrets, home="/federation")
    return Starlette(routes=routes, middleware=[guard])
