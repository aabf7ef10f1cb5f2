"""Results beyond the rounds: newcomers, fine-tuned models, the certificate of an equilibrium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from equipoise.records.codec import Flat
from equipoise.records.rounds import Bytes, PrivacySpent, RoundRecord
from equipoise.records.scores import NOTHING, Evaluated, Evaluations, Scores


@dataclass(frozen=True)
class Newcomers:
    """Clients that training never saw, scored after some training of their own."""

    clients: int
    after: Flat[dict[int, Scores]]
    """By their epochs (of agents: environment steps) so far."""


@dataclass(frozen=True)
class Finetuned:
    """Personal models after local fine-tuning, and the rate and epochs that validation data chose for all clients."""

    scores: Flat[Scores]
    lr: float | None
    """``None`` where no tuning at all was best."""
    epochs: int


@dataclass(frozen=True)
class ClientGains:
    """Relative gains of utility of clients that deviate alone."""

    largest: float
    mean: float
    gaining: float
    """The share of the clients that gain."""


@dataclass(frozen=True)
class ServerGains:
    """Relative gains of the server from other weights: in its own utility, and in that of the aggregate."""

    gain: float
    gain_of_the_aggregate: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """How far the last strategies are from an equilibrium, as far as ``samples`` deviations of each player tell."""

    round: int
    samples: int
    clients: ClientGains
    server: ServerGains | None = None
    """``None`` where the server does not choose weights."""
    largest_gain: float
    """The largest relative gain of any player: 0.05 means that somebody could raise its utility by 5 %."""


WINDOW = 5  # evaluations that are averaged to judge convergence
TOLERANCE = 0.005  # half a point


@dataclass(frozen=True, kw_only=True)
class About:
    """Which run it was."""

    method: str
    task: str
    model: str
    seed: int
    executor: str | None = None
    """How clients were computed, and why so; ``None`` where clients were elsewhere."""


@dataclass(frozen=True)
class Converged:
    """The first round from which a score has stopped improving; ``None`` where it has not."""

    global_: int | None
    personal: int | None


@dataclass(frozen=True, kw_only=True)
class Summary(Evaluated):
    """A finished run; its scores (``summary.personal.acc``) are those of the last round."""

    about: Flat[About]
    rounds: int
    stopped: str | None
    """Why it ended before its last round, if it did."""
    test: Flat[Evaluations]
    best_round: int | None
    """The round with the best validation score; ``None`` where nothing was validated."""
    best: Evaluations
    """Test scores of that round, else of the last one."""
    converged_round: Converged
    clients_seen: int
    dropped_updates: int
    bytes: Bytes
    bytes_before: Bytes | None = None
    """What clients exchanged before the first round to prepare their data; part of ``bytes``."""
    steps: int | None = None
    """Gradient steps of all clients in all rounds, where they tell."""
    clock: float | None = None
    """Simulated seconds of the run."""
    energy: float | None = None
    """Joules of all clients in all rounds."""
    seconds: float
    privacy: PrivacySpent | None = None
    undefined: dict[str, int] = field(default_factory=dict)
    """Clients for which a score of the personal models does not exist (the AUC of one class alone): not in its mean."""
    extra: Flat[dict[str, Any]] = field(default_factory=dict)
    """What the task adds (:meth:`Task.summary`)."""
    newcomers: Newcomers | None = None
    finetuned: Finetuned | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Compared:
    """``compare.json``: the command as typed, and the summaries of each method, one per seed."""

    command: list[str]
    summaries: dict[str, list[Summary]]


def validation_score(record: RoundRecord, headline: str, higher_is_better: bool) -> float | None:
    """What "best" means: the global model on public data and the personal ones on their own count alike.

    Under noise only public data are read: what clients' own rows say of a model would choose without noise.
    """
    noised = record.privacy is not None and record.privacy.epsilon is not None
    scores = (
        ()
        if record.val is None
        else (record.val.global_,)
        if noised
        else (record.val.global_, record.val.personal)
    )
    values = [value for score in scores if (value := score.get(headline)) is not None]
    if not values:
        return None
    return fmean(values) if higher_is_better else -fmean(values)


def convergence_round(
    records: Sequence[RoundRecord], name: str, headline: str, higher_is_better: bool
) -> int | None:
    """The first round from which a named score has stopped improving.

    That is: the first evaluation whose mean over the last five is within half a point of the best such mean.
    """
    points = [
        (record.round, value)
        for record in records
        if (value := record.named(name).get(headline)) is not None
    ]
    if len(points) < WINDOW:
        return None
    sign = 1.0 if higher_is_better else -1.0
    means = [
        sign * fmean(value for _, value in points[i - WINDOW + 1 : i + 1])
        for i in range(WINDOW - 1, len(points))
    ]
    first = next(i for i, mean in enumerate(means) if mean >= max(means) - TOLERANCE)
    return points[first + WINDOW - 1][0]


def summarise(
    about: About, records: Sequence[RoundRecord], headline: str, higher_is_better: bool
) -> Summary:
    """From all rounds of a run to its summary."""
    last, nothing = records[-1], Evaluations(global_=NOTHING)
    evaluated = [record for record in records if record.evaluated]
    scored = [
        (validation_score(record, headline, higher_is_better), record) for record in evaluated
    ]
    known = [(score, record) for score, record in scored if score is not None]
    best = max(known, key=lambda pair: pair[0])[1] if known else last
    converged = [
        convergence_round(evaluated, name, headline, higher_is_better)
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
