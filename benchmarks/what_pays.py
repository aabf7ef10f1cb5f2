"""Write docs/explanation/what-pays.md from committed results.

``python -m benchmarks.what_pays`` runs it; a test compares the page.

Every row is a difference over cells that share all but one thing: first the mean over the seeds of
each federation, then mean and 95 % interval over federations; over seeds where there is one
federation only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.lab.cells import Record, Results
from benchmarks.lab.provenance import RESULTS, ROOT
from benchmarks.lab.tables import table
from equipoise.report.statistics import PairedDifference, paired_difference

PAGE = ROOT / "docs" / "explanation" / "what-pays.md"
Value = Callable[[Record], float | None]


@dataclass(frozen=True)
class Side:
    """Cells of one study, and the figure that is read of each, in points."""

    value: Value
    axes: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """Does this setting of a decision pay against that one?"""

    decision: str
    setting: str
    instead: str
    study: str
    ours: Side
    theirs: Side
    column: str
    federation: str = ""
    """The axis that tells federations apart; none where the study has one."""


def accuracy(name: str) -> Value:
    """A figure in percent under this name."""
    return lambda record: record.result.get(name)


def of_summary(name: str) -> Value:
    """An accuracy of a summary."""
    return lambda record: (
        100 * record["summary"][name]["acc"] if record["summary"].get(name) else None
    )


def both(
    decision: str,
    setting: str,
    instead: str,
    study: str,
    ours: dict[str, Any],
    theirs: dict[str, Any],
    federation: str = "",
) -> Iterable[Question]:
    """The same question for the global and the personal model."""
    for column in ("global", "personal"):
        mine, other = (Side(accuracy(column), axes) for axes in (ours, theirs))
        yield Question(decision, setting, instead, study, mine, other, column, federation)


def variant(name: str) -> dict[str, Any]:
    return {"variant": name}


def synthetic(name: str, other: str) -> Iterable[Question]:
    """A method against another on PAGE's Synthetic, both at their defaults."""
    for column in ("global", "personal"):
        ours, theirs = (
            Side(of_summary(column), {"settings": "default", "method": one})
            for one in (name, other)
        )
        yield Question("3 aggregate", f"`{name}`", f"`{other}`", "synthetic", ours, theirs, column)


GAME = "1 training", "PAGE's agents, default reading"
QUESTIONS: tuple[Question, ...] = (
    *both(
        "1 training",
        "`autopilot`",
        "`fedavg`",
        "autopilot",
        variant("autopilot"),
        variant("fedavg"),
        "family",
    ),
    *both(
        "1 training",
        "`autopilot`",
        "`fedavg`, 8 epochs",
        "autopilot",
        variant("autopilot"),
        variant("fedavg-8"),
        "family",
    ),
    *both(
        "1 training",
        "8 epochs",
        "the task's own",
        "autopilot",
        variant("fedavg-8"),
        variant("fedavg"),
        "family",
    ),
    *both(
        "1 training",
        "a rate that is tried",
        "the task's own",
        "autopilot",
        variant("autopilot"),
        variant("configured-rate"),
        "family",
    ),
    *both(
        "1 training",
        "PAGE's agents, `--reading paper`",
        "`fedavg`",
        "readings",
        {"column": "synthetic-300", "variant": "paper-each"},
        {"column": "synthetic-300", "variant": "fedavg"},
    ),
    *both(*GAME, "`fedavg`", "readings", variant("relative"), variant("fedavg"), "column"),
    *both(
        *GAME,
        "no learning (`--control zero`)",
        "readings",
        variant("relative"),
        variant("relative-zero"),
        "column",
    ),
    *both(
        *GAME,
        "chance (`--control random`)",
        "readings",
        variant("relative"),
        variant("relative-random"),
        "column",
    ),
    *both(
        "3 aggregate",
        "momentum by the length of the run",
        "none",
        "autopilot",
        variant("autopilot"),
        variant("no-momentum"),
        "family",
    ),
    *both(
        "3 aggregate",
        "small coordinates amplified",
        "as clients moved them",
        "autopilot",
        variant("autopilot"),
        variant("no-reach"),
        "family",
    ),
    *both(
        "3 aggregate",
        "weights by size",
        "all clients alike",
        "autopilot",
        variant("autopilot"),
        variant("no-sizes"),
        "family",
    ),
    *synthetic("scaffold", "fedavg"),
    *synthetic("feddyn", "fedavg"),
    *both(
        "4 install",
        "`fedpolicy`, the gate",
        "`fedavg`",
        "redistribution",
        variant("gate"),
        variant("fedavg"),
        "population",
    ),
    *both(
        "4 install",
        "`fedpolicy`, the gate",
        "full for 80 % of the rounds, then none",
        "redistribution",
        variant("gate"),
        variant("full:0.8,none"),
        "population",
    ),
    *both(
        "4 install",
        "`fedper`",
        "`fedavg`",
        "fedpolicy",
        variant("fedper"),
        variant("fedavg"),
        "scenario",
    ),
    Question(
        *("5 personal", "fine-tuning, stopped by validation", "the model as received", "fedpolicy"),
        *(
            Side(accuracy("tuned"), variant("fedavg")),
            Side(accuracy("personal"), variant("fedavg")),
        ),
        *("personal", "scenario"),
    ),
    Question(
        *(
            "5 personal",
            "`fedpolicy`, the gate, then fine-tuned",
            "`fedavg`, fine-tuned",
            "redistribution",
        ),
        *(Side(accuracy("tuned"), variant("gate")), Side(accuracy("tuned"), variant("fedavg"))),
        *("personal", "population"),
    ),
    Question(
        *("5 personal", "`ditto`, skewed labels and sizes", "`fedavg`", "table3"),
        *(
            Side(accuracy("personal"), {"method": "ditto"}),
            Side(accuracy("personal"), {"method": "fedavg"}),
        ),
        *("personal", "population"),
    ),
    Question(
        *("5 personal", "`ditto`", "`fedavg`", "redistribution"),
        *(
            Side(accuracy("personal"), variant("ditto")),
            Side(accuracy("personal"), variant("fedavg")),
        ),
        *("personal", "population"),
    ),
    *both(
        "5 personal",
        "`local`: no federation at all",
        "`fedavg`",
        "redistribution",
        variant("local"),
        variant("fedavg"),
        "population",
    ),
)


def compared(question: Question) -> tuple[PairedDifference, int, int] | None:
    """The difference, and over how many federations and pairs of cells; None where too little was
    run.
    """
    results = Results(RESULTS / question.study)
    groups: dict[Any, list[tuple[float, float]]] = {}
    theirs = {
        _place(record, question): question.theirs.value(record)
        for record in results.where(**question.theirs.axes)
    }
    for record in results.where(**question.ours.axes):
        place, value = _place(record, question), question.ours.value(record)
        other = theirs.get(place)
        if value is not None and other is not None:
            groups.setdefault(place[0], []).append((value, other))
    means = [tuple(fmean(pair[k] for pair in pairs) for k in (0, 1)) for pairs in groups.values()]
    pairs = means if len(means) > 1 else [pair for group in groups.values() for pair in group]
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return None if found is None else (found, len(groups), sum(map(len, groups.values())))


def _place(record: Record, question: Question) -> tuple[Any, Any]:
    return record.axes.get(question.federation), record.axes["seed"]


def rows() -> list[tuple[Question, PairedDifference, int, int]]:
    return [
        (question, *found) for question in QUESTIONS if (found := compared(question)) is not None
    ]


def page() -> str:
    """The text, its rows sorted into what pays, what costs and what is not decided, the largest
    first.
    """
    known = sorted(rows(), key=lambda row: -abs(row[1].mean))
    parts = {
        "ahead": "What pays",
        "behind": "What costs accuracy",
        "tie": "What made no certain difference",
    }
    lines = [
        "# What pays",
        "",
        "After this page you know which setting of a round was worth how many points of accuracy",
        "in our own measurements.",
        "",
        "![Points of accuracy by setting, with intervals](../pictures/what_pays_points.svg)",
        "",
        "*The certain differences of the tables below. Drawn by `python -m benchmarks.pictures`;",
        "the studies in the last column name the seeds.*",
        "",
        "Positive means that the setting is better than the one in the column *instead of*.",
        "Intervals are 95 %, over federations, or over seeds if there is one federation. An",
        "interval over few federations says little about yours: try `equipoise compare`. The",
        "tables are written by `python -m benchmarks.what_pays` from the committed results.",
        "",
    ]
    head = (
        "decision",
        "setting",
        "instead of",
        "model",
        "points",
        "federations",
        "pairs of runs",
        "results",
    )
    for verdict, title in parts.items():
        chosen = [row for row in known if row[1].verdict == verdict]
        lines += [f"## {title}", ""]
        lines += (
            table(head, [_row(*row) for row in chosen])
            if chosen
            else ["Nothing that was measured.", ""]
        )
    lines += [
        "## Where to go next",
        "",
        "- [Which method should I use?](../which-method.md)",
        "- [When federated learning does not pay](when-it-does-not-pay.md).",
        "",
    ]
    return "\n".join(lines)


def _row(question: Question, found: PairedDifference, federations: int, pairs: int) -> list[Any]:
    points = f"{found.mean:+.1f} ± {found.high - found.mean:.1f}"
    where = f"[{question.study}](../../benchmarks/results/{question.study}/README.md)"
    words = [question.decision, question.setting, question.instead, question.column]
    return [*words, points, federations, pairs, where]


if __name__ == "__main__":
    PAGE.write_text(page())
