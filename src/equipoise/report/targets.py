"""Time, energy and bytes until 90 and 95 % of the best score of FedAvg, or of the first method, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from equipoise.records.cost_to_target import Spending, best, reached, target_of
from equipoise.records.rounds import RoundRecord
from equipoise.utils.metrics import higher_is_better

SHARES = (0.9, 0.95)
UNITS: dict[str, Callable[[Spending], float]] = {
    "seconds": lambda spent: spent.seconds,
    "kJ": lambda spent: spent.joules / 1000,
    "MB": lambda spent: spent.megabytes,
}
Runs = Mapping[str, Sequence[Sequence[RoundRecord]]]
"""By method: the rounds of each seed."""


def to_markdown(runs: Runs) -> str:
    """One table per score; nothing where a run has no clock, or there is nothing to compare with."""
    first = next(iter(runs))
    reference = "fedavg" if "fedavg" in runs else first
    if len(runs) < 2 or any(record.clock is None for record in runs[reference][0]):
        return ""
    headline = next(
        (head for record in runs[reference][0] if (head := record.trained.headline)), "acc"
    )
    lines = ["", f"## Time, energy and bytes to {reference}'s scores", ""]
    lines += [
        "Until the first evaluation that is as good as the share of its best score, seed by seed; in brackets how"
    ]
    lines += ["many seeds get there, if not all.", ""]
    before = len(lines)
    for name in ("global", "personal"):
        lines += _table(runs, reference, name, headline)
    return "\n".join(lines) if len(lines) > before else ""


def _table(runs: Runs, reference: str, name: str, headline: str) -> list[str]:
    higher = higher_is_better(headline)
    bests = [best(records, name, headline, higher) for records in runs[reference]]
    if any(value is None for value in bests):
        return []
    titles = [f"{unit} to {100 * share:.0f} %" for share in SHARES for unit in UNITS]
    lines = [
        f"**{name}**",
        "",
        "| method | " + " | ".join(titles) + " |",
        "|---|" + "---:|" * len(titles),
    ]
    for method, seeds in runs.items():
        cells = []
        for share in SHARES:
            found = [
                reached(records, name, headline, higher, target_of(value, share, higher))
                for records, value in zip(seeds, bests, strict=False)
                if value is not None
            ]
            cells += [_cell(found, unit) for unit in UNITS.values()]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(found: Sequence[Spending | None], unit: Callable[[Spending], float]) -> str:
    values = [value for spent in found if spent is not None and math.isfinite(value := unit(spent))]
    if not values:
        return "-"
    spread = f" ± {stdev(values):.3g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{spread}" + (
        f" ({len(values)} of {len(found)})" if len(values) < len(found) else ""
    )
