"""Paired comparison over seeds: every method against the best one, with an interval; a tie is called a tie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from equipoise.records.summary import Summary
from equipoise.report.tables import Column

# Quantile 0.975 of Student's t for 1, 2, ... 30 degrees of freedom; beyond, the normal one serves.
T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Difference:
    """One method minus another, in the column's unit: mean and 95 % interval over paired seeds."""

    mean: float
    low: float
    high: float
    higher: bool = True
    """Whether more is better."""

    @property
    def verdict(self) -> str:
        if self.low <= 0 <= self.high:
            return "tie"
        return "ahead" if (self.mean > 0) == self.higher else "behind"


def difference(
    ours: Sequence[float], theirs: Sequence[float], higher: bool = True
) -> Difference | None:
    """Mean of the paired differences with Student's interval; ``None`` for fewer than two pairs."""
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(pairs) < 2:
        return None
    half, mean = half_width(pairs), fmean(pairs)
    return Difference(mean, mean - half, mean + half, higher)


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of the mean, of two values or more."""
    t = T975[len(values) - 2] if len(values) - 2 < len(T975) else 1.96
    return t * stdev(values) / sqrt(len(values))


def against_best(
    by_method: Mapping[str, Sequence[Summary]], column: Column
) -> tuple[str, dict[str, Difference | None]]:
    """The method with the best mean, and the paired difference of every other one that has the figure."""
    values: dict[str, list[float]] = {}
    for method, summaries in by_method.items():
        found = [column.get(summary) for summary in summaries]
        if all(value is not None for value in found):
            values[method] = [column.scale * value for value in found if value is not None]
    best = (max if column.higher else min)(values, key=lambda method: fmean(values[method]))
    return best, {
        m: difference(v, values[best], column.higher) for m, v in values.items() if m != best
    }


def to_markdown(by_method: Mapping[str, Sequence[Summary]], columns: Sequence[Column]) -> str:
    """One table per column; nothing when there is but one seed or one method."""
    if len(by_method) < 2 or min(map(len, by_method.values())) < 2:
        return ""
    lines = ["", "## Paired differences to the best, 95 % intervals over seeds", ""]
    for column in columns:
        best, others = against_best(by_method, column)
        lines += [
            f"**{column.title}**, best: {best}",
            "",
            "| method | difference | interval | |",
            "|---|---:|---:|---|",
        ]
        for method, d in sorted(
            others.items(),
            key=lambda item: (-1 if column.higher else 1) * (item[1].mean if item[1] else 0),
        ):
            if d is not None:
                digits = column.digits
                interval = f"{d.low:+.{digits}f} … {d.high:+.{digits}f}"
                lines.append(f"| {method} | {d.mean:+.{digits}f} | {interval} | {d.verdict} |")
        lines.append("")
    return "\n".join(lines)
