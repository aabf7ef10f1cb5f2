"""Small JSON files of a node, each with a digest of its own content.

A node's records (spent privacy, updates given to secure sums, rounds of a day) decide what may
leave it. A damaged one must stop the node, not start it anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from equipoise.utils import io
from equipoise.utils.errors import UsageError

DIGEST_KEY = "sha256"


def write_sealed(path: Path, table: dict[str, Any]) -> None:
    """Replace a file durably, in a folder that only its owner can read.

    Args:
        path: The file.
        table: A JSON object.
    """
    io.make_folder(path.parent, private=True)
    io.write_text(path, json.dumps({**table, DIGEST_KEY: _digest(table)}))


def read_sealed(path: Path, lost: str) -> dict[str, Any] | None:
    """Read a file of `write_sealed`.

    Args:
        path: The file.
        lost: What is not known if the file is damaged, for the error.

    Returns:
        The JSON object; None if there is no file.

    Raises:
        UsageError: If the file does not match its digest.
    """
    if not path.exists():
        return None
    try:
        table = json.loads(io.read_text(path))
        if table.pop(DIGEST_KEY) == _digest(table):
            return dict(table)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UsageError(f"'{path}' is damaged: {lost}")


def _digest(table: dict[str, Any]) -> str:
    """Return the digest of a JSON object."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
