"""Results beyond the rounds: newcomers, fine-tuned models, the certificate of an equilibrium."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.records.codec import Flat
from equipoise.records.scores import Scores


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
