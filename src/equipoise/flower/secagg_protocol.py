"""Sums of which nobody sees the parts: pairwise masks with recovery from clients that drop out.

Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", against a server that
follows the protocol and looks. Every pair of clients agrees on a key (X25519) of which one adds the stream (ChaCha20)
and the other takes it off; every client adds a stream of its own. Both secrets are shared among all (Shamir's scheme),
so that of a client that replied the own stream can be taken off, and of one that did not the pairwise ones, never both.

No primitive is our own: keys and streams are those of ``cryptography``, shares those of ``pycryptodome``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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

SEED_BYTES = 16  # bytes of a secret that is shared: what Shamir's scheme takes
KEY_BYTES = 32
MIN_CLIENTS = 3

Words = NDArray[np.uint64]


def threshold(clients: int) -> int:
    """Clients without whom nothing is unmasked: more than two thirds of those that began."""
    return 2 * clients // 3 + 1


@dataclass(frozen=True)
class PublicKeys:
    """What a client publishes: for the shares that it is sent, and for its masks."""

    encryption: bytes
    masking: bytes

    def __post_init__(self) -> None:
        if len(self.encryption) != KEY_BYTES or len(self.masking) != KEY_BYTES:
            raise InvalidMessage("a public key has not 32 bytes")


@dataclass
class SecAggClient:
    """One client's side of one round. Phases come in order, each once; what it must remember is :meth:`saved`."""

    client: int
    round_id: str
    """What the round is: keys that are derived for one are of no use in another."""
    encryption_key: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES))
    pairwise_seed: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES))
    self_mask_seed: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES))
    peers: dict[int, PublicKeys] = field(default_factory=dict)
    received_shares: dict[int, bytes] = field(default_factory=dict)
    """Encrypted shares of others' secrets, of those that take part in the sum."""
    phase: str = "keys"

    def public_keys(self) -> PublicKeys:
        """Phase 1: public keys."""
        return PublicKeys(
            _public(_private(self.encryption_key)),
            _public(_mask_key(self.pairwise_seed, self.round_id)),
        )

    def share_secrets(self, published: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Phase 2: for each other client, this one's two secrets in shares that only it can read."""
        self._expect("keys")
        if published.get(self.client) != self.public_keys():
            raise InvalidMessage("the list of keys has not this client's own")
        if len(published) < MIN_CLIENTS or len(
            {part for keys in published.values() for part in _both(keys)}
        ) < 2 * len(published):
            raise InvalidMessage(
                f"the list of keys is too short (at least {MIN_CLIENTS}), or has one twice"
            )
        ids, least = sorted(published), threshold(len(published))
        self.peers = {other: keys for other, keys in published.items() if other != self.client}
        parts = [
            Shamir.split(least, len(ids), secret, ssss=False)
            for secret in (self.pairwise_seed, self.self_mask_seed)
        ]
        letters = {}
        for place, other in enumerate(ids):
            shares = b"".join(part[place][1] for part in parts)
            if other == self.client:
                self.received_shares[other] = shares
            else:
                letters[other] = self._letter_cipher(self.client, other).encrypt(
                    bytes(12), shares, None
                )
        self.phase = "shared"
        return letters

    def mask(self, letters: Mapping[int, bytes], words: Words) -> Words:
        """Phase 3: this client's words under the masks of those whose letters came."""
        self._expect("shared")
        if letters.keys() - self.peers.keys() or len(letters) + 1 < threshold(len(self.peers) + 1):
            raise InvalidMessage(
                f"letters of {len(letters)} clients came: too few, or of clients without keys"
            )
        self.received_shares |= letters
        masked = words + prg(self.self_mask_seed, self.round_id, words.size)
        for other in letters:
            pair = _agreed(
                _mask_key(self.pairwise_seed, self.round_id),
                self.peers[other].masking,
                self.round_id,
            )
            masked = masked + prg(pair, self.round_id, words.size) * _sign(self.client, other)
        self.phase = "masked"
        return masked

    def reveal(self, replied: Iterable[int]) -> dict[int, bytes]:
        """Phase 4: a share of the own stream of each that replied, of the masks of each that did not."""
        self._expect("masked")
        sums = set(replied)
        if (
            not sums <= self.received_shares.keys()
            or self.client not in sums
            or len(sums) < threshold(len(self.peers) + 1)
        ):
            raise InvalidMessage(
                f"a sum of {len(sums)} clients is not unmasked: too few, or not those that were agreed on"
            )
        self.phase = "revealed"
        shares = {}
        for other, letter in self.received_shares.items():
            try:
                both = (
                    letter
                    if other == self.client
                    else self._letter_cipher(other, self.client).decrypt(bytes(12), letter, None)
                )
            except InvalidTag:
                raise InvalidMessage(f"the letter of client {other} is not what it sent") from None
            shares[other] = both[SEED_BYTES:] if other in sums else both[:SEED_BYTES]
        return shares

    def to_json(self) -> str:
        """As text, for this client's own disk: a node may be started anew for each message."""
        return json.dumps(_hex(asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> SecAggClient:
        table = json.loads(text)
        unhex = bytes.fromhex
        others = {
            int(id): PublicKeys(unhex(keys["shares"]), unhex(keys["masks"]))
            for id, keys in table["others"].items()
        }
        letters = {int(id): unhex(letter) for id, letter in table["letters"].items()}
        secrets = {name: unhex(table[name]) for name in ("letter_key", "mask_seed", "own_seed")}
        return cls(
            table["client"],
            table["about"],
            **secrets,
            others=others,
            letters=letters,
            phase=table["phase"],
        )

    def _expect(self, phase: str) -> None:
        if self.phase != phase:
            raise InvalidMessage(
                f"this phase of the sum is over, or not yet reached (it is '{self.phase}')"
            )

    def _letter_cipher(self, sender: int, receiver: int) -> ChaCha20Poly1305:
        """For one letter, with a key of its own."""
        other = self.peers[receiver if sender == self.client else sender]
        agreed = _agreed(
            _private(self.encryption_key), other.encryption, f"{self.round_id} {sender}>{receiver}"
        )
        return ChaCha20Poly1305(agreed)


def unmask(
    total: Words,
    published: Mapping[int, PublicKeys],
    joined: Iterable[int],
    replied: Iterable[int],
    shares: Mapping[int, Mapping[int, bytes]],
    about: str,
) -> Words:
    """The server's last step: the sum of the masked words of those that ``replied``, without masks.

    Arguments:
        total: that sum.
        published: everybody's keys, of phase 1.
        joined: whose letters were passed on in phase 3, so that others have masks with them.
        replied: whose words are in the sum.
        shares: by the client that revealed it and the client whom it concerns.
        about: as clients were told it.
    """
    places = {client: place for place, client in enumerate(sorted(published), start=1)}
    replied, least = sorted(replied), threshold(len(published))

    def secret(of: int) -> bytes:
        known = [(places[by], told[of]) for by, told in shares.items() if of in told][:least]
        if len(known) < least:
            raise InvalidMessage(f"{len(known)} clients revealed their shares, {least} are needed")
        return bytes(Shamir.combine(known, ssss=False))

    for client in replied:
        total = total - prg(secret(client), about, total.size)
    for lost in sorted(set(joined) - set(replied)):
        key = _mask_key(secret(lost), about)
        if _public(key) != published[lost].masking:
            raise InvalidMessage(f"the shares of client {lost}'s secret do not fit its key")
        for client in replied:
            pair = _agreed(key, published[client].masking, about)
            total = total - prg(pair, about, total.size) * _sign(client, lost)
    return total


def prg(seed: bytes, about: str, count: int) -> Words:
    """So many words that nobody can tell from random ones without the seed."""
    cipher = Cipher(algorithms.ChaCha20(_derived(seed, f"{about} stream"), bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * count)), np.uint64)


def _sign(client: int, other: int) -> np.uint64:
    """1, or -1 modulo 2^64: of a pair, one adds what the other takes off."""
    return np.uint64(1) if client < other else np.uint64(2**64 - 1)


def _both(keys: PublicKeys) -> tuple[bytes, bytes]:
    return keys.encryption, keys.masking


def _mask_key(seed: bytes, about: str) -> X25519PrivateKey:
    return _private(_derived(seed, f"{about} mask key"))


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret)


def _public(key: X25519PrivateKey) -> bytes:
    return bytes(key.public_key().public_bytes_raw())


def _agreed(key: X25519PrivateKey, other: bytes, about: str) -> bytes:
    try:
        return _derived(key.exchange(X25519PublicKey.from_public_bytes(other)), about)
    except ValueError as error:
        raise InvalidMessage("a public key is none") from error


def _derived(secret: bytes, about: str) -> bytes:
    return bytes(
        HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=f"equipoise {about}".encode()).derive(
            secret
        )
    )


def _hex(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hex(inner) for key, inner in value.items()}
    return value.hex() if isinstance(value, bytes) else value
