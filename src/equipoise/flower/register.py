"""Which client a node's key stands for: Flower gives a registered key a node id that it keeps, and tells no more."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError
from equipoise.flower.launch import Link


def read(file: Path) -> dict[int, int]:
    """Node ids and their clients."""
    try:
        table = json.loads(file.read_text())
        bound = {int(node): client for node, client in table.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"'{file}' is no file of 'equipoise flower register': {error}") from error
    if any(type(client) is not int or client < 0 for client in bound.values()):
        raise UsageError(f"'{file}' is damaged: clients must be whole numbers")
    return bound


def add(key: Path, client: int, file: Path, address: str, ca: Path | None) -> int:
    """Register a public key at the SuperLink and note its client; gives the node's id."""
    if client < 0:
        raise UsageError(f"client is {client}: must be at least 0")
    if not key.is_file():
        raise UsageError(f"there is no public key '{key}'")
    bound = read(file) if file.exists() else {}
    if client in bound.values():
        raise UsageError(f"client {client} has a node in '{file}' already: take it out there to replace it")
    with tempfile.TemporaryDirectory() as home:
        done = Link(home, address, ca).ask("supernode", "register", str(key.resolve()), "link", "--format", "json")
    if not done.get("success"):
        reason = " ".join(str(done.get("error-message", done)).split())
        raise UsageError(f"the SuperLink at {address} did not register the key: {reason}"[:400])
    node = int(done["node-id"])
    checkpoint.write_text(file, json.dumps({str(n): c for n, c in {**bound, node: client}.items()}, indent=1) + "\n")
    return node
