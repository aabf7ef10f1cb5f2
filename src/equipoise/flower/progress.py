"""The lines that ``equipoise flower run`` prints while a run goes on.

The server app writes them to ``progress.log`` in the run's folder; the command follows the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.report.terminal import format_score
from equipoise.utils import io

MAX_NAMED_CLIENTS = 10  # in one line
MAX_LISTED_CLIENTS = 100  # in the table at the end


class ProgressLog:
    """Lines for people, in the folder of a run."""

    def __init__(self, out: Path) -> None:
        """Set the folder of the run; the file is created with the first line."""
        self.file = out / "progress.log"

    def append(self, line: str) -> None:
        """Append one line; control characters in names are escaped."""
        if not self.file.exists():
            io.write_text(self.file, "")
        printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        io.append(self.file, printable + "\n")

    def read(self) -> list[str]:
        """Return all whole lines."""
        if not self.file.exists():
            return []
        text = self.file.read_text(errors="replace")
        return text.split("\n")[:-1]


def describe_round(record: RoundRecord, rounds: int, names: Mapping[int, str], note: str) -> str:
    """Describe one round in one line.

    Args:
        record: The round.
        rounds: Planned number of rounds.
        names: Names of clients.
        note: A remark on the global model; may be empty.

    Returns:
        Scores, seconds, and the clients that were absent or left out, by name.
    """
    parts = [f"round {record.round} of {rounds}: {record.clients} asked, {record.seconds:.1f} s"]
    metric = record.global_.metric or record.personal.metric
    if metric:
        parts += [
            f"{kind} {format_score(metric, record.named(kind).get(metric))}"
            for kind in ("global", "personal")
            if record.named(kind)
        ]
    if record.absent:
        parts.append(f"absent: {_list_clients(record.absent, names)}")
    if record.dropped:
        reasons = {k: record.rejected.get(k, "its numbers are not finite") for k in record.dropped}
        parts.append(f"left out: {_list_clients(reasons, names)}")
    if record.skipped:
        parts.append(f"the model did not change: {record.skipped}")
    if note:
        parts.append(note)
    return "; ".join(parts)


def describe_clients(folder: RunFolder, metric: str) -> list[str]:
    """Describe the final model of each client in one line.

    Args:
        folder: Folder of a finished run.
        metric: Main metric of the task.

    Returns:
        One line per client with its score, interval and baseline, as far as they are known.
    """
    table = folder.read_table(folder.clients)
    names = folder.read_names()
    scores = table.get(f"personal_{metric}", [])
    lines = []
    for k, score in enumerate(scores[:MAX_LISTED_CLIENTS]):
        client = int(table["client"][k])
        name = names.get(client, f"client {client}")
        if math.isnan(score):
            lines.append(f"{name}: the score of its own model is not known")
            continue
        line = f"{name}: its own model has {format_score(metric, score)}"
        if f"personal_{metric}_low" in table:
            low = table[f"personal_{metric}_low"][k]
            high = table[f"personal_{metric}_high"][k]
            line += f" (95 % interval {low:.4g} to {high:.4g})"
        if f"constant_{metric}" in table:
            constant = table[f"constant_{metric}"][k]
            line += f"; a constant prediction has {format_score(metric, constant)}"
        lines.append(line)
    return lines


def _list_clients(reasons: Mapping[int, str], names: Mapping[int, str]) -> str:
    """List clients by name with their reasons."""
    shown = [
        f"{names.get(client) or f'client {client}'} ({reason})"
        for client, reason in list(reasons.items())[:MAX_NAMED_CLIENTS]
    ]
    num_more = len(reasons) - len(shown)
    return ", ".join(shown) + (f" and {num_more} more" if num_more else "")
