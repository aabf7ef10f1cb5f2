"""The page around the figures: whole in itself, without a network; Plotly travels inside it, packed."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from html import escape
from importlib import resources

from equipoise import __version__
from equipoise.report.page.drawing import Figure
from equipoise.utils.errors import UsageError

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
{verdict}
<p class="faint">{subtitle}</p>
<nav>{nav}</nav>
<main>{body}</main>
<p class="faint">Made by Equipoise {version}. Lines are means over seeds, bands their 95 % intervals
(of two seeds: the range).</p>
<script type="application/json" id="figures">{figures}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{js}</script>
</body>
</html>
"""
# The browser itself refuses any request that the page might make.
POLICY = (
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
)


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

    def html(self, title: str, subtitle: str, verdict: str = "") -> str:
        body = "".join(
            f'<section id="{n}"><h2>{escape(t)}</h2>{inner}</section>'
            for n, t, inner in self.sections
        )
        nav = "".join(f'<a href="#{name}">{escape(t)}</a>' for name, t, _ in self.sections)
        data = json.dumps(self.figures, allow_nan=False, separators=(",", ":")).replace(
            "<", "\\u003c"
        )
        return TEMPLATE.format(
            **{
                "policy": POLICY,
                "title": escape(title),
                "subtitle": escape(subtitle),
                "nav": nav,
                "body": body,
            },
            **{
                "css": _asset("page.css"),
                "js": _asset("page.js"),
                "figures": data,
                "plotly": plotly(),
            },
            verdict=f'<p class="verdict">{escape(verdict)}</p>' if verdict else "",
            version=__version__,
        )


def _asset(name: str) -> str:
    return (resources.files("equipoise.report.page") / "assets" / name).read_text()


@cache
def plotly() -> str:
    """Plotly's own script, packed: a third of its size, and unpacked by the browser."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "it needs Plotly: pip install 'equipoise[report]', then 'equipoise report DIR'"
        ) from error
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
