"""Sections of the report: result, scores, clients, decisions, cost and further facts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

from equipoise.records.rounds import INFLUENCE_GUARD, RoundRecord
from equipoise.report import (
    client_figures,
    client_gains,
    cost_figures,
    decision_figures,
    figures,
    tables,
)
from equipoise.report.blocks import (
    MISSING,
    Block,
    Code,
    Details,
    Heading,
    Paragraph,
    Plot,
    Plots,
    Section,
    TableBlock,
    TableCell,
    TableColumn,
    Tiles,
    number_text,
)
from equipoise.report.figures import Figure, MetricDisplay
from equipoise.report.run_data import RunData, RunGroup

MAX_LISTED_CLIENTS = 200  # clients of a table; of more, the worst and the best
MAX_GUARDED_CLIENTS = 5  # clients that the table of guards names
MAX_DECISION_GROUPS = 6  # groups whose decisions are drawn client by client


class _PlotList:
    """The figures of a page, numbered in the order in which they are drawn."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def add(self, title: str, figure: Figure | None, caption: str = "") -> list[Plot]:
        """Give a figure its number; empty if there is none."""
        if figure is None:
            return []
        plot = Plot(f"plot-{len(self.figures)}", title, caption)
        self.figures[plot.id] = figure
        return [plot]


def report_sections(
    groups: Sequence[RunGroup], display: MetricDisplay, command: str
) -> tuple[list[Section], dict[str, Figure]]:
    """Make all sections of a report.

    Args:
        groups: Runs to show; several groups are compared.
        display: How their main metric is drawn.
        command: Command that repeats them.

    Returns:
        The sections that have something to show, and their figures by id.
    """
    plots = _PlotList()
    sections = [
        Section("result", "Result", _result_blocks(groups)),
        Section("scores", "Scores", _grid(_score_plots(plots, groups, display))),
        Section("clients", "Clients", _client_blocks(plots, groups, display)),
    ]
    decisions, resources = _decision_plots(plots, groups)
    sections += [
        Section("decisions", "Decisions", _grid(decisions)),
        Section("resources", "Resources", _grid(resources)),
        Section("guards", "Guards", _guard_blocks(groups)),
        Section("cost", _cost_title(groups), _grid(_cost_plots(plots, groups, display))),
        Section("equilibrium", "Equilibrium certificate", _certificate_blocks(groups)),
        Section("theory", "Coverage of the agents", _coverage_blocks(groups)),
        Section("repeat", "Configuration and command", _command_blocks(groups, command)),
    ]
    return [section for section in sections if section.blocks], plots.figures


def _grid(plots: Sequence[Plot]) -> list[Block]:
    return [Plots(plots)] if plots else []


def _uses_clock(groups: Sequence[RunGroup]) -> bool:
    return any(run.uses_clock for group in groups for run in group.runs)


# ------------------------------------------------------------------ result


def _result_blocks(groups: Sequence[RunGroup]) -> list[Block]:
    """Show tiles for one method, a table for several."""
    by_method = {group.label: group.summaries for group in groups if group.summaries}
    if not by_method:
        return [Paragraph("No run has finished yet.")]
    first_summary = next(iter(by_method.values()))[0]
    columns = tables.summary_columns(first_summary, with_clock=_uses_clock(groups))
    notes = [Paragraph(note) for note in tables.undefined_notes(by_method, columns)]
    if len(groups) == 1:
        main, rest = _tiles(groups[0], columns)
        return [main, *notes, Details("More figures of this run", [rest])]
    about = (
        "Mean ± standard deviation over seeds; the best of each column is bold. "
        "Press a title to sort."
    )
    titles = _main_titles(columns)
    few = [c for c in columns if c.title in titles or c.title.startswith("steps")]
    others = [column for column in columns if column not in few]
    return [
        Paragraph(about, is_faint=True),
        _result_table(by_method, few),
        Details("More figures", [_result_table(by_method, others)]),
        *notes,
        *_paired_blocks(by_method, columns),
    ]


def _tiles(group: RunGroup, columns: Sequence[tables.SummaryColumn]) -> tuple[Tiles, Tiles]:
    """Show the scores of one method at a glance, and all other figures for those who unfold."""
    summary = group.summaries[0]
    cells = tables.summary_rows({"": group.summaries}, columns)[""]
    known = [cell for cell in cells if cell.mean is not None]
    main = [
        (cell.column.title, str(cell))
        for cell in known
        if cell.column.title in _main_titles(columns)
    ]
    stopped = f" ({summary.stopped})" if summary.stopped else ""
    main.append(("rounds", f"{summary.rounds}{stopped}"))
    shown = {title for title, _ in main}
    rest = [(cell.column.title, str(cell)) for cell in known if cell.column.title not in shown]
    if summary.best_round:
        rest.append(("best round by validation", str(summary.best_round)))
    rest.append(("dropped updates", str(summary.dropped_updates)))
    if summary.about.executor:
        rest.append(("executor", summary.about.executor))
    return Tiles(main), Tiles(rest)


def _main_titles(columns: Sequence[tables.SummaryColumn]) -> list[str]:
    """Return the titles of the columns that everybody reads: scores before training details."""
    return [
        column.title
        for column in columns
        if column.is_main_score or column.title.startswith(("global on", "worst decile"))
    ]


def _result_table(
    by_method: tables.SummariesByMethod, columns: Sequence[tables.SummaryColumn]
) -> TableBlock:
    """Return the table of all methods, with the best mean of each column marked."""
    cells = tables.summary_rows(by_method, columns)
    best_means: list[float | None] = []
    for i, column in enumerate(columns):
        means = [mean for row in cells.values() if (mean := row[i].mean) is not None]
        choose = max if column.higher_is_better else min
        best_means.append(choose(means) if len(by_method) > 1 and means else None)
    rows = []
    for method, row in cells.items():
        row_cells = [TableCell(method)]
        for cell, best in zip(row, best_means, strict=True):
            is_best = cell.mean is not None and cell.mean == best
            row_cells.append(TableCell(str(cell), cell.mean, is_best))
        rows.append(row_cells)
    head = [TableColumn("method")]
    head += [TableColumn(column.title, column.higher_is_better) for column in columns]
    return TableBlock(head, rows)


def _paired_blocks(
    by_method: tables.SummariesByMethod, columns: Sequence[tables.SummaryColumn]
) -> list[Block]:
    """Show the differences of all methods to the best one, seed by seed."""
    main_columns = [column for column in columns if column.is_main_score]
    blocks: list[Block] = []
    for paired in tables.paired_tables(by_method, main_columns):
        title = paired.column.title
        if paired.undefined:
            blocks += [Heading(title), Paragraph(f"Undefined: {paired.undefined}.")]
            continue
        digits = paired.column.digits
        rows = []
        for method, difference in paired.differences.items():
            interval = f"{difference.low:+.{digits}f} … {difference.high:+.{digits}f}"
            rows.append(
                [
                    TableCell(method),
                    TableCell(f"{difference.mean:+.{digits}f}", difference.mean),
                    TableCell(interval, difference.low),
                    TableCell(difference.verdict),
                ]
            )
        higher = paired.column.higher_is_better
        head = [
            TableColumn("method"),
            TableColumn("difference", higher),
            TableColumn("95 % interval", higher),
            TableColumn(""),
        ]
        blocks += [
            Heading(f"{title}: difference to {paired.best}, the best"),
            TableBlock(head, rows),
        ]
    return [Details("Paired differences over seeds", blocks)] if blocks else []


# ------------------------------------------------------------------ plots


def _score_plots(
    plots: _PlotList, groups: Sequence[RunGroup], display: MetricDisplay
) -> list[Plot]:
    """Return the figures of scores: of all methods, or the course of one."""
    shown: list[Plot] = []
    if len(groups) > 1:
        for name in ("global", "personal", "received"):
            title = figures.SCORE_TITLES[name].capitalize()
            shown += plots.add(title, figures.score_of_methods(groups, display, name))
        shown += plots.add(
            "Global against personal score",
            figures.global_against_personal(groups, display),
            "Last evaluation. Methods without a global model are absent; small marks are seeds, "
            "bars their deviation.",
        )
    else:
        shown += plots.add("Scores over rounds", figures.scores_of_one_method(groups, display))
        path = figures.score_path(groups, display)
        shown += plots.add("Way of the run", path, "One point per round; first seed.")
    shown += plots.add(
        "Error against theory",
        cost_figures.error_against_theory(groups, display),
        "The slope of the theory passes through the last point, because its constants are unknown; "
        "a constant learning rate ends in a plateau.",
    )
    shown += plots.add(
        "Subspace distance",
        cost_figures.subspace_distance(groups),
        "Between the representation that agents receive and the best one for all of them; "
        "mean over agents.",
    )
    return shown


def _client_blocks(
    plots: _PlotList, groups: Sequence[RunGroup], display: MetricDisplay
) -> list[Block]:
    """Show the clients: gains, scores, data, newcomers, and the table of one method."""
    gains = client_gains.gains_table(groups, display)
    boxes = client_figures.personal_score_boxes(groups, display)
    shown = plots.add("Personal models, client by client", boxes, "All seeds; one dot per client.")
    side = "Above" if display.higher_is_better else "Below"
    shown += plots.add(
        "Before and after",
        client_figures.received_against_personal(groups, display),
        f"{side} the line a client gained; one seed.",
    )
    partition = client_figures.label_partition(groups)
    shown += plots.add(
        "Classes of each client", partition, "Share of each class in a client's training data."
    )
    sizes = client_figures.client_sizes(groups)
    shown += plots.add("Training samples of each client", sizes, "Of those that took part.")
    heldout = client_figures.heldout_clients(groups, display)
    shown += plots.add("Newcomers", heldout, "Clients that training never saw.")
    blocks: list[Block] = [gains] if gains else []
    blocks += _grid(shown)
    if len(groups) == 1:
        blocks += _client_table(groups[0].first_run)
    return blocks


def _client_table(run: RunData) -> list[Block]:
    """List the clients; of very many, those with the lowest and the highest personal score."""
    num_clients = len(run.clients.get("client", []))
    if not num_clients:
        return []
    rows = list(range(num_clients))
    selection = ""
    if num_clients > MAX_LISTED_CLIENTS:
        scores = run.personal_scores or [0.0] * num_clients
        rows.sort(key=lambda i: scores[i] if math.isfinite(scores[i]) else math.inf)
        half = MAX_LISTED_CLIENTS // 2
        rows = sorted([*rows[:half], *rows[-half:]])
        selection = f" ({half} with the lowest and {half} with the highest score of {num_clients})"

    def cell(name: str, value: float) -> TableCell:
        is_name = name == "client" and bool(run.names)
        return TableCell(run.client_name(value) if is_name else number_text(value), value)

    head = [TableColumn(name.replace("_", " ")) for name in run.clients]
    cells = [[cell(name, values[i]) for name, values in run.clients.items()] for i in rows]
    return [Details(f"Table of clients{selection}", [TableBlock(head, cells)])]


def _decision_plots(plots: _PlotList, groups: Sequence[RunGroup]) -> tuple[list[Plot], list[Plot]]:
    """Draw what was decided, and what it took of the clients' resources."""
    caption = "Mean over clients, band from the least to the most."
    epochs = cost_figures.local_training(groups, "epochs")
    decisions = plots.add("Epochs over rounds", epochs, caption)
    rates = cost_figures.local_training(groups, "lr")
    decisions += plots.add("Learning rates over rounds", rates, caption)
    epsilon = cost_figures.privacy_spent(groups)
    resources = plots.add("Privacy spent", epsilon, "Epsilon of the global models so far.")
    for group in groups[:MAX_DECISION_GROUPS]:
        run = group.first_run
        prefix = f"{group.label}: " if len(groups) > 1 else ""
        for name, grid in decision_figures.decision_grids(run).items():
            heatmap = decision_figures.decision_heatmap(name, grid)
            if heatmap is None:
                continue
            title, figure, about = heatmap
            is_resource = name in decision_figures.RESOURCE_NAMES
            (resources if is_resource else decisions).extend(
                plots.add(prefix + title, figure, about)
            )
        counts = decision_figures.part_counts(run)
        if counts is None:
            continue
        by_round, by_client = counts
        names = decision_figures.model_parts(run).names
        decisions += plots.add(
            f"{prefix}Parts given, over rounds",
            decision_figures.parts_over_rounds(by_round, run.last_round, names),
            "Share of the clients that got each.",
        )
        decisions += plots.add(
            f"{prefix}Parts given, by evenness of labels",
            decision_figures.parts_by_evenness(by_client, run.labels, names),
            "Clients in five groups by the entropy of their labels: 0 is one class, "
            "1 is all alike; all rounds.",
        )
    return decisions, resources


def _cost_title(groups: Sequence[RunGroup]) -> str:
    return "Time, energy and bytes" if _uses_clock(groups) else "Time and bytes"


def _cost_plots(plots: _PlotList, groups: Sequence[RunGroup], display: MetricDisplay) -> list[Plot]:
    by_time = cost_figures.score_against_time(groups, display)
    shown = plots.add("Score against time", by_time, "First seed of each.")
    by_energy = cost_figures.score_against_energy(groups, display)
    shown += plots.add("Score against energy", by_energy, "Of all clients; first seed of each.")
    by_bytes = cost_figures.score_against_bytes(groups, display)
    shown += plots.add("Score against bytes", by_bytes, "First seed of each.")
    total = cost_figures.bytes_so_far(groups)
    shown += plots.add("Bytes so far", total, "Everything that is sent, both ways; first seed.")
    seconds = cost_figures.seconds_per_round(groups)
    about = "As measured on the machine that ran it; first seed."
    shown += plots.add("Time", seconds, about)
    return shown


# ------------------------------------------------------------------ further facts


def _guard_blocks(groups: Sequence[RunGroup]) -> list[Block]:
    """Show which guards against hostile or broken clients acted, and on whom."""
    rows = []
    for group in groups:
        for run in group.runs:
            for guard in sorted({name for record in run.records for name in record.guards}):
                acted = [record for record in run.records if guard in record.guards]
                count = sum(record.guards[guard] for record in acted)
                cells = [
                    TableCell(f"{group.label} {run.folder.path.name}".strip()),
                    TableCell(guard),
                    TableCell(str(len(acted)), len(acted)),
                    TableCell(str(count), count),
                    TableCell(_guarded_clients(acted, guard)),
                ]
                rows.append(cells)
    if not rows:
        return []
    about = (
        "Replies that were left out of a round, by reason, and clients whose influence was "
        "limited to that of nearly all others (guard influence). In large cohorts the longest "
        "honest changes are limited too; rounds.jsonl has by how much (shrunk)."
    )
    titles = ("run", "guard", "rounds", "replies", "clients most often")
    return [
        Paragraph(about, is_faint=True),
        TableBlock([TableColumn(title) for title in titles], rows),
    ]


def _guarded_clients(records: Sequence[RoundRecord], guard: str) -> str:
    """Name the clients on which a guard acted most often."""
    counts: Counter[int] = Counter()
    for record in records:
        counts.update(record.shrunk if guard == INFLUENCE_GUARD else record.dropped)
    return ", ".join(str(client) for client, _ in counts.most_common(MAX_GUARDED_CLIENTS))


def _certificate_blocks(groups: Sequence[RunGroup]) -> list[Block]:
    """Show what `equipoise certify` found."""
    rows = []
    for group in groups:
        for summary in group.summaries:
            certificate = summary.certificate
            if certificate is None:
                continue
            server_gain = certificate.server.gain if certificate.server else None
            clients = certificate.clients
            gains = [
                certificate.largest_gain,
                clients.largest,
                clients.mean,
                clients.gaining,
                server_gain,
            ]
            cells = [TableCell(f"{group.label}, seed {summary.about.seed}")]
            for gain in gains:
                text = MISSING if gain is None else f"{100 * gain:.1f} %"
                cells.append(TableCell(text, gain))
            cells.append(TableCell(str(certificate.samples), float(certificate.samples)))
            rows.append(cells)
    if not rows:
        return []
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
        "What any player would gain in utility by deviating alone, relative to what it has; "
        "0 % is an equilibrium. The choices are sampled, so these are lower bounds."
    )
    return [
        Paragraph(about, is_faint=True),
        TableBlock([TableColumn(title) for title in titles], rows),
    ]


def _coverage_blocks(groups: Sequence[RunGroup]) -> list[Block]:
    """Show how the agents' trajectories cover the state-action space, as the theory assumes."""
    rows = []
    for group in groups:
        for summary in group.summaries[:1]:
            coverage = summary.extra.get("coverage")
            if not coverage:
                continue
            names = ("mu_min", "mu_avg", "c_het", "t_mix")
            values = [summary.extra["error"], *(coverage[name] for name in names)]
            cells = [TableCell(number_text(value), value) for value in values]
            rows.append([TableCell(group.label), *cells])
    titles = ("method", "final error", "μ_min", "μ_avg", "C_het", "t_mix")
    return [TableBlock([TableColumn(title) for title in titles], rows)] if rows else []


def _command_blocks(groups: Sequence[RunGroup], command: str) -> list[Block]:
    """Show the command, and every option with its value."""
    blocks: list[Block] = [Code(command)]
    for group in groups:
        config = json.dumps(group.first_run.config, indent=1)
        blocks.append(Details(f"Configuration: {group.label}", [Code(config)]))
    return blocks
