"""The sections of the page in their order: result, scores, clients, decisions, resources, cost, facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.report.page import (
    agents,
    clients,
    curves,
    facts,
    heat,
    partition,
    plane,
    repeat,
    results,
    shares,
    spending,
    verdict,
)
from equipoise.report.page.drawing import Score
from equipoise.report.page.frame import Page
from equipoise.report.reading import Group

HEATED = 6  # groups whose decisions are shown client by client


def draw(groups: Sequence[Group], command: str) -> str:
    """The whole page."""
    page, first = Page(), groups[0].first
    score, several = Score(first.headline), len(groups) > 1
    page.section(
        "result", "Result", results.cards(groups, score), results.results(groups, score), grid=False
    )
    _scores(page, groups, score, several)
    _clients(page, groups, score, several)
    _decisions(page, groups, score)
    page.section(
        "cost",
        "Time, energy and bytes",
        page.plot(
            "Score against time", spending.against_time(groups, score), "First seed of each."
        ),
        page.plot(
            "Score against energy",
            spending.against_energy(groups, score),
            "Of all clients; first seed of each.",
        ),
        page.plot(
            "Score against bytes", spending.against_bytes(groups, score), "First seed of each."
        ),
        page.plot(
            "Bytes so far",
            spending.megabytes(groups, score),
            "Everything that is sent, both ways; first seed.",
        ),
        page.plot(
            "Time",
            spending.seconds(groups, score),
            "As measured on the machine that ran it; first seed.",
        ),
    )
    page.section("equilibrium", "Equilibrium certificate", facts.certificates(groups), grid=False)
    page.section("theory", "Coverage of the agents", facts.coverage(groups), grid=False)
    page.section("repeat", "Configuration and command", repeat.repeat(groups, command), grid=False)
    names = ", ".join(group.label for group in groups)
    config, seeds = first.config, max(len(group.runs) for group in groups)
    rounds = max(run.last for group in groups for run in group.runs)
    model = f", model {config['model']}" if config.get("model") else ""
    subtitle = f"Task {config['task']}{model}; up to {rounds} rounds; {seeds} seed{'s' if seeds > 1 else ''}."
    unfinished = sum(run.summary is None for group in groups for run in group.runs)
    if unfinished:
        subtitle += f" {unfinished} of the runs {'is' if unfinished == 1 else 'are'} not finished."
    title = (
        f"{len(groups)} methods on {_data(config)}" if several else f"{names} on {_data(config)}"
    )
    return page.html(title, subtitle, verdict.sentence(groups, score))


def _data(config: dict[str, Any]) -> str:
    """What was learned from: the name of the user's own file or folder, else the task."""
    return (
        Path(str(config["data"])).name
        if config["task"] == "tables" and config.get("data")
        else str(config["task"])
    )


def _scores(page: Page, groups: Sequence[Group], score: Score, several: bool) -> None:
    if several:
        shown = [
            page.plot(curves.NAMES[name].capitalize(), curves.curves_of(name)(groups, score))
            for name in ("global", "personal", "received")
        ]
        sides = page.plot(
            "Both customers at once",
            plane.both_sides(groups, score),
            "Last evaluation. Methods without a global model are absent; small marks are seeds, bars their deviation.",
        )
    else:
        shown = [page.plot("Scores over rounds", curves.curves(groups, score))]
        sides = page.plot(
            "Way of the run", curves.path_of_one(groups, score), "One point per round; first seed."
        )
    about = "Theory's slope hangs on the last point, for its constants are unknown; a constant rate ends in a plateau."
    theory = page.plot("Error against theory", agents.theory(groups, score), about)
    angle = "Between the representation that agents receive and the best one for all of them; mean over agents."
    subspace = page.plot("Subspace distance", agents.subspace(groups, score), angle)
    page.section("scores", "Scores", *shown, sides, theory, subspace)


def _clients(page: Page, groups: Sequence[Group], score: Score, several: bool) -> None:
    gained = f"{'Above' if score.higher else 'Below'} the line a client gained; one seed."
    plots = (
        page.plot(
            "Personal models, client by client",
            clients.spread(groups, score),
            "All seeds; one dot per client.",
        ),
        page.plot("Before and after", clients.before_after(groups, score), gained),
        page.plot(
            "Partition",
            partition.labels(groups, score),
            "Share of each class in a client's training data.",
        ),
        page.plot(
            "Sizes",
            partition.sizes(groups, score),
            "Training samples of each client that took part.",
        ),
        page.plot(
            "Newcomers", clients.newcomers(groups, score), "Clients that training never saw."
        ),
    )
    gains, table = verdict.by_name(groups, score), "" if several else facts.clients(groups[0].first)
    inner = "".join(plots)
    page.section(
        "clients",
        "Clients",
        gains,
        f'<div class="grid">{inner}</div>' if inner else "",
        table,
        grid=False,
    )


def _decisions(page: Page, groups: Sequence[Group], score: Score) -> None:
    """What was decided, and what it took of the clients' resources."""
    decided = [
        page.plot(
            title,
            spending.training(what)(groups, score),
            "Mean over clients, band from the least to the most.",
        )
        for what, title in (("epochs", "Epochs over rounds"), ("lr", "Learning rates over rounds"))
    ]
    spent = [
        page.plot(
            "Privacy spent", spending.privacy(groups, score), "Epsilon of the global models so far."
        )
    ]
    for group in groups[:HEATED]:
        whose = f"{group.label}: " if len(groups) > 1 else ""
        for name, grid in heat.grids(group.first).items():
            if drawn := heat.heat_map(name, grid):
                plot = page.plot(whose + drawn[0], drawn[1], drawn[2])
                (spent if name in heat.RESOURCES else decided).append(plot)
        if counts := shares.counted(group.first):
            names = shares.parts_of(group.first).names
            over = shares.over_rounds(counts[0], group.first.last, names)
            decided.append(
                page.plot(
                    f"{whose}Parts given, over rounds", over, "Share of the clients that got each."
                )
            )
            even = shares.by_evenness(counts[1], group.first.labels, names)
            about = "Clients in five groups by the entropy of their labels: 0 is one class, 1 is all alike; all rounds."
            decided.append(page.plot(f"{whose}Parts given, by evenness of labels", even, about))
    page.section("decisions", "Decisions", *decided)
    page.section("resources", "Resources", *spent)
