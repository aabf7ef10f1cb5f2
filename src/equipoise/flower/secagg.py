"""The phases of a secure sum as messages: a client's answers, and the server that passes them on.

After training, each client has published keys; then come ``share`` (letters with shares of its secrets), ``mask`` (its
part of the sum, masked) and ``reveal`` (shares that take the masks off the sum of those that replied).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import ClientUpdate, Method, Params, State
from equipoise.core.report_validation import validate_reports
from equipoise.flower import codec
from equipoise.flower.client_state import ClientStateStore
from equipoise.flower.codec import InvalidMessage, Metadata
from equipoise.flower.secagg_protocol import (
    MIN_CLIENTS,
    PublicKeys,
    SecAggClient,
    Words,
    threshold,
    unmask,
)
from equipoise.privacy.budget import Budget
from equipoise.simulation.executors import CohortResults
from equipoise.utils.pytree import map_leaves, tree_bytes
from equipoise.wrappers.secure_aggregation import MOST, WORDS, Secure

T = TypeVar("T")
PHASES = ("share", "mask", "reveal")
HEADER_BYTES = 65536  # bytes of a message beside its words
BYTES_PER_CLIENT = 256  # bytes per client in a list of letters or shares, written as text


def to_words(tree: State) -> Words:
    """All numbers of a client's part, in the order of their names."""
    leaves = [value.reshape(-1) for value in _leaves(tree)]
    return np.asarray(torch.cat(leaves).numpy().view(np.uint64))


def from_words(words: Words, like: State) -> State:
    """The inverse: a tree of the shape of ``like``."""
    rest = torch.from_numpy(words.view(np.int64).copy())
    parts = {}
    for value in _leaves(like):
        parts[id(value)], rest = rest[: value.numel()].reshape(value.shape), rest[value.numel() :]
    tree: State = map_leaves(lambda value: parts[id(value)], like)
    return tree


def _leaves(tree: State) -> list[Tensor]:
    found: list[Tensor] = []
    for name in sorted(tree):
        found += _leaves(tree[name]) if isinstance(tree[name], dict) else [tree[name]]
    return found


# --- the client's side ------------------------------------------------------------------------------------------------


def start_round(
    disk: ClientStateStore, method: Secure, client: int, run: str, round: int, updates: ClientUpdate
) -> Metadata:
    """After training: keep this client's part of the sum until its masks are agreed on; publish its keys."""
    if validate_reports(
        method.report_ranges, map_leaves(lambda value: value.unsqueeze(0), updates)
    ):
        raise InvalidMessage(
            f"a number of this client's part of the sum is not finite, or larger than {MOST:g}"
        )
    member = SecAggClient(client, _round_name(run, round))
    disk.save_secagg_input(
        round,
        {WORDS: torch.from_numpy(to_words(updates.extra[WORDS]).view(np.int64).copy())},
        member.to_json(),
    )
    keys = member.public_keys()
    return {"keys": [keys.encryption.hex(), keys.masking.hex()]}


def answer(
    disk: ClientStateStore, budget: Budget, round: int, about: Metadata
) -> tuple[State, Metadata]:
    """One of the later phases. What is remembered is written before anything leaves, so that none can be repeated."""
    member = SecAggClient.from_json(disk.load_secagg_state(round))
    if about["kind"] == "share":
        letters = member.share_secrets(_published(about))
        disk.save_secagg_state(round, member.to_json())
        return {}, {"letters": {str(other): letter.hex() for other, letter in letters.items()}}
    if about["kind"] == "mask":
        among = threshold(len(member.peers) + 1)
        budget.check(among)
        words = disk.load_secagg_input(round)[WORDS].numpy().view(np.uint64)
        masked = member.mask(_bytes(about, "letters"), words)
        disk.save_secagg_state(round, member.to_json())
        budget.spend(among)
        return {WORDS: torch.from_numpy(masked.view(np.int64))}, {}
    replied = about.get("replied")
    if not isinstance(replied, list) or not all(type(client) is int for client in replied):
        raise InvalidMessage("the message does not say who replied")
    shares = member.reveal(replied)
    disk.delete_secagg(round)
    return {}, {"shares": {str(other): share.hex() for other, share in shares.items()}}


# --- the server's side ------------------------------------------------------------------------------------------------


@dataclass
class SecureCohortResults(CohortResults):
    """Replies without uploads: all that is known of these is their sum."""

    total: State = field(default_factory=dict)

    def upload_bytes(self) -> int:
        return tree_bytes(self.total)

    def partial_sums(
        self,
        method: Method,
        global_params: Params,
        cuts: list[slice],
        taken: Tensor,
        weights: Tensor | Params,
    ) -> State:
        if not bool(taken.all()):
            raise InvalidMessage("the sum of all replies is known, and of no others")
        return self.total


class Exchange(Protocol):
    """Replies by client within so many seconds; for a client that failed, the reason."""

    def __call__(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]: ...


class SecureAggregationRound:
    """One round's sum. ``absent`` says which clients are not in it, and why."""

    def __init__(
        self, exchange: Exchange, run: str, round: int, limit: float, fewest: int = 1
    ) -> None:
        """``fewest``: clients without whom the sum would be of no use, so that it is not unmasked either."""
        self.exchange, self.run, self.round, self.limit, self.fewest = (
            exchange,
            run,
            round,
            limit,
            fewest,
        )
        self.absent: dict[int, str] = {}

    def run(self, told: Mapping[int, Metadata], like: State) -> tuple[State | None, list[int]]:
        """The sum over the clients that it gives; nothing over nobody if too few stayed to unmask it.

        ``told``: what clients said beside their replies, their keys among it; ``like``: the shape of a part.
        """
        published = self._heard(told, lambda client: _keys(told[client].get("keys")))
        ids, count = sorted(published), sum(value.numel() for value in _leaves(like))
        least = max(threshold(len(ids)), MIN_CLIENTS, self.fewest)

        def read_letters(client: int, tree: State, about: Metadata) -> dict[int, bytes]:
            letters = _bytes(about, "letters")
            if letters.keys() != set(ids) - {client}:
                raise InvalidMessage("its letters are not for all others")
            return letters

        def read_words(client: int, tree: State, about: Metadata) -> Words:
            codec.check_like(tree, {WORDS: torch.empty(count, dtype=torch.int64)})
            return np.asarray(tree[WORDS].numpy().view(np.uint64))

        def read_shares(client: int, tree: State, about: Metadata) -> dict[int, bytes]:
            return _bytes(about, "shares")

        keys = {
            str(client): [one.encryption.hex(), one.masking.hex()]
            for client, one in published.items()
        }
        letters = self._ask("share", {client: {"keys": keys} for client in ids}, read_letters)
        joined = self._enough(letters, ids, least)
        post = {to: {str(by): letters[by][to].hex() for by in joined if by != to} for to in joined}
        masked = self._ask(
            "mask", {to: {"letters": post[to]} for to in joined}, read_words, 8 * count
        )
        replied = self._enough(masked, joined, least)
        shares = self._ask(
            "reveal", {client: {"replied": replied} for client in replied}, read_shares
        )
        if not replied:
            return None, []
        added = np.add.reduce([masked[client] for client in replied], dtype=np.uint64)
        try:
            words = unmask(
                added, published, joined, replied, shares, _round_name(self.run, self.round)
            )
        except InvalidMessage as error:
            self.absent |= dict.fromkeys(replied, f"the secure sum cannot be unmasked: {error}")
            return None, []
        for client in replied:  # who is in the sum is not absent, even if it revealed nothing
            self.absent.pop(client, None)
        return from_words(words, like), replied

    def _enough(self, came: Mapping[int, object], asked: list[int], least: int) -> list[int]:
        """Who goes on to the next phase: those that came, if they are enough; else nobody."""
        if len(came) >= least:
            return sorted(came)
        for client in asked:
            self.absent.setdefault(
                client, f"{len(came)} clients are left for the secure sum, {least} are needed"
            )
        return []

    def _ask(
        self,
        kind: str,
        each: Mapping[int, Metadata],
        read: Callable[[int, State, Metadata], T],
        size: int = 0,
    ) -> dict[int, T]:
        """One phase: a message for each, and what is read of the answers; ``size``: bytes of an answer's tensors."""
        about = {"kind": kind, "run": self.run, "round": self.round}
        messages = {
            client: codec.encode({}, {**about, "client": client, **one})
            for client, one in each.items()
        }
        answers = self.exchange(messages, self.limit) if messages else {}
        most = size + HEADER_BYTES + BYTES_PER_CLIENT * len(messages)

        def answered(client: int) -> T:
            answer = answers.get(client, "no reply in time")
            if isinstance(answer, str):
                raise InvalidMessage(answer)
            tree, told = codec.decode(answer, most)
            if "error" in told:
                raise InvalidMessage(f"it reports {str(told['error'])[:500]!r}")
            if (told.get("client"), told.get("round"), told.get("run")) != (
                client,
                self.round,
                self.run,
            ):
                raise InvalidMessage("it answers another message")
            return read(client, tree, told)

        return self._heard(messages, answered)

    def _heard(self, clients: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
        """What is read of each client; whose words are refused is absent, with the reason."""
        found: dict[int, T] = {}
        for client in clients:
            try:
                found[client] = read(client)
            except InvalidMessage as error:
                self.absent[client] = f"in the secure sum: {error}"
        return found


def _round_name(run: str, round: int) -> str:
    return f"{run} {round}"


def _bytes(about: Metadata, name: str) -> dict[int, bytes]:
    """A table of clients and bytes, as it travels: numbers and bytes as text."""
    try:
        return {int(client): bytes.fromhex(text) for client, text in about[name].items()}
    except (KeyError, AttributeError, ValueError, TypeError) as error:
        raise InvalidMessage(f"its {name} cannot be read") from error


def _published(about: Metadata) -> dict[int, PublicKeys]:
    try:
        return {int(client): _keys(pair) for client, pair in about["keys"].items()}
    except (KeyError, AttributeError, ValueError) as error:
        raise InvalidMessage("its keys cannot be read") from error


def _keys(pair: Any) -> PublicKeys:
    try:
        shares, masks = (bytes.fromhex(text) for text in pair)
    except (ValueError, TypeError) as error:
        raise InvalidMessage("it has no keys") from error
    return PublicKeys(shares, masks)
