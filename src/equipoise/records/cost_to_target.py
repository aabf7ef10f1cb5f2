"""Cost of a run until a score is reached: time, energy, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from equipoise.records.rounds import RoundRecord


@dataclass(frozen=True)
class Spending:
    """Total cost at the end of a round."""

    round: int
    seconds: float
    """Time by the clock of the run."""
    joules: float
    """Energy of the clients; NaN in deployments."""
    megabytes: float


def spendings(records: Sequence[RoundRecord]) -> Iterator[Spending]:
    """Iterate over the cost after each round; nothing if the run has no clock."""
    joules = 0.0
    megabytes = 0.0
    for record in records:
        if record.clock is None:
            return
        joules += math.nan if record.energy is None else record.energy
        megabytes += record.bytes.total / 1e6
        yield Spending(record.round, record.clock, joules, megabytes)


def best(records: Sequence[RoundRecord], name: str, metric: str, higher: bool) -> float | None:
    """Return the best score of a run.

    Args:
        records: All rounds.
        name: Evaluation, one of ``NAMED``.
        metric: Main metric.
        higher: Whether higher is better.

    Returns:
        The score; None if there is none.
    """
    values = [
        value for record in records if (value := record.evaluation(name).get(metric)) is not None
    ]
    return (max if higher else min)(values, default=None)


def cost_to_reach(
    records: Sequence[RoundRecord], name: str, metric: str, higher: bool, target: float
) -> Spending | None:
    """Return the cost at which a score first reached a target.

    Args:
        records: All rounds.
        name: Evaluation, one of ``NAMED``.
        metric: Main metric.
        higher: Whether higher is better.
        target: Score to reach.

    Returns:
        The cost; None if the target was never reached.
    """
    for record, spent in zip(records, spendings(records), strict=False):
        value = record.evaluation(name).get(metric)
        if value is not None and (value >= target if higher else value <= target):
            return spent
    return None


def target_of(best: float, share: float, higher: bool) -> float:
    """Return the target: ``best * share``, or ``best / share`` if lower is better.

    Args:
        best: The best score of all methods.
        share: The share of it that counts as reached.
        higher: Whether higher scores are better.
    """
    return best * share if higher else best / share
