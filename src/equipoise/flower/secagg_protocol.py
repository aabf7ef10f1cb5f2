"""Secure aggregation (Bonawitz et al., 2017): the server learns a sum and no summand.

"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, against a server
that follows the protocol but is curious. Every pair of clients agrees on a key (X25519); one of
them adds the pseudorandom stream of that key (ChaCha20), the other subtracts it. Every client also
adds a stream of its own, the self mask. The seeds of both are shared among all clients (Shamir), so
that the self mask of a client that replied can be removed, and the pairwise masks of one that did
not, but never both of the same client.

No primitive is implemented here: keys and streams are those of ``cryptography``, secret sharing is
that of ``pycryptodome``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from equipoise.flower.codec import InvalidMessage
from equipoise.utils.record import from_json, to_json
from equipoise.wrappers.secure_aggregation import MIN_CLIENTS

SEED_BYTES = 16  # size of a shared secret, as Shamir's scheme takes it
KEY_BYTES = 32

Words = NDArray[np.uint64]
"""Numbers modulo 2^64."""


def threshold(clients: int) -> int:
    """Return how many clients are needed to unmask: more than two thirds of those that began."""
    return 2 * clients // 3 + 1


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of one client.

    Attributes:
        encryption: Key for the shares that others send to this client.
        masking: Key for pairwise masks.
    """

    encryption: bytes
    masking: bytes

    def __post_init__(self) -> None:
        """Check the size of both keys.

        Raises:
            InvalidMessage: If a key has not 32 bytes.
        """
        if len(self.encryption) != KEY_BYTES or len(self.masking) != KEY_BYTES:
            raise InvalidMessage("a public key has not 32 bytes")


@dataclass
class SecAggClient:
    """One client's side of one round. Its phases run in order, each once.

    Attributes:
        client: Id of this client.
        round_id: Name of the run and round; keys derived for one round are useless in another.
        encryption_key: Private key for shares that others send.
        pairwise_seed: Secret from which the private masking key is derived.
        self_mask_seed: Secret of the self mask.
        peers: Public keys of the other clients.
        received_shares: Encrypted shares of others' secrets (and, in the clear, of its own).
        phase: Last phase that this client completed.
    """

    client: int
    round_id: str
    encryption_key: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES))
    pairwise_seed: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES))
    self_mask_seed: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES))
    peers: dict[int, PublicKeys] = field(default_factory=dict)
    received_shares: dict[int, bytes] = field(default_factory=dict)
    phase: str = "keys"

    def public_keys(self) -> PublicKeys:
        """Phase 1: return the public keys to publish."""
        encryption = _public(_private(self.encryption_key))
        masking = _public(_mask_key(self.pairwise_seed, self.round_id))
        return PublicKeys(encryption, masking)

    def share_secrets(self, published: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Phase 2: share both secrets with all other clients.

        Args:
            published: Public keys of all clients.

        Returns:
            For each other client, shares that only that client can decrypt.

        Raises:
            InvalidMessage: If keys are missing or repeated, or there are too few clients.
        """
        self._expect("keys")
        if published.get(self.client) != self.public_keys():
            raise InvalidMessage("the list of keys has not this client's own")
        distinct = {keys.encryption for keys in published.values()}
        distinct |= {keys.masking for keys in published.values()}
        if len(published) < MIN_CLIENTS or len(distinct) < 2 * len(published):
            raise InvalidMessage(
                f"the list of keys is too short (at least {MIN_CLIENTS}), or has one twice"
            )
        ids = sorted(published)
        self.peers = {other: keys for other, keys in published.items() if other != self.client}
        needed = threshold(len(ids))
        secret_shares = [
            Shamir.split(needed, len(ids), secret, ssss=False)
            for secret in (self.pairwise_seed, self.self_mask_seed)
        ]
        encrypted = {}
        for index, other in enumerate(ids):
            shares = b"".join(part[index][1] for part in secret_shares)
            if other == self.client:
                self.received_shares[other] = shares
            else:
                cipher = self._share_cipher(self.client, other)
                encrypted[other] = cipher.encrypt(bytes(12), shares, None)
        self.phase = "shared"
        return encrypted

    def mask(self, encrypted_shares: Mapping[int, bytes], words: Words) -> Words:
        """Phase 3: mask this client's input.

        Args:
            encrypted_shares: Shares from the clients that take part, by sender.
            words: This client's input ``[n]``.

        Returns:
            The masked input ``[n]``.

        Raises:
            InvalidMessage: If too few clients take part, or an unknown one.
        """
        self._expect("shared")
        unknown = encrypted_shares.keys() - self.peers.keys()
        if unknown or len(encrypted_shares) + 1 < threshold(len(self.peers) + 1):
            raise InvalidMessage(
                f"shares of {len(encrypted_shares)} clients came: too few, or of clients without "
                "keys"
            )
        self.received_shares |= encrypted_shares
        masked = words + prg(self.self_mask_seed, self.round_id, words.size)
        key = _mask_key(self.pairwise_seed, self.round_id)
        for other in encrypted_shares:
            pair = _agree(key, self.peers[other].masking, self.round_id)
            masked = masked + prg(pair, self.round_id, words.size) * _sign(self.client, other)
        self.phase = "masked"
        return masked

    def reveal(self, replied: Iterable[int]) -> dict[int, bytes]:
        """Phase 4: reveal one share per client, so that the masks of the sum can be removed.

        Args:
            replied: Clients whose masked input is in the sum.

        Returns:
            By client, a share of its self mask seed if it replied, else of its pairwise seed.

        Raises:
            InvalidMessage: If too few clients replied, or others than agreed on.
        """
        self._expect("masked")
        in_sum = set(replied)
        agreed = in_sum <= self.received_shares.keys() and self.client in in_sum
        if not agreed or len(in_sum) < threshold(len(self.peers) + 1):
            raise InvalidMessage(
                f"a sum of {len(in_sum)} clients is not unmasked: too few, or not those that were "
                "agreed on"
            )
        self.phase = "revealed"
        revealed = {}
        for other, shares in self.received_shares.items():
            if other != self.client:
                cipher = self._share_cipher(other, self.client)
                try:
                    shares = cipher.decrypt(bytes(12), shares, None)
                except InvalidTag:
                    raise InvalidMessage(
                        f"the shares of client {other} are not what it sent"
                    ) from None
            revealed[other] = shares[SEED_BYTES:] if other in in_sum else shares[:SEED_BYTES]
        return revealed

    def to_json(self) -> str:
        """Serialise for this client's own disk: a node may be started anew for each message."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> SecAggClient:
        """Return the client that :meth:`to_json` serialised."""
        return from_json(cls, text, "this client's state of the secure sum")

    def _expect(self, phase: str) -> None:
        """Refuse a phase that is out of order."""
        if self.phase != phase:
            raise InvalidMessage(
                f"this phase of the sum is over, or not yet reached (it is '{self.phase}')"
            )

    def _share_cipher(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        """Return the cipher of one message, with a key of its own."""
        peer = self.peers[receiver if sender == self.client else sender]
        context = f"{self.round_id} {sender}>{receiver}"
        return ChaCha20Poly1305(_agree(_private(self.encryption_key), peer.encryption, context))


def unmask(
    total: Words,
    published: Mapping[int, PublicKeys],
    joined: Iterable[int],
    replied: Iterable[int],
    shares: Mapping[int, Mapping[int, bytes]],
    round_id: str,
) -> Words:
    """Remove all masks from a sum of masked inputs: the server's last step.

    Args:
        total: Sum of the masked inputs ``[n]``.
        published: Public keys of all clients (phase 1).
        joined: Clients whose shares were passed on, so that others have masks with them (phase 3).
        replied: Clients whose masked input is in the sum.
        shares: Revealed shares, by the client that revealed them and the client they concern.
        round_id: Name of the run and round.

    Returns:
        The sum of the inputs ``[n]``.

    Raises:
        InvalidMessage: If too few shares were revealed, or they do not fit a client's key.
    """
    index = {client: place for place, client in enumerate(sorted(published), start=1)}
    replied = sorted(replied)
    needed = threshold(len(published))

    def recover(client: int) -> bytes:
        known = [(index[by], own[client]) for by, own in shares.items() if client in own][:needed]
        if len(known) < needed:
            raise InvalidMessage(f"{len(known)} clients revealed their shares, {needed} are needed")
        return bytes(Shamir.combine(known, ssss=False))

    for client in replied:
        total = total - prg(recover(client), round_id, total.size)
    for lost in sorted(set(joined) - set(replied)):
        key = _mask_key(recover(lost), round_id)
        if _public(key) != published[lost].masking:
            raise InvalidMessage(f"the shares of client {lost}'s secret do not fit its key")
        for client in replied:
            pair = _agree(key, published[client].masking, round_id)
            total = total - prg(pair, round_id, total.size) * _sign(client, lost)
    return total


def prg(seed: bytes, round_id: str, count: int) -> Words:
    """Return ``count`` pseudorandom words of a seed (ChaCha20).

    Args:
        seed: Secret of one client or of two.
        round_id: Id of the round; another round has other words.
        count: Number of words.
    """
    cipher = Cipher(algorithms.ChaCha20(_derive(seed, f"{round_id} stream"), bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def _sign(client: int, other: int) -> np.uint64:
    """Return 1, or -1 modulo 2^64: of a pair, one adds what the other subtracts."""
    return np.uint64(1) if client < other else np.uint64(2**64 - 1)


def _mask_key(seed: bytes, round_id: str) -> X25519PrivateKey:
    """Derive the private masking key of a round."""
    return _private(_derive(seed, f"{round_id} mask key"))


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret)


def _public(key: X25519PrivateKey) -> bytes:
    return bytes(key.public_key().public_bytes_raw())


def _agree(key: X25519PrivateKey, other: bytes, context: str) -> bytes:
    """Agree on a key with another client (Diffie-Hellman)."""
    try:
        return _derive(key.exchange(X25519PublicKey.from_public_bytes(other)), context)
    except ValueError as error:
        raise InvalidMessage("a public key is none") from error


def _derive(secret: bytes, context: str) -> bytes:
    """Derive a key for one purpose from a secret (HKDF)."""
    info = f"equipoise {context}".encode()
    return bytes(HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret))
