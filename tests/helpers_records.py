"""Records with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from equipoise.records import codec
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.scores import Evaluations, Scores

NO_SUMMARY = {
    **{
        "method": "m",
        "task": "t",
        "model": "",
        "seed": 0,
        "rounds": 1,
        "stopped": None,
        "global": None,
    },
    **{
        "best_round": 1,
        "best": {"global": None},
        "converged_round": {"global": None, "personal": None},
    },
    **{"clients_seen": 1, "dropped_updates": 0, "bytes": {"up": 0, "down": 0}, "seconds": 0.0},
}
"""The JSON of a summary without scores."""


def record(t: int = 1, **given: Any) -> RoundRecord:
    """A round of one client."""
    usual = {
        "clients": 1,
        "seen": 1,
        "train": {},
        "bytes": Bytes(0, 0),
        "dropped": [],
        "seconds": 0.0,
    }
    return RoundRecord(round=t, **{**usual, **given})


def scores(**named: dict[str, float | None]) -> Evaluations:
    """Evaluations by name; those that are not given are empty."""
    return Evaluations(
        **{"global_": Scores(), **{name: Scores(values) for name, values in named.items()}}
    )


def line(t: int = 1, **given: Any) -> str:
    """A round as it stands in ``rounds.jsonl``."""
    return codec.dumps(record(t, **given)) + "\n"
