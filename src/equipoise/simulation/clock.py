"""The simulated clock of a run: who can be asked, who is under way, and what has come when a round ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.clock.config import ClockConfig, end_of_round
from equipoise.clock.devices import SECONDS_PER_HOUR, DevicePopulation, RoundDurations
from equipoise.core import ClientResult, ClientUpdate, Params, State
from equipoise.simulation.executors import CohortResults, RoundReplies, StartGroup
from equipoise.utils import pytree
from equipoise.utils.pytree import Ints
from equipoise.utils.rng import cohort_size

LOST, LATE = "it dropped out", "its reply came too late"
MIN_DEADLINE_SHARE = 10
LEAST = 1e-300  # seconds: nothing is divided by zero


@pytree.message
@dataclass
class InFlightBatch:
    """Clients that are under way since one round: when they reply or are lost, and what they will bring."""

    ids: Tensor
    at: Tensor
    lost: Tensor
    joules: Tensor
    seconds: Tensor
    began: Tensor
    """The round in which each started."""
    reply: ClientResult
    """In a round after that, its models are what changed of the one that was sent."""


@dataclass(frozen=True)
class StartedBatch:
    """The clients that begin in a round: what goes down to each, what comes up, and how many samples it trains on."""

    ids: Ints
    replies: CohortResults
    samples: Tensor
    up: int
    down: Tensor


class Clock:
    """Time of the federation. All that changes is in :meth:`state`."""

    def __init__(self, timing: ClockConfig, seed: int, clients: int) -> None:
        self.timing, self.clients = timing, clients
        self.fleet = DevicePopulation(timing.device_classes, seed)
        self.now = 0.0
        self._flight: list[InFlightBatch] = []

    @property
    def under_way(self) -> int:
        return sum(len(parcel.ids) for parcel in self._flight)

    def pool(self, participation: float) -> tuple[Ints | None, int]:
        """Who can be asked now, ``None`` for everybody, and how many are to be.

        Where nobody is there and nobody is under way, time passes until somebody is.
        """
        wanted = cohort_size(self.clients, participation)
        if self.timing.overselection > 1:
            wanted = min(self.clients, int(np.ceil(self.timing.overselection * wanted)))
        count = wanted - self.under_way
        if self.fleet.always_available and not self._flight:
            return None, count
        everybody = np.arange(self.clients)
        idle = (
            np.setdiff1d(everybody, self._ids(), assume_unique=True) if self._flight else everybody
        )
        pool = idle[self.fleet.available(idle, self.now)]
        while not len(pool) and not self._flight:
            self.now = (self.now // SECONDS_PER_HOUR + 1) * SECONDS_PER_HOUR
            pool = idle[self.fleet.available(idle, self.now)]
        return pool, min(count, len(pool))

    def end(
        self, t: int, participation: float, started: StartedBatch | None, params: Params
    ) -> RoundReplies:
        """Let the time of round ``t`` pass; gives what the server, whose model is ``params``, then has in hand."""
        wanted = cohort_size(self.clients, participation)
        if not self.timing.carries_stale_updates:
            assert started is not None
            return self._in_time(t, wanted, started)
        if started is not None:
            self._flight.append(self._parcel(t, started))
        if self.timing.mode == "async":
            wanted = min(self.timing.buffer or max(1, wanted // MIN_DEADLINE_SHARE), self.under_way)
        else:
            wanted = self.under_way + 1  # the clock ends the round, and nothing else
        at, lost = (
            np.concatenate([getattr(p, name).numpy() for p in self._flight])
            for name in ("at", "lost")
        )
        self.now, come = end_of_round(
            self.now, self._ids(), at, lost, wanted, self.timing.deadline_seconds
        )
        return self._collect_arrivals(t, torch.from_numpy(come), params)

    def state(self) -> State:
        """For a checkpoint."""
        flight = {str(place): pytree.to_dict(parcel) for place, parcel in enumerate(self._flight)}
        return {"now": torch.tensor(self.now, dtype=torch.float64), "flight": flight}

    def load(self, state: State) -> None:
        """The inverse of :meth:`state`."""
        self.now = float(state["now"])
        self._flight = [
            pytree.from_dict(InFlightBatch, state["flight"][place])
            for place in sorted(state["flight"], key=int)
        ]

    def _ids(self) -> Ints:
        return np.concatenate([parcel.ids.numpy() for parcel in self._flight])

    def _trips(self, t: int, started: StartedBatch) -> RoundDurations:
        samples, down = (values.double().numpy() for values in (started.samples, started.down))
        return self.fleet.round_durations(
            started.ids, t, samples, np.full(len(started.ids), float(started.up)), down
        )

    def _in_time(self, t: int, wanted: int, started: StartedBatch) -> RoundReplies:
        """Synchronous: the round ends with the wanted replies or at the deadline; what comes later is lost."""
        trips, ids, began = self._trips(t, started), started.ids, self.now
        self.now, come = end_of_round(
            began, ids, began + trips.seconds, trips.lost, wanted, self.timing.deadline_seconds
        )
        intake = RoundReplies.of(ids, started.replies)
        intake.arrived, intake.seconds = (
            torch.from_numpy(come & ~trips.lost),
            torch.from_numpy(trips.seconds),
        )
        # Whoever is not done when the round ends is told to stop.
        part = np.minimum(1.0, (self.now - began) / np.maximum(trips.seconds, LEAST))
        intake.joules = float((trips.joules * part).sum())
        if not bool(intake.arrived.all()):
            away = np.flatnonzero(~intake.arrived.numpy())
            intake.absent |= {
                int(ids[k]): LOST if come[k] and trips.lost[k] else LATE for k in away
            }
        return intake

    def _parcel(self, t: int, started: StartedBatch) -> InFlightBatch:
        trips, reply = self._trips(t, started), started.replies.stack
        assert reply is not None
        return InFlightBatch(
            ids=torch.from_numpy(started.ids),
            at=torch.from_numpy(self.now + trips.seconds),
            lost=torch.from_numpy(trips.lost),
            joules=torch.from_numpy(trips.joules),
            seconds=torch.from_numpy(trips.seconds),
            began=torch.full((len(started.ids),), t, dtype=torch.int64),
            reply=replace(reply, logged={}),
        )

    def _collect_arrivals(self, t: int, come: Tensor, params: Params) -> RoundReplies:
        """Take those whose event has ``come`` out of the flight."""
        arrived: list[InFlightBatch] = []
        left: list[InFlightBatch] = []
        absent: dict[int, str] = {}
        joules, first = 0.0, 0
        for parcel in self._flight:
            here = come[first : first + len(parcel.ids)]
            first += len(here)
            joules += float(parcel.joules[here].sum())
            absent |= dict.fromkeys(parcel.ids[here & parcel.lost].tolist(), LOST)
            for kept, which in ((arrived, here & ~parcel.lost), (left, ~here)):
                if bool(which.any()):
                    kept.append(parcel if bool(which.all()) else pytree.index(parcel, which))
        self._flight = [
            replace(parcel, reply=as_deltas(parcel.reply, params))
            if int(parcel.began[0]) == t
            else parcel
            for parcel in left
        ]
        intake = merge_stale_updates(t, arrived, params, self.timing.staleness)
        intake.absent, intake.joules = dict(sorted(absent.items())), joules
        return intake


def as_deltas(reply: ClientResult, sent: Params) -> ClientResult:
    """Replies that count in a later round: of their models only what changed is kept."""
    changes = {name: after - sent[name] for name, after in reply.update.params.items()}
    return replace(reply, update=replace(reply.update, params=changes))


def merge_stale_updates(
    t: int, parcels: list[InFlightBatch], params: Params, power: float
) -> RoundReplies:
    """Replies from several rounds as one stack: late changes shrink with their age, and are put onto this model.

    With FedAvg's mean this is FedBuff (Nguyen et al. 2022): w + sum of p_i (1 + s_i)^-a change_i.
    """
    if not parcels:
        return RoundReplies.of(np.empty(0, np.int64), CohortResults(torch.arange(0), None))
    stacks = [
        replace(parcel.reply, update=_rebase(params, parcel, t, power), scores={})
        for parcel in parcels
    ]
    ids = torch.cat([parcel.ids for parcel in parcels])
    order = ids.argsort()
    places = torch.empty_like(order)
    places[order] = torch.arange(len(ids))
    ends = np.cumsum([0, *(len(parcel.ids) for parcel in parcels)])
    parts = [
        StartGroup(
            parcel.ids.numpy(), parcel.reply.client_state, parcel.reply.scores, places[first:last]
        )
        for parcel, first, last in zip(parcels, ends, ends[1:], strict=False)
    ]
    stack = pytree.concatenate(stacks)
    if len(parcels) > 1:  # one parcel is in order already
        stack = pytree.index(stack, order)
    intake = RoundReplies.of(ids[order].numpy(), CohortResults.of_all(ids, stack))
    intake.parts, intake.staleness = (
        parts,
        t - torch.cat([parcel.began for parcel in parcels])[order],
    )
    intake.seconds = torch.cat([parcel.seconds for parcel in parcels])[order]
    return intake


def _rebase(params: Params, parcel: InFlightBatch, t: int, power: float) -> ClientUpdate:
    up, age = parcel.reply.update, t - int(parcel.began[0])
    if not age:  # as it came, to the bit
        return up
    weight = (1.0 + age) ** -power
    moved = {
        name: params[name] + (weight * change).to(params[name].dtype)
        for name, change in up.params.items()
    }
    return replace(up, params=moved)
