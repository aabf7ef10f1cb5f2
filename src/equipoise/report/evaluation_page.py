"""Pages about models on rows: an evaluation on new rows, and the folder of a single site."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from equipoise import __version__
from equipoise.records import codec
from equipoise.records.decision import Estimate
from equipoise.records.evaluation import (
    Calibration,
    CrossSite,
    EvaluationDetails,
    GroupScores,
    HorizonScores,
)
from equipoise.records.run_dir import RunFolder
from equipoise.report.blocks import (
    MISSING,
    Block,
    Code,
    Notes,
    Paragraph,
    Plot,
    Plots,
    Section,
    TableBlock,
    TableCell,
    TableColumn,
    Tiles,
)
from equipoise.report.decision_text import KIND_TITLES, decision_blocks
from equipoise.report.figures import GREY, Figure, MetricDisplay, Trace, color, figure
from equipoise.report.terminal import fit_table
from equipoise.utils.metrics import format_score, higher_is_better, score_digits


def details_sections(details: EvaluationDetails) -> tuple[list[Section], dict[str, Figure]]:
    """Make the sections of an evaluation.

    Args:
        details: The evaluation.

    Returns:
        The sections, and their figures by id.
    """
    figures: dict[str, Figure] = {}
    sections = [Section("models", "Models", decision_blocks(details.decision))]
    if details.horizon:
        title = f"At the horizon {details.horizon[0].horizon:g}"
        sections.append(Section("horizon", title, [horizon_table(details.horizon)]))
    if details.calibration:
        plots = []
        for number, curve in enumerate(details.calibration):
            plot = Plot(f"calibration-{number}", *calibration_words(curve))
            figures[plot.id] = calibration_figure(curve)
            plots.append(plot)
        sections.append(Section("calibration", "Calibration", [Plots(plots)]))
    if details.cross_site is not None:
        matrix = details.cross_site
        plot = Plot(
            "cross-site",
            f"{matrix.metric} of every model at every site",
            "A row is a model, a column the site whose rows it is tested on. Sites with fewer than "
            f"{details.min_count} rows are empty.",
        )
        figures[plot.id] = cross_site_figure(matrix)
        blocks: list[Block] = [Plots([plot]), cross_site_table(matrix)]
        sections.append(Section("cross-site", "Every model at every site", blocks))
    if details.groups:
        blocks = [
            group_table(details.groups, details.decision.metric),
            Paragraph(
                f"Groups with fewer than {details.min_count} rows are not shown; if it is one "
                "group, the next smallest is hidden too.",
                is_faint=True,
            ),
        ]
        sections.append(Section("groups", "Groups of rows", blocks))
    return sections, figures


def render_evaluation(details: EvaluationDetails) -> str:
    """Render the page of an evaluation on new rows."""
    sections, figures = details_sections(details)
    return render_page(details.title, details.decision.headline, "", sections, figures)


def print_details(details: EvaluationDetails, console: Console) -> None:
    """Print every model at every site, the groups of rows, and how calibrated the models are.

    Args:
        details: The evaluation.
        console: Where to print.
    """
    if details.cross_site is not None:
        titles = cross_site_titles(details.cross_site)
        console.print(fit_table("", titles, cross_site_cells(details.cross_site), console.width))
    if details.groups:
        metric = details.decision.metric
        rows = group_cells(details.groups, metric)
        console.print(fit_table("", group_titles(details.groups, metric), rows, console.width))
    if details.horizon:
        cells = horizon_cells(details.horizon)
        console.print(fit_table("", horizon_titles(details.horizon), cells, console.width))
    for curve in details.calibration:
        title, caption = calibration_words(curve)
        console.print(f"calibration, {title}. {caption}", highlight=False, markup=False)


def is_site_folder(path: Path) -> bool:
    """Tell whether a folder has the models of a single site: of a Flower node, or a newcomer."""
    folder = RunFolder(path)
    if not folder.has_config() or folder.rounds.exists() or not folder.card.exists():
        return False
    return bool(_card(folder).get("owner"))


def render_site(path: Path) -> str:
    """Render the page of the folder of a single site.

    Args:
        path: Folder of a node or a newcomer.

    Returns:
        The page: the verdict and its scores if there are any, and what the model is.
    """
    folder = RunFolder(path)
    card = _card(folder)
    owner = str(card["owner"])
    sections: list[Section] = []
    figures: dict[str, Figure] = {}
    verdict = ""
    file = folder.evaluation
    if file.exists():
        details = codec.loads(EvaluationDetails, file.read_text(), file)
        sections, figures = details_sections(details)
        verdict = details.decision.headline
    else:
        text = (
            "No scores are in this folder. Score the model on rows that it never had: "
            f"equipoise evaluate {path} ROWS.csv"
        )
        sections.append(Section("scores", "Scores", [Paragraph(text)]))
    sections.append(Section("model", "The model", _model_blocks(path, card)))
    method = str(card.get("method", ""))
    return render_page(f"{owner}: its model by {method}", verdict, "", sections, figures)


def _card(folder: RunFolder) -> dict[str, object]:
    """Read the card of the models as plain values."""
    card: dict[str, object] = json.loads(folder.card.read_text())
    return card


def _model_blocks(path: Path, card: dict[str, object]) -> list[Block]:
    """Say what the model is, and how it is used."""
    target = card.get("target")
    named = target if isinstance(target, dict) else {}
    inputs = card.get("inputs")
    names = [str(name) for name in inputs] if isinstance(inputs, list) else []
    classes = ", ".join(map(str, named.get("classes", ())))
    tiles = [
        ("site", str(card.get("owner", ""))),
        ("method", str(card.get("method", ""))),
        ("model", str(card.get("model", ""))),
        ("predicts", f"{named.get('name', '')} {f'({classes})' if classes else ''}".strip()),
    ]
    blocks: list[Block] = [Tiles(tiles)]
    if names:
        blocks.append(Notes([f"{len(names)} inputs: {', '.join(names)}"]))
    commands = [
        f"equipoise predict {path} ROWS.csv --out predictions.csv",
        f"equipoise evaluate {path} ROWS.csv",
        f"equipoise export {path} --format onnx",
    ]
    return [*blocks, Code("\n".join(commands))]


def render_page(
    title: str,
    verdict: str,
    subtitle: str,
    sections: Sequence[Section],
    figures: dict[str, Figure],
) -> str:
    """Render a page about models on rows.

    Args:
        title: Title of the page.
        verdict: Sentence below the title.
        subtitle: What the page is about.
        sections: Its sections.
        figures: Their figures by id.

    Returns:
        The page as HTML.
    """
    from equipoise.report.html import plotly_script, template_environment

    template = template_environment().get_template("evaluation.html.j2")
    return template.render(
        title=title,
        subtitle=subtitle,
        verdict=verdict,
        first_screen=[],
        sections=sections,
        figures=figures,
        plotly_script=plotly_script(),
        version=__version__,
    )


# ------------------------------------------------------------------ figures and tables


def calibration_words(curve: Calibration) -> tuple[str, str]:
    """Return title and caption of a calibration curve."""
    title = f"{KIND_TITLES.get(curve.model, curve.model)}: {curve.of}"
    size = max(abs(curve.mean_predicted), abs(curve.mean_observed))
    digits = score_digits("", size)
    predicted = format_score("", curve.mean_predicted, digits)
    observed = format_score("", curve.mean_observed, digits)
    caption = f"Mean prediction {predicted}, observed {observed}."
    if curve.slope is not None:
        caption += f" Calibration slope {curve.slope:.2f} (1 is calibrated)."
    return title, caption


def calibration_figure(curve: Calibration) -> Figure:
    """Draw what was observed against what was predicted, with 95 % intervals."""
    x = [one.predicted for one in curve.bins]
    y = [one.observed.value for one in curve.bins]
    low = min(*x, *y)
    high = max(*x, *y)
    if 0 <= low <= high <= 1:
        low = 0.0
        high = 1.0
    ideal: Trace = {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "y": [low, high],
        "line": {"color": GREY, "dash": "dot"},
        "name": "calibrated",
    }
    observed: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "name": "observed",
        "line": {"color": color(0)},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_reach(one.observed.high, one.observed.value) for one in curve.bins],
            "arrayminus": [_reach(one.observed.value, one.observed.low) for one in curve.bins],
        },
        "text": [f"{one.rows} rows" for one in curve.bins],
        "hovertemplate": "predicted %{x:.3g}, observed %{y:.3g}, %{text}<extra></extra>",
    }
    return figure([ideal, observed], "predicted", "observed")


def _reach(end: float, start: float) -> float:
    """Return how far an error bar reaches; 0 if its end is not known."""
    return max(0.0, end - start) if math.isfinite(end - start) else 0.0


def cross_site_figure(matrix: CrossSite) -> Figure:
    """Draw the scores of every model at every site as a heat map, with its numbers."""
    display = MetricDisplay(matrix.metric)
    values = [
        [display.scale * one.value if math.isfinite(one.value) else None for one in scores]
        for scores in matrix.scores
    ]
    texts = [[format_score(matrix.metric, one.value) for one in row] for row in matrix.scores]
    trace: Trace = {
        "type": "heatmap",
        "x": matrix.sites,
        "y": matrix.models,
        "z": values,
        "text": texts,
        "texttemplate": "%{text}",
        "colorscale": "Cividis",
        "reversescale": not higher_is_better(matrix.metric),
        "colorbar": {"thickness": 12, "title": {"text": display.label}},
        "hovertemplate": "model of %{y} on rows of %{x}: %{text}<extra></extra>",
    }
    return figure(
        [trace],
        "rows of",
        "model of",
        xaxis={"type": "category"},
        yaxis={"type": "category", "autorange": "reversed"},
    )


def cross_site_titles(matrix: CrossSite) -> list[str]:
    """Return the titles of the table: the sites with their numbers of rows."""
    counts = ["few" if count is None else str(count) for count in matrix.rows]
    return [
        f"model of ({matrix.metric})",
        *(f"{site} ({count} rows)" for site, count in zip(matrix.sites, counts, strict=True)),
    ]


def cross_site_cells(matrix: CrossSite) -> list[list[str]]:
    """Return the rows of the table: scores with intervals."""
    return [
        [model, *(_estimate_text(one, matrix.metric) for one in scores)]
        for model, scores in zip(matrix.models, matrix.scores, strict=True)
    ]


def cross_site_table(matrix: CrossSite) -> TableBlock:
    """Make the table of every model at every site."""
    higher = higher_is_better(matrix.metric)
    rows = []
    for cells, scores in zip(cross_site_cells(matrix), matrix.scores, strict=True):
        numbers = [None, *(one.value for one in scores)]
        rows.append([TableCell(text, number) for text, number in zip(cells, numbers, strict=True)])
    return TableBlock([TableColumn(title, higher) for title in cross_site_titles(matrix)], rows)


def horizon_titles(scores: Sequence[HorizonScores]) -> list[str]:
    """Return the titles of the table of scores at a horizon."""
    horizon = f"{scores[0].horizon:g}"
    return [f"event by {horizon}", "Brier score (0 is best)", "time-dependent AUC"]


def horizon_cells(scores: Sequence[HorizonScores]) -> list[list[str]]:
    """Return the rows of the table of scores at a horizon."""
    return [
        [
            KIND_TITLES.get(one.model, one.model),
            _estimate_text(one.brier, "brier"),
            _estimate_text(one.auc, "auc"),
        ]
        for one in scores
    ]


def horizon_table(scores: Sequence[HorizonScores]) -> TableBlock:
    """Make the table of scores at a horizon."""
    columns = [TableColumn(title) for title in horizon_titles(scores)]
    return TableBlock(columns, [[TableCell(text) for text in row] for row in horizon_cells(scores)])


def group_titles(groups: Sequence[GroupScores], metric: str) -> list[str]:
    """Return the titles of the table of groups."""
    kinds = _group_kinds(groups)
    return ["column", "group", "rows", *(f"{KIND_TITLES.get(k, k)}, {metric}" for k in kinds)]


def group_cells(groups: Sequence[GroupScores], metric: str) -> list[list[str]]:
    """Return the rows of the table of groups."""
    kinds = _group_kinds(groups)
    return [
        [
            one.column,
            one.group,
            "few" if one.rows is None else str(one.rows),
            *(_estimate_text(one.scores.get(kind), metric) for kind in kinds),
        ]
        for one in groups
    ]


def group_table(groups: Sequence[GroupScores], metric: str) -> TableBlock:
    """Make the table of groups."""
    higher = higher_is_better(metric)
    titles = [TableColumn(title, higher) for title in group_titles(groups, metric)]
    return TableBlock(
        titles, [[TableCell(text) for text in row] for row in group_cells(groups, metric)]
    )


def _group_kinds(groups: Sequence[GroupScores]) -> list[str]:
    """List the kinds of models that have scores, the simplest first."""
    return [kind for kind in KIND_TITLES if any(kind in one.scores for one in groups)]


def _estimate_text(estimate: Estimate | None, metric: str) -> str:
    """Write a score with its interval; a dash if there is none."""
    if estimate is None or not math.isfinite(estimate.value):
        return MISSING
    return estimate.score_text(metric)
