"""The phases of secure aggregation as messages between server and clients.

Clients publish keys with their training reply. Then come the phases ``share`` (encrypted shares of
each client's secrets), ``mask`` (masked inputs) and ``reveal`` (shares that unmask the sum of the
clients that replied). :mod:`equipoise.flower.secagg_protocol` has the cryptography.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import ClientUpdate, State
from equipoise.core.report_validation import validate_reports
from equipoise.flower import codec
from equipoise.flower.client_state import ClientStateStore, RevealedUpdates
from equipoise.flower.codec import InvalidMessage, Metadata
from equipoise.flower.request_journal import RequestJournal
from equipoise.flower.secagg_protocol import (
    PublicKeys,
    SecAggClient,
    Words,
    threshold,
    unmask,
)
from equipoise.privacy.budget import PrivacyBudget
from equipoise.simulation.aggregation_guard import SumRequest
from equipoise.simulation.executors import CohortResults
from equipoise.utils.pytree import digest, map_leaves, tree_bytes
from equipoise.wrappers.secure_aggregation import (
    MAX_ABS_VALUE,
    MIN_CLIENTS,
    UPDATE,
    WORDS,
    SecureAggregation,
)

T = TypeVar("T")
PHASES = ("share", "mask", "reveal")
HEADER_BYTES = 65536  # limit of a message without its words
DEFAULT_MAX_CLIENTS = 100  # keys that a client accepts, unless its owner says max-clients
BYTES_PER_CLIENT = 256  # limit per client in a list of shares, in hexadecimal


def to_words(tree: State) -> Words:
    """Flatten a tree of int64 tensors to words, in the order of the tensors' names."""
    leaves = [value.reshape(-1) for value in _leaves(tree)]
    return np.asarray(torch.cat(leaves).numpy().view(np.uint64))


def from_words(words: Words, like: State) -> State:
    """Return the tree that :func:`to_words` flattened.

    Args:
        words: The words.
        like: A tree with the same names and shapes.
    """
    rest = torch.from_numpy(words.view(np.int64).copy())
    parts = {}
    for value in _leaves(like):
        parts[id(value)] = rest[: value.numel()].reshape(value.shape)
        rest = rest[value.numel() :]
    tree: State = map_leaves(lambda value: parts[id(value)], like)
    return tree


def _leaves(tree: State) -> list[Tensor]:
    """Return the tensors of a tree, in the order of their names."""
    leaves: list[Tensor] = []
    for name in sorted(tree):
        leaves += _leaves(tree[name]) if isinstance(tree[name], dict) else [tree[name]]
    return leaves


# ------------------------------------------------------------------ client


@dataclass(frozen=True)
class SecureSumMember:
    """One client's part in the secure sums of a run.

    Attributes:
        client: Id of this client.
        run: Id of the run.
        disk: The client's own disk.
        budget: The client's privacy budget.
        revealed: The client's record of updates that it gave to sums.
        max_clients: Largest number of clients in a sum that the owner of this client believes in;
            ``None`` if the owner did not say. Then an upload costs as if the server saw it alone.
    """

    client: int
    run: str
    disk: ClientStateStore
    budget: PrivacyBudget
    revealed: RevealedUpdates
    max_clients: int | None

    def check_round(self, round: int) -> None:
        """Refuse a round before training.

        Raises:
            InvalidMessage: If this client has given an update to a sum of this round.
            OverBudget: If the budget does not allow an upload even in the largest sum.
        """
        self.revealed.check_round(self.run, round)
        self.budget.check(self._num_hiding(self.max_clients or 1))

    def start_round(self, method: SecureAggregation, round: int, update: ClientUpdate) -> Metadata:
        """Save this client's input until masks are agreed on, and return its public keys.

        Args:
            method: The method, which declares the range of reported numbers.
            round: Round number.
            update: The client's input, with the update from which it was made.

        Returns:
            Metadata with the public keys.

        Raises:
            InvalidMessage: If a number of the input is out of range, or the update was given to
                an earlier sum.
        """
        words = {WORDS: update.extra[WORDS]}
        cohort_of_one = map_leaves(lambda value: value.unsqueeze(0), ClientUpdate({}, words))
        if validate_reports(method.report_ranges, cohort_of_one):
            raise InvalidMessage(
                "a number of this client's part of the sum is not finite, or larger than "
                f"{MAX_ABS_VALUE:g}"
            )
        update_digest = digest(update.extra[UPDATE])
        self.revealed.check_update(update_digest)
        member = SecAggClient(self.client, _round_id(self.run, round))
        flat = torch.from_numpy(to_words(update.extra[WORDS]).view(np.int64).copy())
        self.disk.save_secagg_input(round, {WORDS: flat}, update_digest, member.to_json())
        keys = member.public_keys()
        return {"keys": [keys.encryption.hex(), keys.masking.hex()]}

    def answer(self, round: int, metadata: Metadata) -> tuple[State, Metadata]:
        """Answer a phase of the protocol.

        The state is saved before anything leaves the client, so that no phase can be repeated.

        Args:
            round: Round number.
            metadata: Metadata of the server's message.

        Returns:
            Tensors and metadata of the answer.

        Raises:
            InvalidMessage: If the message is malformed or out of order.
        """
        member = SecAggClient.from_json(self.disk.load_secagg_state(round))
        if metadata["kind"] == "share":
            return {}, self._share(round, member, metadata)
        if metadata["kind"] == "mask":
            return self._mask(round, member, metadata), {}
        return {}, self._reveal(round, member, metadata)

    def _share(self, round: int, member: SecAggClient, metadata: Metadata) -> Metadata:
        """Encrypt shares of this client's secrets for the others."""
        encrypted = member.share_secrets(_parse_all_keys(metadata, self.max_clients))
        self.disk.save_secagg_state(round, member.to_json())
        return {
            "encrypted_shares": {str(other): shares.hex() for other, shares in encrypted.items()}
        }

    def _mask(self, round: int, member: SecAggClient, metadata: Metadata) -> State:
        """Mask this client's input; from here on others could unmask a sum with it."""
        num_hiding = self._num_hiding(len(member.peers) + 1)
        self.revealed.check_round(self.run, round)
        self.budget.check(num_hiding)
        part, update_digest = self.disk.load_secagg_input(round)
        self.revealed.check_update(update_digest)
        words = part[WORDS].numpy().view(np.uint64)
        masked = member.mask(_parse_bytes(metadata, "encrypted_shares"), words)
        self.disk.save_secagg_state(round, member.to_json())
        self.revealed.record(self.run, round, update_digest)
        self.budget.spend(num_hiding)
        return {WORDS: torch.from_numpy(masked.view(np.int64))}

    def _reveal(self, round: int, member: SecAggClient, metadata: Metadata) -> Metadata:
        """Reveal the shares by which the sum is unmasked."""
        replied = metadata.get("replied")
        if not isinstance(replied, list) or not all(type(client) is int for client in replied):
            raise InvalidMessage("the message does not say who replied")
        shares = member.reveal(replied)
        self.disk.delete_secagg(round)
        return {"shares": {str(other): share.hex() for other, share in shares.items()}}

    def _num_hiding(self, num_keys: int) -> int:
        """Return how many uploads at least are in a sum with this client's, as its owner believes.

        The server could invent keys, so that only the owner's own word counts.
        """
        if self.max_clients is None:
            return 1
        return threshold(min(num_keys, self.max_clients))


# ------------------------------------------------------------------ server


@dataclass
class SecureCohortResults(CohortResults):
    """Results of a cohort of whose uploads only the sum is known.

    Attributes:
        total: The sum.
    """

    total: State = field(default_factory=dict)

    def upload_bytes(self) -> int:
        """Return the size of one client's upload."""
        return tree_bytes(self.total)

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Return the known sum; the changes in it cannot be shrunk.

        Raises:
            InvalidMessage: If the sum of some clients only is asked for.
        """
        if not bool(request.accepted.all()):
            raise InvalidMessage("the sum of all replies is known, and of no others")
        return self.total


class Exchange(Protocol):
    """Sends messages to clients and returns their replies."""

    def __call__(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        """Return replies within ``limit`` seconds; for a client that failed, the reason."""


class SecureAggregationRound:
    """The server's side of one round.

    Attributes:
        absent: Clients that are not in the sum, with the reason.
    """

    def __init__(
        self,
        exchange: Exchange,
        run: str,
        round: int,
        limit: float,
        min_replies: int = 1,
        journal: RequestJournal | None = None,
    ) -> None:
        """Set up a round.

        Args:
            exchange: Sends messages to clients.
            run: Id of the run.
            round: Round number.
            limit: Seconds that each phase waits for replies.
            min_replies: Clients below which the sum is of no use, so that it is not unmasked.
            journal: Record of what is asked; the sum is written there before it is unmasked.
        """
        self.exchange = exchange
        self.run_id = run
        self.round = round
        self.limit = limit
        self.min_replies = min_replies
        self.journal = journal
        self.absent: dict[int, str] = {}

    def run(self, replies: Mapping[int, Metadata], like: State) -> tuple[State | None, list[int]]:
        """Run all phases.

        Args:
            replies: Metadata of the clients' training replies, with their public keys.
            like: A tree with the names and shapes of a client's input.

        Returns:
            The sum and the clients in it; ``None`` and no clients if too few stayed.
        """
        published = self._collect(replies, lambda client: _parse_keys(replies[client].get("keys")))
        ids = sorted(published)
        num_words = sum(value.numel() for value in _leaves(like))
        needed = max(threshold(len(ids)), MIN_CLIENTS, self.min_replies)

        # Phase 2: clients share their secrets, encrypted for each other.
        encrypted = self._share_secrets(published)
        joined = self._enough(encrypted, ids, needed)

        # Phase 3: every client gets the shares for it, and sends its masked input.
        masked = self._collect_masked(encrypted, joined, num_words)
        replied = self._enough(masked, joined, needed)

        # Phase 4: clients reveal the shares that unmask the sum.
        if self.journal is not None and replied:
            self.journal.record_sum(len(replied))
        shares = self._ask(
            "reveal",
            {client: {"replied": replied} for client in replied},
            lambda client, tree, metadata: _parse_bytes(metadata, "shares"),
        )
        if not replied:
            return None, []
        masked_sum = np.add.reduce([masked[client] for client in replied], dtype=np.uint64)
        round_id = _round_id(self.run_id, self.round)
        try:
            words = unmask(masked_sum, published, joined, replied, shares, round_id)
        except InvalidMessage as error:
            self.absent |= dict.fromkeys(replied, f"the secure sum cannot be unmasked: {error}")
            return None, []
        for client in replied:  # a client in the sum is not absent, even if it revealed nothing
            self.absent.pop(client, None)
        return from_words(words, like), replied

    def _share_secrets(self, published: Mapping[int, PublicKeys]) -> dict[int, dict[int, bytes]]:
        """Send all public keys to all clients.

        Args:
            published: Public keys by client.

        Returns:
            By client that answered: its shares, encrypted for each of the others.
        """
        keys = {
            str(client): [own.encryption.hex(), own.masking.hex()]
            for client, own in published.items()
        }

        def read(client: int, tree: State, metadata: Metadata) -> dict[int, bytes]:
            encrypted = _parse_bytes(metadata, "encrypted_shares")
            if encrypted.keys() != published.keys() - {client}:
                raise InvalidMessage("its shares are not for all others")
            return encrypted

        return self._ask("share", {client: {"keys": keys} for client in sorted(published)}, read)

    def _collect_masked(
        self, encrypted: Mapping[int, Mapping[int, bytes]], joined: list[int], num_words: int
    ) -> dict[int, Words]:
        """Send every client the shares that the others made for it.

        Args:
            encrypted: By client: its shares, encrypted for each of the others.
            joined: The clients that take part in this phase.
            num_words: Numbers in a client's input.

        Returns:
            The masked inputs `[num_words]` by client that answered.
        """
        shares_by_client: dict[int, Metadata] = {
            to: {
                "encrypted_shares": {str(by): encrypted[by][to].hex() for by in joined if by != to}
            }
            for to in joined
        }

        def read(client: int, tree: State, metadata: Metadata) -> Words:
            codec.check_like(tree, {WORDS: torch.empty(num_words, dtype=torch.int64)})
            return np.asarray(tree[WORDS].numpy().view(np.uint64))

        return self._ask("mask", shares_by_client, read, 8 * num_words)

    def _enough(self, arrived: Mapping[int, object], clients: list[int], needed: int) -> list[int]:
        """Return the clients of the next phase: those that answered, or nobody if too few."""
        if len(arrived) >= needed:
            return sorted(arrived)
        for client in clients:
            self.absent.setdefault(
                client, f"{len(arrived)} clients are left for the secure sum, {needed} are needed"
            )
        return []

    def _ask(
        self,
        kind: str,
        each: Mapping[int, Metadata],
        read: Callable[[int, State, Metadata], T],
        size: int = 0,
    ) -> dict[int, T]:
        """Run one phase: send a message to each client and read the answers.

        Args:
            kind: Name of the phase.
            each: Metadata for each client.
            read: Reads an answer.
            size: Bytes of an answer's tensors.

        Returns:
            What was read, by client. Clients without a valid answer are marked as absent.
        """
        metadata = {"kind": kind, "run": self.run_id, "round": self.round}
        messages = {
            client: codec.encode({}, {**metadata, "client": client, **own})
            for client, own in each.items()
        }
        answers = self.exchange(messages, self.limit) if messages else {}
        max_bytes = size + HEADER_BYTES + BYTES_PER_CLIENT * len(messages)

        def read_answer(client: int) -> T:
            tree, reply = codec.decode_reply(
                answers.get(client), max_bytes, client=client, round=self.round, run=self.run_id
            )
            return read(client, tree, reply)

        return self._collect(messages, read_answer)

    def _collect(self, clients: Iterable[int], read: Callable[[int], T]) -> dict[int, T]:
        """Read each client's answer; a client whose answer is invalid is marked as absent."""
        parsed: dict[int, T] = {}
        for client in clients:
            try:
                parsed[client] = read(client)
            except InvalidMessage as error:
                self.absent[client] = f"in the secure sum: {error}"
        return parsed


def _round_id(run: str, round: int) -> str:
    return f"{run} {round}"


def _parse_bytes(metadata: Metadata, name: str) -> dict[int, bytes]:
    """Parse a table of bytes by client, which is sent as hexadecimal text."""
    try:
        return {int(client): bytes.fromhex(text) for client, text in metadata[name].items()}
    except (KeyError, AttributeError, ValueError, TypeError) as error:
        raise InvalidMessage(f"its {name} cannot be read") from error


def _parse_all_keys(metadata: Metadata, max_clients: int | None) -> dict[int, PublicKeys]:
    """Parse the public keys of all clients.

    Args:
        metadata: Metadata of the server's message.
        max_clients: Largest number of keys that this client's owner allows.

    Raises:
        InvalidMessage: If keys are malformed, or too many: shares for 1,000 clients take 18 s.
    """
    limit = max_clients or DEFAULT_MAX_CLIENTS
    try:
        if len(metadata["keys"]) > limit:
            raise InvalidMessage(
                f"{len(metadata['keys'])} clients are in the secure sum, this client's owner "
                f"allows {limit} (max-clients)"
            )
        return {int(client): _parse_keys(pair) for client, pair in metadata["keys"].items()}
    except (KeyError, AttributeError, ValueError, TypeError) as error:
        raise InvalidMessage("its keys cannot be read") from error


def _parse_keys(pair: object) -> PublicKeys:
    """Parse the public keys of one client."""
    try:
        encryption, masking = (bytes.fromhex(text) for text in pair)  # type: ignore[attr-defined]
    except (ValueError, TypeError) as error:
        raise InvalidMessage("it has no keys") from error
    return PublicKeys(encryption, masking)
