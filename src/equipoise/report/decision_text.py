"""A decision as text: on the terminal, and its sites as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from equipoise.records.client_table import spreadsheet_cell
from equipoise.records.decision import Candidate, Decision, SiteDecision
from equipoise.report.blocks import Block, Heading, Notes, TableBlock, TableCell, TableColumn
from equipoise.report.terminal import fit_table
from equipoise.utils import io as files
from equipoise.utils.metrics import format_score

KIND_TITLES = {
    "constant": "constant",
    "local": "own model",
    "global": "global",
    "personal": "personal",
    "used": "as chosen",
}
MAX_PRINTED_SITES = 12  # those with most test rows; the verdict stays in sight


def print_decision(
    decision: Decision,
    console: Console,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print a decision: the verdict, the candidates, the sites, and what else to know.

    Args:
        decision: The decision.
        console: Where to print.
        metrics: All metrics by kind of model, if they are to be shown.
    """
    console.print(decision.headline, style="bold", highlight=False, markup=False)
    rows = [candidate_cells(decision, one) for one in decision.candidates]
    if rows:
        console.print(fit_table("", candidate_titles(decision), rows, console.width))
    by_rows = sorted(decision.sites, key=lambda site: -site.test_rows)[:MAX_PRINTED_SITES]
    names = {site.name for site in by_rows}
    sites = [site_cells(decision, site) for site in decision.sites if site.name in names]
    console.print(fit_table("", site_titles(decision), sites, console.width))
    num_hidden = len(decision.sites) - len(sites)
    if num_hidden:
        console.print(f"... and {num_hidden} more sites, with fewer test rows: see the report")
    if metrics:
        kinds = list(next(iter(metrics.values())))
        cells = [
            [name, *(format_score(name, values[kind]) for kind in kinds)]
            for name, values in metrics.items()
        ]
        head = ["score, every row alike", *(KIND_TITLES.get(kind, kind) for kind in kinds)]
        console.print(fit_table("", head, cells, console.width))
    for note in decision.notes:
        console.print(note, highlight=False, markup=False)


def candidate_titles(decision: Decision) -> list[str]:
    """Return the titles of the table of candidates."""
    return [
        "model",
        f"{decision.metric}, every row alike",
        "every site alike",
        "difference to the first",
        "verdict",
    ]


def candidate_cells(decision: Decision, one: Candidate) -> list[str]:
    """Return one row of the table of candidates."""
    score = one.weighted.value
    difference = one.difference.difference_text(decision.metric, score) if one.difference else ""
    return [
        one.label,
        one.weighted.score_text(decision.metric),
        format_score(decision.metric, one.unweighted.value),
        difference,
        one.verdict,
    ]


def site_kinds(decision: Decision) -> list[str]:
    """List the kinds of models that any site has, the simplest first."""
    return [kind for kind in KIND_TITLES if any(kind in site.scores for site in decision.sites)]


def site_titles(decision: Decision) -> list[str]:
    """Return the titles of the table of sites."""
    has_training = any(site.train_rows for site in decision.sites)
    kinds = [KIND_TITLES[kind] for kind in site_kinds(decision)]
    return [
        "site",
        *(["trained on"] if has_training else []),
        "tested on",
        *kinds,
        "gain over own",
        "verdict",
        "use",
    ]


def site_cells(decision: Decision, site: SiteDecision) -> list[str]:
    """Return one row of the table of sites; the model to use has its interval."""
    cells = [site.name]
    if any(one.train_rows for one in decision.sites):
        cells.append(str(site.train_rows or ""))
    cells.append(str(site.test_rows))
    for kind in site_kinds(decision):
        estimate = site.scores.get(kind)
        if estimate is None:
            cells.append("—")
        elif kind == site.model:
            cells.append(estimate.score_text(decision.metric))
        else:
            cells.append(format_score(decision.metric, estimate.value))
    score = site.scores[site.model].value if site.model in site.scores else math.nan
    gain = site.gain.difference_text(decision.metric, score)
    return [*cells, gain, site.verdict, KIND_TITLES[site.model]]


def decision_blocks(decision: Decision) -> list[Block]:
    """Make the first screen of a report: candidates, sites and notes."""
    candidates = [
        [
            TableCell(text, value)
            for text, value in zip(
                candidate_cells(decision, one),
                (None, one.weighted.value, one.unweighted.value, None, None),
                strict=True,
            )
        ]
        for one in decision.candidates
    ]
    higher = decision.higher_is_better
    titles = [TableColumn(title, higher) for title in candidate_titles(decision)]
    sites = [
        [TableCell(text, _cell_number(text)) for text in site_cells(decision, site)]
        for site in decision.sites
    ]
    site_head = [TableColumn(title, higher) for title in site_titles(decision)]
    return [
        TableBlock(titles, candidates),
        Heading("Sites"),
        TableBlock(site_head, sites),
        Notes(decision.notes),
    ]


def _cell_number(text: str) -> float | None:
    """Return the number that a cell begins with, by which it is sorted."""
    first = text.partition(" ")[0].replace(",", "")
    try:
        return float(first)
    except ValueError:
        return None


def write_sites_csv(decision: Decision, path: Path) -> None:
    """Write the scores of all sites with their intervals.

    Args:
        decision: The decision.
        path: CSV file to write.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = site_kinds(decision)
    parts = ("", "_low", "_high")
    titles = [f"{kind}_{decision.metric}{part}" for kind in kinds for part in parts]
    gains = [f"gain_over_own{part}" for part in parts]
    writer.writerow(["site", "rows", *titles, *gains, "verdict", "use"])
    for site in decision.sites:
        estimates = [*(site.scores.get(kind) for kind in kinds), site.gain]
        numbers = [
            number
            for one in estimates
            for number in ((one.value, one.low, one.high) if one else (None, None, None))
        ]
        cells = ["" if number is None else f"{number:.6g}" for number in numbers]
        writer.writerow(
            [spreadsheet_cell(site.name), site.test_rows, *cells, site.verdict, site.model]
        )
    files.write_text(path, text.getvalue())
