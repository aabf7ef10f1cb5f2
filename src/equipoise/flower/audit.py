"""Audit log of a deployment, and the register of nodes.

The log has one line for each client that joined or was refused, each message with its reply, and
each round. Both sides keep one, and digests of the same message are equal in both, so that a
disputed round can be compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from equipoise.flower.launch import FlowerCli
from equipoise.utils import io
from equipoise.utils.errors import UsageError


class AuditLog:
    """A private, append-only file of JSON lines. Control characters are escaped."""

    def __init__(self, file: Path | None) -> None:
        """Set the file; nothing is written if it is ``None``."""
        self.file = file

    def record(self, event: str, **metadata: object) -> None:
        """Append an event with the current time."""
        if self.file is None:
            return
        if not self.file.exists():
            io.make_folder(self.file.parent, private=True)
            # Two processes of one node may create it at once: neither may remove the other's.
            os.close(os.open(self.file, os.O_CREAT | os.O_WRONLY, 0o600))
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **metadata}
        io.append(self.file, json.dumps(line) + "\n")

    def record_exchange(
        self, sent: Mapping[int, bytes], replies: Mapping[int, bytes | str]
    ) -> None:
        """Record the digest of each message and of its reply, or why there was none."""
        for client, data in sent.items():
            answer = replies.get(client, "no reply in time")
            reply: dict[str, object] = {"reply": answer}
            if not isinstance(answer, str):
                reply = {"reply": digest(answer), "bytes": len(answer)}
            self.record("exchange", client=client, sent=digest(data), **reply)


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of a message."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_node_register(file: Path) -> dict[int, int]:
    """Read which client each registered node is.

    Raises:
        UsageError: If the file is damaged.
    """
    try:
        table = json.loads(file.read_text())
        bound = {int(node): client for node, client in table.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"'{file}' is no file of 'equipoise flower register': {error}") from error
    if any(type(client) is not int or client < 0 for client in bound.values()):
        raise UsageError(f"'{file}' is damaged: clients must be whole numbers")
    return bound


def register_node(key: Path, client: int, file: Path, address: str, ca: Path | None) -> int:
    """Register a node's public key at the SuperLink, and write its client to the register.

    Args:
        key: File of the public key.
        client: Client that the node is.
        file: The register.
        address: Address of the SuperLink.
        ca: Certificate of the CA.

    Returns:
        Id of the node.

    Raises:
        UsageError: If the client has a node already, or the SuperLink refuses the key.
    """
    if client < 0:
        raise UsageError(f"client is {client}: must be at least 0")
    if not key.is_file():
        raise UsageError(f"there is no public key '{key}'")
    bound = read_node_register(file) if file.exists() else {}
    if client in bound.values():
        raise UsageError(
            f"client {client} has a node in '{file}' already: take it out there to replace it"
        )
    with tempfile.TemporaryDirectory() as home:
        result = FlowerCli(home, address, ca).run_json(
            "did not register the key", "supernode", "register", str(key.resolve())
        )
    node = int(result["node-id"])
    io.write_text(file, json.dumps({**bound, node: client}, indent=1) + "\n")
    return node
