"""Record of what the server asks, written before it asks.

A server that dies in a round has lost the replies, but clients may have uploaded. When the run is
resumed, the privacy accountant counts these requests too, so that a crash never makes epsilon too
small. Finished rounds are in the checkpoint, so only requests of the current round are kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from equipoise.records.manifest import CheckedFile
from equipoise.records.rounds import LostRequest
from equipoise.utils.errors import UsageError


class RequestJournal:
    """Requests of the current round, in one file."""

    def __init__(self, file: CheckedFile) -> None:
        """Open the journal of a run; the file is created with the first request."""
        self.file = file

    def record_request(self, round: int, clients: list[int]) -> None:
        """Write down a request before it is sent.

        Args:
            round: Number of the round.
            clients: Clients that are asked.
        """
        earlier = [request for request in self.read() if request.round >= round]
        self._write([*earlier, LostRequest(round, clients)])

    def record_sum(self, num_summed: int) -> None:
        """Write down the size of a secure sum before it is unmasked.

        Args:
            num_summed: Number of clients in the sum of the last request.
        """
        *earlier, last = self.read()
        self._write([*earlier, replace(last, num_summed=num_summed)])

    def read(self) -> list[LostRequest]:
        """Return the requests in the file.

        Raises:
            UsageError: If the file is damaged.
        """
        if not self.file.exists():
            return []
        try:
            return [LostRequest(**entry) for entry in json.loads(self.file.read_text())]
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"'{self.file}' is damaged: what was asked before the crash is not known, and "
                "epsilon would be too small"
            ) from error

    def _write(self, requests: list[LostRequest]) -> None:
        self.file.write(json.dumps([asdict(request) for request in requests]))
