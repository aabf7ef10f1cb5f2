"""Summary of a finished run: scores, convergence, cost, held-out clients, certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from equipoise.records.codec import Flat
from equipoise.records.rounds import Bytes, PrivacySpent, RoundRecord
from equipoise.records.scores import NOTHING, Evaluations, HasEvaluations, Scores

MIN_RELATIVE_GAIN = 1e-4
"""Smaller gains of the validation loss do not count: a run that hardly moves has converged."""


@dataclass(frozen=True)
class Newcomers:
    """Scores of held-out clients after some local training."""

    clients: int
    after: Flat[dict[int, Scores]]
    """Scores by epochs of local training (of agents: environment steps)."""


@dataclass(frozen=True)
class Finetuned:
    """Scores after fine-tuning, with ``lr`` and ``epochs`` chosen by validation data."""

    scores: Flat[Scores]
    lr: float | None
    """None if no fine-tuning was best."""
    epochs: int


@dataclass(frozen=True)
class ClientGains:
    """Relative gains in utility of clients that deviate alone."""

    largest: float
    mean: float
    gaining: float
    """Share of the clients that gain."""


@dataclass(frozen=True)
class ServerGains:
    """Relative gains of the server from other weights, for itself and for the aggregate."""

    gain: float
    gain_of_the_aggregate: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Distance of the last strategies from an equilibrium, from sampled deviations."""

    round: int
    samples: int
    clients: ClientGains
    server: ServerGains | None = None
    """None if the server does not choose weights."""
    largest_gain: float
    """Largest relative gain of any player: 0.05 is a gain in utility of 5 %."""


@dataclass(frozen=True)
class ModelScore:
    """Main metric of one kind of model on the clients' own test rows."""

    mean: float | None
    """Every client counts alike; None if the metric is undefined for all of them."""
    weighted: float | None
    """Every row counts alike."""
    clients: int
    """Clients with a defined score."""
    worst_decile: float | None = None
    """Score that nine of ten clients reach: the 10th percentile, of errors the 90th."""


CONVERGENCE_WINDOW = 5  # evaluations in the moving average
CONVERGENCE_TOLERANCE = 0.005  # half a percentage point


@dataclass(frozen=True, kw_only=True)
class About:
    """Identity of a run."""

    method: str
    task: str
    model: str
    seed: int
    executor: str | None = None
    """How clients were computed, and why; None in deployments."""


@dataclass(frozen=True)
class Converged:
    """First round from which a score has stopped improving; None if it has not."""

    global_: int | None
    personal: int | None


@dataclass(frozen=True, kw_only=True)
class Summary(HasEvaluations):
    """Summary of a finished run; its scores (``summary.personal.acc``) are of the last round."""

    about: Flat[About]
    rounds: int
    stopped: str | None
    """Why the run ended before its last round, if it did."""
    test: Flat[Evaluations]
    best_round: int | None
    """Round with the best validation score; None without validation data."""
    best: Evaluations
    """Test scores of that round, else of the last one."""
    converged_round: Converged
    clients_seen: int
    dropped_updates: int
    bytes: Bytes
    bytes_before: Bytes | None = None
    """Traffic before the first round, for preprocessing; part of ``bytes``."""
    steps: int | None = None
    """Gradient steps of all clients in all rounds, if reported."""
    clock: float | None = None
    """Simulated seconds of the run."""
    energy: float | None = None
    """Joules of all clients in all rounds."""
    seconds: float
    privacy: PrivacySpent | None = None
    undefined: dict[str, int] = field(default_factory=dict)
    """Clients without a score (the AUC of one class only), which are not in its mean."""
    same_rows: dict[str, ModelScore] = field(default_factory=dict)
    """Scores on the clients' test rows: ``personal``, ``global``, and of named clients also
    ``constant`` and ``local`` (trained alone). They can be compared with each other."""
    extra: Flat[dict[str, Any]] = field(default_factory=dict)
    """Entries that the task adds (:meth:`Task.summary`)."""
    newcomers: Newcomers | None = None
    finetuned: Finetuned | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Compared:
    """Content of ``compare.json``: the command, and the summaries of each method, one per seed."""

    command: list[str]
    summaries: dict[str, list[Summary]]


def validation_score(record: RoundRecord, metric: str, higher_is_better: bool) -> float | None:
    """Return the score by which rounds are compared; higher is better.

    It is the mean of the global model's score on public data and the personal models' on their own
    data. With differential privacy only public data count: a choice by the clients' rows would leak
    without noise.

    Args:
        record: The round.
        metric: Main metric.
        higher_is_better: Whether a higher metric is better.

    Returns:
        The score; None if nothing was validated.
    """
    if record.val is None:
        return None
    scores = [record.val.global_]
    is_noisy = record.privacy is not None and record.privacy.epsilon is not None
    if not is_noisy:
        scores.append(record.val.personal)
    values = [value for score in scores if (value := score.get(metric)) is not None]
    if not values:
        return None
    return fmean(values) if higher_is_better else -fmean(values)


def evaluations_without_gain(
    records: Sequence[RoundRecord], metric: str, higher_is_better: bool
) -> int:
    """Count the evaluations since validation was last better than ever before.

    The validation loss decides, because on few rows a score such as AUC jumps to its best by chance
    in an early round; the main metric decides where there is no loss.

    Args:
        records: The rounds so far.
        metric: Main metric.
        higher_is_better: Whether a higher metric is better.
    """
    scores = [validation_score(record, "loss", False) for record in records]
    if not any(score is not None for score in scores):
        scores = [validation_score(record, metric, higher_is_better) for record in records]
    best: float | None = None
    count = 0
    for score in scores:
        if score is None:
            continue
        count += 1
        if best is None or score > best + MIN_RELATIVE_GAIN * abs(best):
            best = score
            count = 0
    return count


def convergence_round(
    records: Sequence[RoundRecord], name: str, metric: str, higher_is_better: bool
) -> int | None:
    """Return the first round from which a score has stopped improving.

    That is the first evaluation at which the moving average over five evaluations is within half a
    point of its best value.

    Args:
        records: Rounds with evaluations.
        name: Evaluation, one of ``NAMED``.
        metric: Main metric.
        higher_is_better: Whether a higher metric is better.

    Returns:
        The round; None if there are fewer than five evaluations.
    """
    points = [
        (record.round, value)
        for record in records
        if (value := record.evaluation(name).get(metric)) is not None
    ]
    if len(points) < CONVERGENCE_WINDOW:
        return None
    sign = 1.0 if higher_is_better else -1.0
    means = [
        sign * fmean(value for _, value in points[i - CONVERGENCE_WINDOW + 1 : i + 1])
        for i in range(CONVERGENCE_WINDOW - 1, len(points))
    ]
    first = next(i for i, mean in enumerate(means) if mean >= max(means) - CONVERGENCE_TOLERANCE)
    return points[first + CONVERGENCE_WINDOW - 1][0]


def summarise(
    about: About, records: Sequence[RoundRecord], metric: str, higher_is_better: bool
) -> Summary:
    """Summarise all rounds of a run.

    Args:
        about: Identity of the run.
        records: All rounds.
        metric: Main metric.
        higher_is_better: Whether a higher metric is better.

    Returns:
        The summary.
    """
    last = records[-1]
    nothing = Evaluations(global_=NOTHING)
    evaluated = [record for record in records if record.has_client_scores]
    scored = [(validation_score(record, metric, higher_is_better), record) for record in evaluated]
    known = [(score, record) for score, record in scored if score is not None]
    best = max(known, key=lambda pair: pair[0])[1] if known else last
    converged = [
        convergence_round(evaluated, name, metric, higher_is_better)
        for name in ("global", "personal")
    ]
    return Summary(
        about=about,
        rounds=last.round,
        stopped=last.stop,
        test=last.test or nothing,
        best_round=best.round if known else None,
        best=best.test or nothing,
        converged_round=Converged(*converged),
        clients_seen=last.seen,
        dropped_updates=sum(len(record.dropped) for record in records),
        bytes=sum((record.bytes for record in records), Bytes(0, 0)),
        steps=sum(record.steps for record in records if record.steps is not None) or None,
        clock=last.clock,
        energy=None if last.energy is None else sum(record.energy or 0.0 for record in records),
        seconds=sum(record.seconds for record in records),
        privacy=last.privacy,
    )
