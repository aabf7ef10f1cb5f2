"""One page of HTML for a run or a comparison: whole in itself, without a network; Plotly travels inside it, packed."""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise import __version__
from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError
from equipoise.report.folders import Group, gather, readable
from equipoise.report.page import figures, heat, shares, text
from equipoise.report.page.drawing import Figure, Score

HEATED = 6  # groups whose decisions are shown client by client

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<h1>{title}</h1>
<p class="faint">{subtitle}</p>
<nav>{nav}</nav>
<main>{body}</main>
<p class="faint">Made by Equipoise {version}. Lines are means over seeds, bands run from the least to the most.</p>
<script type="application/json" id="figures">{figures}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{js}</script>
</body>
</html>
"""
# The browser itself refuses any request that the page might make.
POLICY = "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"


class Page:
    """Sections in order, and the figures that they show."""

    def __init__(self) -> None:
        self.sections: list[tuple[str, str, str]] = []
        self.figures: dict[str, Figure] = {}

    def plot(self, title: str, found: Figure | None, caption: str = "") -> str:
        if found is None:
            return ""
        name = f"plot-{len(self.figures)}"
        self.figures[name] = found
        about = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        label = escape(title)
        plot = f'<div class="plot" id="{name}" role="img" aria-label="{label}"></div>'
        return f"<figure><h3>{label}</h3>{about}{plot}</figure>"

    def section(self, name: str, title: str, *parts: str, grid: bool = True) -> None:
        """Left out where no part has anything to show."""
        content = "".join(parts)
        if content:
            inner = f'<div class="grid">{content}</div>' if grid else content
            self.sections.append((name, title, inner))

    def html(self, title: str, subtitle: str) -> str:
        body = "".join(f'<section id="{n}"><h2>{escape(t)}</h2>{inner}</section>' for n, t, inner in self.sections)
        nav = "".join(f'<a href="#{name}">{escape(t)}</a>' for name, t, _ in self.sections)
        data = json.dumps(self.figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        return TEMPLATE.format(
            **{"policy": POLICY, "title": escape(title), "subtitle": escape(subtitle), "nav": nav, "body": body},
            **{"css": _asset("page.css"), "js": _asset("page.js"), "figures": data, "plotly": _plotly()},
            version=__version__,
        )


def write(paths: Sequence[Path], out: Path) -> Path:
    """Draw these runs into one file."""
    with readable(paths[0]):
        groups = gather(paths)
        page = draw(groups, _command(paths, groups))
    checkpoint.write_text(out, page)
    return out


def offer(path: Path) -> str:
    """The report of what has just ended, in its folder; gives one line about it. A picture never fails a run."""
    out = path / "report.html"
    try:
        if not _newer(out, path / "summary.json", path / "compare.json"):
            write([path], out)
        return f"report: {out}"
    except UsageError as error:
        return f"no report: {error}"
    except Exception as error:
        return f"no report: drawing it failed ({type(error).__name__}: {error}); try again: equipoise report {path}"


def _newer(page: Path, *results: Path) -> bool:
    """Whether it shows these results already: resuming what is finished changes nothing."""
    made = page.stat().st_mtime_ns if page.exists() else 0
    return made > max((file.stat().st_mtime_ns for file in results if file.exists()), default=made)


def draw(groups: Sequence[Group], command: str) -> str:
    """The whole page."""
    page, first = Page(), groups[0].first
    score, several = Score(first.headline), len(groups) > 1
    page.section("result", "Result", text.cards(groups, score), text.results(groups, score), grid=False)
    _scores(page, groups, score, several)
    _clients(page, groups, score, several)
    _decisions(page, groups, score)
    page.section(
        "cost",
        "Bytes and time",
        page.plot("Score against bytes", figures.against_bytes(groups, score), "First seed of each."),
        page.plot("Bytes so far", figures.megabytes(groups, score), "Everything that is sent, both ways; first seed."),
        page.plot("Time", figures.seconds(groups, score), "As measured on the machine that ran it; first seed."),
    )
    page.section("equilibrium", "Equilibrium certificate", text.certificates(groups), grid=False)
    page.section("theory", "Coverage of the agents", text.coverage(groups), grid=False)
    page.section("repeat", "Configuration and command", text.repeat(groups, command), grid=False)
    names = ", ".join(group.label for group in groups)
    config, seeds = first.config, max(len(group.runs) for group in groups)
    rounds = max(log["round"] for group in groups for run in group.runs for log in run.logs[-1:])
    model = f", model {config['model']}" if config.get("model") else ""
    subtitle = f"Task {config['task']}{model}; up to {rounds} rounds; {seeds} seed{'s' if seeds > 1 else ''}."
    unfinished = sum(run.summary is None for group in groups for run in group.runs)
    if unfinished:
        subtitle += f" {unfinished} of the runs {'is' if unfinished == 1 else 'are'} not finished."
    title = f"{len(groups)} methods on {config['task']}" if several else f"{names} on {config['task']}"
    return page.html(title, subtitle)


def _scores(page: Page, groups: Sequence[Group], score: Score, several: bool) -> None:
    if several:
        shown = [
            page.plot(figures.NAMES[name].capitalize(), figures.curves_of(name)(groups, score))
            for name in ("global", "personal", "received")
        ]
        sides = page.plot(
            "Both customers at once",
            figures.both_sides(groups, score),
            "Last evaluation. Methods without a global model are absent; small marks are seeds, bars their deviation.",
        )
    else:
        shown = [page.plot("Scores over rounds", figures.curves(groups, score))]
        sides = page.plot("Way of the run", figures.path_of_one(groups, score), "One point a round; first seed.")
    about = "Theory's slope hangs on the last point, for its constants are unknown; a constant rate ends in a plateau."
    theory = page.plot("Error against theory", figures.theory(groups, score), about)
    angle = "Between the representation that agents receive and the best one for all of them; mean over agents."
    subspace = page.plot("Subspace distance", figures.subspace(groups, score), angle)
    page.section("scores", "Scores", *shown, sides, theory, subspace)


def _clients(page: Page, groups: Sequence[Group], score: Score, several: bool) -> None:
    gained = f"{'Above' if score.higher else 'Below'} the line a client gained; one seed."
    plots = (
        page.plot("Personal models, client by client", figures.spread(groups, score), "All seeds; a dot a client."),
        page.plot("Before and after", figures.before_after(groups, score), gained),
        page.plot("Partition", figures.labels(groups, score), "Share of each class in a client's training data."),
        page.plot("Sizes", figures.sizes(groups, score), "Training samples of each client that took part."),
        page.plot("Newcomers", figures.newcomers(groups, score), "Clients that training never saw."),
    )
    table = "" if several else text.clients(groups[0].first, score)
    inner = "".join(plots)
    page.section("clients", "Clients", f'<div class="grid">{inner}</div>' if inner else "", table, grid=False)


def _decisions(page: Page, groups: Sequence[Group], score: Score) -> None:
    """What was decided, and what it took of the clients' resources."""
    decided = [
        page.plot(title, figures.training(what)(groups, score), "Mean over clients, band from the least to the most.")
        for what, title in (("epochs", "Epochs over rounds"), ("lr", "Learning rates over rounds"))
    ]
    spent = [page.plot("Privacy spent", figures.privacy(groups, score), "Epsilon of the global models so far.")]
    for group in groups[:HEATED]:
        whose = f"{group.label}: " if len(groups) > 1 else ""
        for name, grid in heat.grids(group.first).items():
            if drawn := heat.heat_map(name, grid):
                plot = page.plot(whose + drawn[0], drawn[1], drawn[2])
                (spent if name in heat.RESOURCES else decided).append(plot)
        if counts := shares.counted(group.first):
            over = shares.over_rounds(counts[0], group.first.logs[-1]["round"])
            decided.append(page.plot(f"{whose}Parts given, over rounds", over, "Share of the clients that got each."))
            even = shares.by_evenness(counts[1], group.first.labels)
            about = "Clients in five groups by the entropy of their labels: 0 is one class, 1 is all alike; all rounds."
            decided.append(page.plot(f"{whose}Parts given, by evenness of labels", even, about))
    page.section("decisions", "Decisions", *decided)
    page.section("resources", "Resources", *spent)


def _command(paths: Sequence[Path], groups: Sequence[Group]) -> str:
    """The command that was typed for a comparison, or one that says the same for a run."""
    compared = paths[0] / "compare.json"
    if len(paths) == 1 and compared.is_file():
        command: Any = json.loads(compared.read_text()).get("command", [])
        return shlex.join(map(str, command))
    return "\n".join(text.command(run.config) for group in groups for run in group.runs)


def _asset(name: str) -> str:
    return (resources.files("equipoise.report.page") / "assets" / name).read_text()


@cache
def _plotly() -> str:
    """Plotly's own script, packed: a third of its size, and unpacked by the browser."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError("it needs Plotly: pip install 'equipoise[report]', then 'equipoise report DIR'") from error
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
