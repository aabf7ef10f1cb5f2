"""Asynchronous rounds of clients that are elsewhere: a buffer of replies ends a round, and late ones count later."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.clock.config import ClockConfig
from equipoise.core import ClientResult, ClientState, Params, ServerMessage, State
from equipoise.flower.codec import InvalidMessage
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.flower.remote_executor import Wire as PromptWire
from equipoise.simulation.clock import InFlightBatch, as_deltas, merge_stale_updates
from equipoise.simulation.executors import CohortResults, RoundReplies
from equipoise.utils.pytree import Ints, stack

LOG = logging.getLogger("equipoise")


class AsyncWire(PromptWire, Protocol):
    """A wire on which replies may come later than the next message."""

    def post(self, messages: dict[int, bytes], limit: float) -> None:
        """Send; replies are to be gathered, for so many seconds at most."""

    def gather(self, wanted: int, limit: float) -> dict[int, bytes | str]:
        """Replies by client, as soon as there are so many of them, else after so many seconds."""


@dataclass(frozen=True)
class InFlightRequest:
    """A client that was asked and has not replied."""

    round: int
    until: float
    """When it is given up."""
    sent: Params
    expected: State


class AsyncRemoteExecutor(RemoteExecutor):
    """Whoever is under way is not asked again until it has replied, or ``time_limit`` is over.

    What is under way when a run stops is lost: when it goes on, those clients are asked anew.
    """

    wire: AsyncWire

    def __init__(self, *about: Any, timing: ClockConfig, **how: Any) -> None:
        super().__init__(*about, **how)
        self.timing = timing
        self._under_way: dict[int, InFlightRequest] = {}
        self._unsent: dict[int, str] = {}

    @property
    def in_flight_ids(self) -> Ints:
        return np.array(sorted(self._under_way), np.int64)

    def run_clients(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> CohortResults:
        messages, self._unsent = self._messages(round, ids, message, client_state, splits)
        self.wire.post(messages, self.time_limit)
        until, expected = (
            time.monotonic() + self.time_limit,
            self._expect(round, splits, ids[:1], message.for_clients(0)),
        )
        self._under_way |= {
            client: InFlightRequest(round, until, message.params, expected) for client in messages
        }
        return CohortResults(torch.arange(0), None, {}, frozenset(self._unsent))

    def collect(self, round: int, params: Params) -> RoundReplies:
        """Wait until the buffer is full, or until nobody is under way any more."""
        wanted = min(self.timing.buffer or max(1, len(self._under_way) // 10), len(self._under_way))
        came: dict[int, tuple[int, ClientResult]] = {}
        absent = dict(self._unsent)
        while self._under_way and len(came) < wanted:
            rest = min(one.until for one in self._under_way.values()) - time.monotonic()
            answers = self.wire.gather(wanted - len(came), max(0.0, rest))
            for client, answer in answers.items():
                asked = self._under_way.pop(client, None)
                if asked is None:  # it had been given up
                    continue
                try:
                    reply, _ = self._read(answer, client, asked.round, asked.expected)
                    came[client] = asked.round, self._changed(reply, asked, round)
                except InvalidMessage as error:
                    absent[client] = str(error)
            late = [
                client for client, one in self._under_way.items() if one.until <= time.monotonic()
            ]
            absent |= {client: "no reply in time" for client in late if self._under_way.pop(client)}
        for client, reason in absent.items():
            LOG.warning("round %d: nothing from client %d: %s", round, client, reason)
        began = sorted({start for start, _ in came.values()})
        parcels = [
            _parcel(start, {k: reply for k, (at, reply) in came.items() if at == start})
            for start in began
        ]
        intake = merge_stale_updates(round, parcels, params, self.timing.staleness)
        intake.absent = absent
        return intake

    def _changed(self, reply: ClientResult, asked: InFlightRequest, round: int) -> ClientResult:
        return reply if asked.round == round else as_deltas(reply, asked.sent)


def _parcel(round: int, replies: dict[int, ClientResult]) -> InFlightBatch:
    ids = torch.tensor(sorted(replies))
    none = torch.zeros(len(ids), dtype=torch.float64)
    reply = stack([replies[client] for client in ids.tolist()])
    return InFlightBatch(ids, none, none.bool(), none, none, torch.full_like(ids, round), reply)
