"""Figures as text: means with their spread, paired differences, Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks.lab.cells import Record
from equipoise.report.statistics import paired_difference


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table; None is shown as a dash."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows), ""]


def as_options(options: Mapping[str, Any]) -> str:
    """Return options as they are typed, in code marks."""
    words = (f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    return f"`{' '.join(words)}`"


def made_at(records: Iterable[Record]) -> str:
    """Return the commits at which cells were made; `unknown` where none was recorded.

    For cohorts of 5 clients and more, whose influence was bounded otherwise, or not, at first.
    """
    found = list(records)
    commits = {record.commit[:8] if record.commit else "unknown" for record in found}
    words = ", ".join(sorted(commits))
    if all(record.is_bounded for record in found):
        return words
    return f"{words}, before the present bound on influence"


def age(records: Iterable[Record]) -> list[str]:
    """Say how many cells the command may give otherwise today."""
    found = list(records)
    old = sum(not record.is_bounded for record in found)
    if not old:
        return []
    return [
        f"{old} of {len(found)} cells were made before the present bound on the influence of each "
        "client in cohorts of 5 replies and more: today the command may give somewhat other "
        "figures."
    ]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def spread(values: Iterable[float | None], digits: int = 1) -> str:
    """Mean ± standard deviation of those that are there."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{fmean(known):.{digits}f}" + (
        f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    )


def paired(ours: Sequence[Record], theirs: Sequence[Record], key: str, digits: int) -> str | None:
    """Mean and 95 % interval of the differences over common seeds; None for fewer than two."""
    mine, other = ({record["seed"]: record[key] for record in group} for group in (ours, theirs))
    seeds = sorted(mine.keys() & other.keys())
    found = paired_difference([mine[seed] for seed in seeds], [other[seed] for seed in seeds])
    return (
        None
        if found is None
        else f"{found.mean:+.{digits}f} ± {found.high - found.mean:.{digits}f}"
    )
