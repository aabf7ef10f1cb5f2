"""Records with everything that a test does not care about filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.records.manifest import MANIFEST_FILE, CheckedFolder
from equipoise.records.rounds import Bytes, RoundRecord
from equipoise.records.run_dir import RunFolder, log_line
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
    return log_line(record(t, **given)).decode()


def write_run(path: Path, options: dict[str, Any], lines: str = "", **contents: str) -> None:
    """A folder with a config, a log of these lines, and other files: ``clients_csv="..."``."""
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    folder.begin(options, {})
    files = {name.replace("_", "."): text for name, text in contents.items()}
    folder.write({**files, "rounds.jsonl": lines})


def trust(path: Path) -> None:
    """Make a new manifest of all files as they are."""
    names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    CheckedFolder(path).restart([name for name in names if name != MANIFEST_FILE], [])


def unfinish(path: Path) -> None:
    """Take the summary away from a finished run, so that it can be resumed."""
    RunFolder(path).forget(["summary.json"])
