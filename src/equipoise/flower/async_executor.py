"""Asynchronous rounds with remote clients: a full buffer ends a round, late replies count later."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from equipoise.clock.config import ClockConfig
from equipoise.core import ClientResult, Params, State
from equipoise.flower.codec import NO_REPLY, InvalidMessage
from equipoise.flower.remote_executor import RemoteExecutor, Wire
from equipoise.simulation.clock import InFlightBatch, as_deltas, merge_stale_updates
from equipoise.simulation.executors import CohortRequest, CohortResults, RoundReplies
from equipoise.utils.pytree import Ints, stack

LOG = logging.getLogger("equipoise")


class AsyncWire(Wire, Protocol):
    """A wire on which replies may arrive after the next message was sent."""

    def post(self, messages: dict[int, bytes], limit: float) -> None:
        """Send messages; replies are valid for ``limit`` seconds."""

    def gather(self, num_wanted: int, limit: float) -> dict[int, bytes | str]:
        """Return replies by client when there are ``num_wanted``, or after ``limit`` seconds."""


@dataclass(frozen=True)
class InFlightRequest:
    """A request to a client that has not replied yet.

    Attributes:
        round: Round in which it was sent.
        until: Time at which it is given up.
        sent: Global parameters that were sent.
        expected: A reply with the expected names and shapes.
    """

    round: int
    until: float
    sent: Params
    expected: State


class AsyncRemoteExecutor(RemoteExecutor):
    """Executor of asynchronous rounds.

    A client in flight is not asked again until it has replied or its ``time_limit`` is over.
    Requests in flight when a run stops are lost; when it is resumed, these clients are asked again.
    """

    wire: AsyncWire

    def __init__(self, *args: Any, timing: ClockConfig, **kwargs: Any) -> None:
        """Set up the executor.

        Args:
            *args: Those of :class:`RemoteExecutor`.
            timing: Size of the buffer and damping of stale updates.
            **kwargs: Those of :class:`RemoteExecutor`.
        """
        super().__init__(*args, **kwargs)
        self.timing = timing
        self._in_flight: dict[int, InFlightRequest] = {}
        self._unsent: dict[int, str] = {}

    @property
    def in_flight_ids(self) -> Ints:
        """Clients that have not replied yet."""
        return np.array(sorted(self._in_flight), np.int64)

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Send messages to clients; :meth:`collect` returns their replies."""
        messages, self._unsent = self._messages(request)
        self.wire.post(messages, self.time_limit)
        until = time.monotonic() + self.time_limit
        params = request.message.params
        expected = self._expect(request)
        self._in_flight |= {
            client: InFlightRequest(request.round, until, params, expected) for client in messages
        }
        return CohortResults(torch.arange(0), None, {}, frozenset(self._unsent))

    def collect(self, round: int, params: Params) -> RoundReplies:
        """Wait until the buffer is full, or until no client is in flight.

        Args:
            round: Round that ends now.
            params: Global parameters, on which late updates are applied.

        Returns:
            The replies of this round, grouped by the round in which they started.
        """
        buffer = self.timing.buffer or max(1, len(self._in_flight) // 10)
        wanted = min(buffer, len(self._in_flight))
        arrived: dict[int, tuple[int, ClientResult]] = {}
        absent = dict(self._unsent)
        while self._in_flight and len(arrived) < wanted:
            rest = min(one.until for one in self._in_flight.values()) - time.monotonic()
            answers = self.wire.gather(wanted - len(arrived), max(0.0, rest))
            for client, answer in answers.items():
                asked = self._in_flight.pop(client, None)
                if asked is None:  # the request was given up before
                    continue
                try:
                    reply, _ = self._read(answer, client, asked.round, asked.expected)
                    arrived[client] = asked.round, self._as_delta(reply, asked, round)
                except InvalidMessage as error:
                    absent[client] = str(error)
            now = time.monotonic()
            late = [client for client, one in self._in_flight.items() if one.until <= now]
            for client in late:
                del self._in_flight[client]
                absent[client] = NO_REPLY
        for client, reason in absent.items():
            LOG.warning("round %d: nothing from client %d: %s", round, client, reason)
        began = sorted({start for start, _ in arrived.values()})
        batches = [
            _batch(start, {k: reply for k, (at, reply) in arrived.items() if at == start})
            for start in began
        ]
        replies = merge_stale_updates(round, batches, params, self.timing.staleness)
        replies.absent = absent
        return replies

    def _as_delta(self, reply: ClientResult, request: InFlightRequest, round: int) -> ClientResult:
        """Convert the reply to an older request to a change of the parameters that it was sent."""
        return reply if request.round == round else as_deltas(reply, request.sent)


def _batch(round: int, replies: dict[int, ClientResult]) -> InFlightBatch:
    """Stack the replies to requests of one round."""
    ids = torch.tensor(sorted(replies))
    none = torch.zeros(len(ids), dtype=torch.float64)
    reply = stack([replies[client] for client in ids.tolist()])
    return InFlightBatch(ids, none, none.bool(), none, none, torch.full_like(ids, round), reply)
