"""Small JSON files of a node, each with a digest of its own content.

A node's records (spent privacy, updates given to secure sums, rounds of a day) decide what may
leave it. A damaged or deleted one must stop the node, not start it anew. So an index beside them
names the records that there are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from equipoise.utils import io
from equipoise.utils.errors import UsageError

DIGEST_KEY = "sha256"
INDEX = "records.json"


def write_sealed(path: Path, table: dict[str, Any]) -> None:
    """Replace a file durably, in a folder that only its owner can read.

    Args:
        path: The file.
        table: A JSON object.
    """
    io.make_folder(path.parent, private=True)
    _write(path, table)
    # After the record: a crash in between leaves a record that the next write adds to the index.
    names = _read_index(path.parent)
    if path.name not in names:
        _write(path.parent / INDEX, {"records": sorted([*names, path.name])})


def read_sealed(path: Path, loss_message: str) -> dict[str, Any] | None:
    """Read a file of `write_sealed`.

    Args:
        path: The file.
        loss_message: What is not known if the file is damaged, for the error.

    Returns:
        The JSON object; None if the file was never written.

    Raises:
        UsageError: If the file does not match its digest, or was deleted.
    """
    if path.exists():
        return _read(path, loss_message)
    if path.name in _read_index(path.parent):
        raise UsageError(f"'{path}' was deleted: {loss_message}; bring it back from a copy")
    return None


def _read_index(folder: Path) -> list[str]:
    """Return the names of the records that were written in a folder."""
    index = folder / INDEX
    if not index.exists():
        return []
    return list(_read(index, "this client's records are not known")["records"])


def _write(path: Path, table: dict[str, Any]) -> None:
    """Write a table with its digest."""
    io.write_text(path, json.dumps({**table, DIGEST_KEY: _digest(table)}))


def _read(path: Path, loss_message: str) -> dict[str, Any]:
    """Read a table, and compare it with its digest."""
    try:
        table = json.loads(io.read_text(path))
        if table.pop(DIGEST_KEY) == _digest(table):
            return dict(table)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UsageError(f"'{path}' is damaged: {loss_message}")


def _digest(table: dict[str, Any]) -> str:
    """Return the digest of a JSON object."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
