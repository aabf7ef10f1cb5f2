"""What a run spends until a score is reached: time, energy, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from equipoise.records.rounds import RoundRecord


@dataclass(frozen=True)
class Spending:
    """What was spent by the end of a round."""

    round: int
    seconds: float
    """By the run's clock."""
    joules: float
    """Not a number where clients are elsewhere."""
    megabytes: float


def spendings(records: Sequence[RoundRecord]) -> Iterator[Spending]:
    """After each round of a run; nothing of runs from before there was a clock."""
    joules = megabytes = 0.0
    for record in records:
        if record.clock is None:
            return
        joules += math.nan if record.energy is None else record.energy
        megabytes += record.bytes.both / 1e6
        yield Spending(record.round, record.clock, joules, megabytes)


def best(records: Sequence[RoundRecord], name: str, headline: str, higher: bool) -> float | None:
    """The best named score of a run."""
    values = [
        value for record in records if (value := record.named(name).get(headline)) is not None
    ]
    return (max if higher else min)(values, default=None)


def reached(
    records: Sequence[RoundRecord], name: str, headline: str, higher: bool, target: float
) -> Spending | None:
    """What was spent when a named score was first as good as this; ``None`` if it never was."""
    for record, spent in zip(records, spendings(records), strict=False):
        value = record.named(name).get(headline)
        if value is not None and (value >= target if higher else value <= target):
            return spent
    return None


def target_of(best: float, share: float, higher: bool) -> float:
    """A share of the best score; of an error, the error that is so much larger."""
    return best * share if higher else best / share
