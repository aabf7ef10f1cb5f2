"""Which inputs matter: bars of importance and curves of partial dependence, overall and by site."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from rich.console import Console

from equipoise.records.explanation import Explanation, Importance, PartialDependence
from equipoise.report.blocks import (
    MISSING,
    Block,
    Heading,
    Notes,
    Paragraph,
    Plot,
    Plots,
    Section,
    TableBlock,
    TableCell,
    TableColumn,
)
from equipoise.report.evaluation_page import render_page
from equipoise.report.figures import GREY, Figure, Trace, color, figure, to_json_numbers
from equipoise.report.terminal import fit_table

MAX_BARS = 20
MAX_SITE_LINES = 30
"""Of more sites, those with most rows are drawn."""
TITLES = ["input", "importance, all rows", "smallest at a site", "largest at a site"]


def explanation_section(explanation: Explanation) -> tuple[Section, dict[str, Figure]]:
    """Make the section of a report that says which inputs matter.

    Args:
        explanation: Importance and partial dependence.

    Returns:
        The section, and its figures by id.
    """
    bars = Plot(
        "importance",
        f"Drop of {explanation.metric} if an input is permuted",
        f"A bar is the mean over sites, every row alike; its line is the standard deviation over "
        f"{explanation.n_repeats} permutations. A dot is a site.",
    )
    figures = {bars.id: importance_figure(explanation)}
    blocks: list[Block] = [
        Paragraph(
            f"{explanation.title}: {explanation.rows} rows. Inputs that say the same share their "
            "importance. Neither figure says what would happen if somebody changed an input.",
            is_faint=True,
        ),
        Plots([bars]),
        importance_table(explanation),
    ]
    curves = []
    for number, one in enumerate(explanation.partial_dependence):
        for output, name in enumerate(explanation.outputs):
            plot = Plot(
                f"dependence-{number}-{output}",
                f"{name} by {one.column}",
                "Mean prediction if all rows had this value. The thick line is over all rows, a "
                "thin one over those of a site.",
            )
            figures[plot.id] = dependence_figure(explanation, one, output)
            curves.append(plot)
    if curves:
        blocks += [Heading("Partial dependence"), Plots(curves)]
    if explanation.notes:
        blocks.append(Notes(explanation.notes))
    return Section("inputs", "Which inputs matter", blocks), figures


def render_explanation(explanation: Explanation) -> str:
    """Render the page of an explanation."""
    section, figures = explanation_section(explanation)
    first = explanation.importances[0]
    fall = f"{explanation.metric} falls by {_format_importance(first)}"
    verdict = f"{first.column} matters most: {fall} without it."
    return render_page(explanation.title, verdict, "", [section], figures)


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print importance, and the notes.

    Args:
        explanation: Importance and partial dependence.
        console: Where to print.
    """
    score = "" if explanation.score is None else f" from {explanation.score:.4g}"
    console.print(
        f"{explanation.title}, {explanation.rows} rows: drop of {explanation.metric}{score} if an "
        "input is permuted",
        highlight=False,
        markup=False,
    )
    console.print(fit_table("", TITLES, importance_cells(explanation), console.width))
    for note in explanation.notes:
        console.print(note, highlight=False, markup=False)


def importance_cells(explanation: Explanation) -> list[list[str]]:
    """Return the rows of the table of importance."""
    rows = []
    for one in explanation.importances:
        sites = _by_site(explanation, one.column)
        ends = [f"{value:.4f} ({name})" for value, name in _ends(sites)]
        rows.append([one.column, _format_importance(one), *(ends or [MISSING, MISSING])])
    return rows


def importance_table(explanation: Explanation) -> TableBlock:
    """Make the table of importance."""
    rows = []
    for cells, one in zip(importance_cells(explanation), explanation.importances, strict=True):
        ends: list[float | None] = [v for v, _ in _ends(_by_site(explanation, one.column))]
        numbers = [None, one.importances_mean, *(ends or [None, None])]
        rows.append([TableCell(text, number) for text, number in zip(cells, numbers, strict=True)])
    return TableBlock([TableColumn(title, True) for title in TITLES], rows)


def _format_importance(importance: Importance) -> str:
    """Write an importance with its deviation."""
    return f"{importance.importances_mean:.4f} ± {importance.importances_std:.4f}"


def _by_site(explanation: Explanation, column: str) -> dict[str, float]:
    """Return the importance of a column at each site that is shown."""
    return {
        site.site: one.importances_mean
        for site in explanation.sites
        for one in site.importances
        if one.column == column and math.isfinite(one.importances_mean)
    }


def _ends(sites: dict[str, float]) -> list[tuple[float, str]]:
    """Return the smallest and the largest value with their sites; empty without sites."""
    ordered = sorted((value, name) for name, value in sites.items())
    return [ordered[0], ordered[-1]] if ordered else []


def importance_figure(explanation: Explanation) -> Figure:
    """Draw a bar for each input, with its deviation over permutations and a dot for each site."""
    shown = explanation.importances[:MAX_BARS]
    names = [one.column for one in shown]
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": to_json_numbers(one.importances_mean for one in shown),
        "name": "all rows",
        "marker": {"color": color(0)},
        "error_x": {
            "type": "data",
            "array": to_json_numbers(one.importances_std for one in shown),
            "color": GREY,
        },
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }
    x: list[float | None] = []
    y: list[str] = []
    texts: list[str] = []
    for name in names:
        for site, value in _by_site(explanation, name).items():
            x += to_json_numbers([value])
            y.append(name)
            texts.append(site)
    dots: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "text": texts,
        "name": "sites",
        "marker": {"color": color(1), "size": 6, "opacity": 0.7},
        "hovertemplate": "%{y} at %{text}: %{x:.4g}<extra></extra>",
    }
    return figure(
        [bars, dots],
        f"drop of {explanation.metric}",
        "",
        yaxis={"type": "category", "autorange": "reversed", "automargin": True},
    )


def dependence_figure(
    explanation: Explanation, dependence: PartialDependence, output: int
) -> Figure:
    """Draw the mean prediction by the value of one input, over all rows and at each site.

    Args:
        explanation: The explanation, for units and names.
        dependence: Predictions by the value of one input.
        output: Which output of the model is drawn.

    Returns:
        The figure.
    """
    x = _grid_labels(dependence)
    rows = {site.site: site.rows or 0 for site in explanation.sites}
    largest = sorted(dependence.sites, key=lambda site: -rows.get(site, 0))[:MAX_SITE_LINES]
    is_line = dependence.kind != "category"
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines" if is_line else "markers",
            "x": x,
            "y": to_json_numbers(dependence.sites[site][output]),
            "name": site,
            "showlegend": False,
            "line": {"color": GREY, "width": 1},
            "marker": {"color": GREY, "size": 5},
            "text": [site] * len(x),
            "hovertemplate": "%{x}: %{y:.4g} at %{text}<extra></extra>",
        }
        for site in largest
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines+markers" if is_line else "markers",
            "x": x,
            "y": to_json_numbers(dependence.average[output]),
            "name": "all rows",
            "line": {"color": color(0), "width": 4},
            "marker": {"color": color(0), "size": 6 if is_line else 10},
            "hovertemplate": "%{x}: %{y:.4g}, all rows<extra></extra>",
        }
    )
    axis = {"type": "category"} if not is_line else {}
    return figure(traces, dependence.column, explanation.outputs[output], xaxis=axis)


def _grid_labels(dependence: PartialDependence) -> list[float] | list[str]:
    """Return the values of the axis; days as dates."""
    if dependence.kind != "date":
        return dependence.grid_values
    start = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(days=float(day)) for day in dependence.grid_values]
    return [moment.strftime("%Y-%m-%d %H:%M") for moment in moments]
