"""The simulated clock of a run: which clients are available or in flight, and when they reply.

In synchronous mode a round ends with the wanted number of replies or at the deadline, and later
replies are lost. In the other modes late replies stay in flight and count in a later round, damped
by their staleness as in FedBuff (Nguyen et al., AISTATS 2022, arXiv:2106.06639).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import (
    SECONDS_PER_HOUR,
    Bools,
    DevicePopulation,
    Floats,
    RoundDurations,
)
from equipoise.core import ClientResult, ClientUpdate, Params, State
from equipoise.simulation.executors import CohortResults, RoundReplies, StartGroup
from equipoise.utils import pytree
from equipoise.utils.pytree import Ints
from equipoise.utils.rng import cohort_size

DROPPED_OUT = "it dropped out"
TOO_LATE = "its reply came too late"
DEFAULT_BUFFER_DIVISOR = 10  # an asynchronous round waits for a tenth of the cohort
MIN_SECONDS = 1e-300  # avoids division by zero


@pytree.message
@dataclass
class InFlightBatch:
    """Clients that started in one round and have not replied yet.

    Attributes:
        ids: The clients, `[K]`.
        arrival_seconds: When each replies or is lost, in simulated seconds.
        lost: Mask of the clients that drop out.
        joules: Energy that each uses.
        seconds: How long each takes.
        start_round: The round in which each started.
        reply: What each will upload. After its own round, its params are changes of the model that
            was sent.
    """

    ids: Tensor
    arrival_seconds: Tensor
    lost: Tensor
    joules: Tensor
    seconds: Tensor
    start_round: Tensor
    reply: ClientResult


@dataclass(frozen=True)
class StartedBatch:
    """The clients that start in a round.

    Attributes:
        ids: The clients, `[K]`.
        results: What they compute.
        samples: Samples that each trains on.
        bytes_up: Bytes of one upload.
        bytes_down: Bytes sent to each.
    """

    ids: Ints
    results: CohortResults
    samples: Tensor
    bytes_up: int
    bytes_down: Tensor


class Clock:
    """Simulated time of the federation.

    Everything that changes is in `state()`.
    """

    def __init__(self, config: ClockConfig, seed: int, num_clients: int) -> None:
        """Start at time 0.

        Args:
            config: Devices, and how long the server waits for them.
            seed: Seed of the run.
            num_clients: Clients of the federation.
        """
        self.config = config
        self.carries_stale_updates = config.carries_stale_updates
        self.deadline_seconds = config.deadline_seconds
        self.until_seconds = config.until_seconds
        self.num_clients = num_clients
        self.devices = DevicePopulation(config.device_classes, seed)
        self.now = 0.0
        self._in_flight: list[InFlightBatch] = []

    @property
    def num_in_flight(self) -> int:
        """Number of clients that have started and not replied yet."""
        return sum(len(batch.ids) for batch in self._in_flight)

    def pool(self, participation: float) -> tuple[Ints | None, int]:
        """Return the clients that can be asked now, and how many to ask.

        If no client is available and none is in flight, time passes until one is.

        Args:
            participation: Fraction of the clients that a round asks.

        Returns:
            The ids of available clients, None for all; and the number of clients to ask.
        """
        wanted = cohort_size(self.num_clients, participation)
        if self.config.overselection > 1:
            wanted = min(self.num_clients, int(np.ceil(self.config.overselection * wanted)))
        count = wanted - self.num_in_flight
        if self.devices.always_available and not self._in_flight:
            return None, count
        idle = np.arange(self.num_clients)
        if self._in_flight:
            idle = np.setdiff1d(idle, self._in_flight_ids(), assume_unique=True)
        pool = idle[self.devices.available(idle, self.now)]
        while not len(pool) and not self._in_flight:
            self.now = (self.now // SECONDS_PER_HOUR + 1) * SECONDS_PER_HOUR
            pool = idle[self.devices.available(idle, self.now)]
        return pool, min(count, len(pool))

    def end(
        self, round: int, participation: float, started: StartedBatch | None, params: Params
    ) -> RoundReplies:
        """Let the time of a round pass.

        Args:
            round: Number of the round.
            participation: Fraction of the clients that a round asks.
            started: The clients that start in this round; None if there are none.
            params: The server's model.

        Returns:
            The replies that the server has when the round ends.
        """
        wanted = cohort_size(self.num_clients, participation)
        if not self.carries_stale_updates:
            assert started is not None
            return self._end_synchronous(round, wanted, started)
        if started is not None:
            self._in_flight.append(self._new_batch(round, started))
        if self.config.mode == "async":
            buffer = self.config.buffer or max(1, wanted // DEFAULT_BUFFER_DIVISOR)
            wanted = min(buffer, self.num_in_flight)
        else:
            wanted = self.num_in_flight + 1  # only the deadline ends the round
        self.now, has_ended = end_of_round(
            self.now,
            self._in_flight_ids(),
            np.concatenate([batch.arrival_seconds.numpy() for batch in self._in_flight]),
            np.concatenate([batch.lost.numpy() for batch in self._in_flight]),
            wanted,
            self.deadline_seconds,
        )
        return self._collect_arrivals(round, torch.from_numpy(has_ended), params)

    def state(self) -> State:
        """Return the state for a checkpoint."""
        flight = {str(place): pytree.to_dict(batch) for place, batch in enumerate(self._in_flight)}
        return {"now": torch.tensor(self.now, dtype=torch.float64), "flight": flight}

    def load(self, state: State) -> None:
        """Restore what `state` returned."""
        self.now = float(state["now"])
        self._in_flight = [
            pytree.from_dict(InFlightBatch, state["flight"][place])
            for place in sorted(state["flight"], key=int)
        ]

    def _in_flight_ids(self) -> Ints:
        """Return the ids of all clients in flight, batch by batch."""
        return np.concatenate([batch.ids.numpy() for batch in self._in_flight])

    def _durations(self, round: int, started: StartedBatch) -> RoundDurations:
        """Return the time and energy of the clients that start."""
        return self.devices.round_durations(
            started.ids,
            round,
            started.samples.double().numpy(),
            np.full(len(started.ids), float(started.bytes_up)),
            started.bytes_down.double().numpy(),
        )

    def _end_synchronous(self, round: int, num_wanted: int, started: StartedBatch) -> RoundReplies:
        """End with the wanted replies or at the deadline; later replies are lost."""
        durations = self._durations(round, started)
        ids = started.ids
        start = self.now
        self.now, has_ended = end_of_round(
            start,
            ids,
            start + durations.seconds,
            durations.lost,
            num_wanted,
            self.deadline_seconds,
        )
        replies = RoundReplies.from_results(ids, started.results)
        replies.arrived = torch.from_numpy(has_ended & ~durations.lost)
        replies.seconds = torch.from_numpy(durations.seconds)
        # Clients that are not done when the round ends are told to stop: they use less energy.
        share_done = (self.now - start) / np.maximum(durations.seconds, MIN_SECONDS)
        replies.joules = float((durations.joules * np.minimum(1.0, share_done)).sum())
        for row in np.flatnonzero(~replies.arrived.numpy()):
            dropped_out = has_ended[row] and durations.lost[row]
            replies.absent[int(ids[row])] = DROPPED_OUT if dropped_out else TOO_LATE
        return replies

    def _new_batch(self, round: int, started: StartedBatch) -> InFlightBatch:
        """Return the batch of the clients that start in a round."""
        durations = self._durations(round, started)
        reply = started.results.stack
        assert reply is not None
        return InFlightBatch(
            ids=torch.from_numpy(started.ids),
            arrival_seconds=torch.from_numpy(self.now + durations.seconds),
            lost=torch.from_numpy(durations.lost),
            joules=torch.from_numpy(durations.joules),
            seconds=torch.from_numpy(durations.seconds),
            start_round=torch.full((len(started.ids),), round, dtype=torch.int64),
            reply=replace(reply, logged={}),
        )

    def _collect_arrivals(self, round: int, has_ended: Tensor, params: Params) -> RoundReplies:
        """Remove the clients that replied or were lost (mask over all in flight)."""
        arrived: list[InFlightBatch] = []
        remaining: list[InFlightBatch] = []
        absent: dict[int, str] = {}
        joules = 0.0
        first = 0
        for batch in self._in_flight:
            ended = has_ended[first : first + len(batch.ids)]
            first += len(ended)
            joules += float(batch.joules[ended].sum())
            absent |= dict.fromkeys(batch.ids[ended & batch.lost].tolist(), DROPPED_OUT)
            arrived += _subset(batch, ended & ~batch.lost)
            remaining += _subset(batch, ~ended)
        for place, batch in enumerate(remaining):
            if int(batch.start_round[0]) == round:
                remaining[place] = replace(batch, reply=as_deltas(batch.reply, params))
        self._in_flight = remaining
        replies = merge_stale_updates(round, arrived, params, self.config.staleness)
        replies.absent = dict(sorted(absent.items()))
        replies.joules = joules
        return replies


def _subset(batch: InFlightBatch, mask: Tensor) -> list[InFlightBatch]:
    """Return the selected clients as a batch, or no batch if there are none."""
    if bool(mask.all()):
        return [batch]
    return [pytree.index(batch, mask)] if bool(mask.any()) else []


def end_of_round(
    start: float,
    ids: Ints,
    event_seconds: Floats,
    is_lost: Bools,
    num_wanted: int,
    time_limit: float = math.inf,
) -> tuple[float, Bools]:
    """Compute when a round ends, and whose events happened by then.

    The round ends with the reply that completes ``num_wanted`` replies, or after ``time_limit``
    seconds. If fewer replies can still arrive, it ends with the last event. Of two events at the
    same time, that of the lower client id comes first.

    Args:
        start: Time at the start of the round.
        ids: Clients in flight `[K]`.
        event_seconds: Time at which each replies or is lost `[K]`.
        is_lost: Which clients are lost `[K]`.
        num_wanted: Number of replies that end the round.
        time_limit: Seconds after which the round ends in any case.

    Returns:
        The time at which the round ends, and whose event happened by then `[K]`.
    """
    deadline = start + time_limit
    order = np.lexsort((ids, event_seconds))
    replies = order[~is_lost[order]]
    if len(replies) >= num_wanted:
        final = replies[num_wanted - 1]
        happened = np.zeros(len(ids), bool)
        happened[order[: int(np.flatnonzero(order == final)[0]) + 1]] = True
        end = float(event_seconds[final])
    else:
        happened = np.ones(len(ids), bool)
        end = max(start, float(event_seconds.max(initial=start)))
    if end <= deadline:
        return max(start, end), happened
    return deadline, np.asarray(event_seconds <= deadline)


def as_deltas(reply: ClientResult, sent: Params) -> ClientResult:
    """Replace uploaded models by their changes, for replies that count in a later round.

    Args:
        reply: Replies, stacked `[K, ...]`.
        sent: The model from which the clients started.

    Returns:
        The replies with changes as the params of the update.
    """
    changes = {name: after - sent[name] for name, after in reply.update.params.items()}
    return replace(reply, update=replace(reply.update, params=changes))


def merge_stale_updates(
    round: int, batches: list[InFlightBatch], params: Params, exponent: float
) -> RoundReplies:
    """Merge replies from several rounds into one stack.

    A change that is s rounds old is scaled by (1 + s)^-a and added to the current model. With
    FedAvg's mean this is FedBuff: w + sum_i p_i (1 + s_i)^-a change_i.

    Args:
        round: Number of the current round.
        batches: The replies, by the round in which the clients started.
        params: The server's model.
        exponent: The exponent a of the staleness weight.

    Returns:
        The replies, ascending by client.
    """
    if not batches:
        no_results = CohortResults(torch.arange(0), None)
        return RoundReplies.from_results(np.empty(0, np.int64), no_results)
    ids = torch.cat([batch.ids for batch in batches])
    order = ids.argsort()
    rows = torch.empty_like(order)
    rows[order] = torch.arange(len(ids))
    start_groups = [
        StartGroup(batch.ids.numpy(), batch.reply.client_state, batch.reply.scores, batch_rows)
        for batch, batch_rows in zip(
            batches, rows.split([len(batch.ids) for batch in batches]), strict=True
        )
    ]
    stack = pytree.concatenate(
        [
            replace(batch.reply, update=_rebase(params, batch, round, exponent), scores={})
            for batch in batches
        ]
    )
    if len(batches) > 1:  # a single batch is in order already
        stack = pytree.index(stack, order)
    results = CohortResults.from_all_clients(ids, stack)
    replies = RoundReplies.from_results(ids[order].numpy(), results)
    replies.start_groups = start_groups
    replies.staleness = round - torch.cat([batch.start_round for batch in batches])[order]
    replies.seconds = torch.cat([batch.seconds for batch in batches])[order]
    return replies


def _rebase(params: Params, batch: InFlightBatch, round: int, exponent: float) -> ClientUpdate:
    """Return the updates of a batch relative to the current model."""
    update = batch.reply.update
    staleness = round - int(batch.start_round[0])
    if not staleness:  # unchanged to the bit
        return update
    weight = (1.0 + staleness) ** -exponent
    rebased = {
        name: params[name] + (weight * change).to(params[name].dtype)
        for name, change in update.params.items()
    }
    return replace(update, params=rebased)
