"""Who joined, who was refused, what was sent to whom and came back, and whose reply counted: one line each.

Both sides keep such a file, and digests of the same message are the same in both: whoever disputes a round can compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.core import files


class Audit:
    """A file of JSON lines, for its owner alone; nothing in it is ever changed. Control characters are escaped."""

    def __init__(self, file: Path | None) -> None:
        """``None``: nothing is written."""
        self.file = file

    def note(self, event: str, **about: Any) -> None:
        if self.file is None:
            return
        if not self.file.exists():
            files.make_folder(self.file.parent, private=True)
            files.write_bytes(self.file, b"", private=True)
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **about}
        files.append(self.file, json.dumps(line) + "\n")

    def exchanged(self, sent: Mapping[int, bytes], came: Mapping[int, bytes | str]) -> None:
        """What went to each client, and what came back: its digest, or why nothing did."""
        for client, data in sent.items():
            answer = came.get(client, "no reply in time")
            told = {"came": answer} if isinstance(answer, str) else {"came": digest(answer), "bytes": len(answer)}
            self.note("exchange", client=client, sent=digest(data), **told)


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
