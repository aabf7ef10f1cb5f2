"""The lines that ``equipoise flower run`` prints while a run goes on.

The server app writes them to ``progress.log`` in the run's folder; the command follows the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from equipoise.experiment.decision import MIN_TEST_ROWS, site_verdict
from equipoise.experiment.row_outputs import CONSTANT, GLOBAL, LOCAL
from equipoise.records.decision import Estimate
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.utils import io
from equipoise.utils.metrics import format_score

MAX_NAMED_CLIENTS = 10  # in one line
MAX_LISTED_CLIENTS = 100  # in the table at the end
VERDICTS = {
    "better": "better than training alone ({own}): gain {gain}",
    "worse": "worse than training alone ({own}), which it should keep: gain {gain}",
    "tie": "ties with training alone ({own}): gain {gain}",
}
"""Words for what a client gains over its rows alone."""


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
        Who replied, seconds, scores, and the clients that were absent or left out, by name.
    """
    ids = range(record.clients) if record.ids is None else record.ids
    replied = [k for k in ids if k not in record.absent and k not in record.dropped]
    clients = ", ".join(_name(client, names) for client in replied) or "nobody"
    if len(replied) > MAX_NAMED_CLIENTS:
        clients = f"{len(replied)} of {record.clients} clients"
    parts = [f"round {record.round} of {rounds}: {clients}; {record.seconds:.1f} s"]
    metric = record.global_.metric or record.personal.metric
    if metric:
        parts += [
            f"{kind} {metric} {format_score(metric, record.evaluation(kind).get(metric))}"
            for kind in ("global", "personal")
            if record.evaluation(kind)
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


def describe_clients(folder: RunFolder, metric: str, names: Mapping[int, str]) -> list[str]:
    """Describe the final model of each client in one sentence, against training alone.

    Args:
        folder: Folder of a finished run.
        metric: Main metric of the task.
        names: Names that clients gave themselves.

    Returns:
        One line per client as far as its scores are known, then remarks on all of them.
    """
    table = folder.read_table(folder.clients)
    names = {**names, **folder.read_names()}
    scores = table.get(f"personal_{metric}", [])
    lines = []
    for k in range(min(len(scores), MAX_LISTED_CLIENTS)):
        values = {column: cells[k] for column, cells in table.items()}
        name = _name(int(values["client"]), names)
        lines.append(f"{name}: {_site_sentence(values, metric)}")
    known = [k for k, score in enumerate(scores) if math.isfinite(score)]
    if known and len(known) < len(scores):
        lines.append(f"means over clients are of the {len(known)} of {len(scores)} with a score")
    constant = table.get("one_class", [])
    if known and constant and all(constant[k] == 1 for k in known):
        lines.append(
            "every client's own model predicts one class for all of its test rows, as a constant "
            "would: train longer, or look at the target"
        )
    return lines


def _site_sentence(values: Mapping[str, float], metric: str) -> str:
    """Describe a client's own model beside training alone, the global model and a constant."""
    score = _estimate(values, f"personal_{metric}")
    if math.isnan(score.value):
        return "the score of its own model is not known"
    num_rows = values.get("test_rows", math.nan)
    tested = f" on {num_rows:.0f} test rows" if math.isfinite(num_rows) else ""
    parts = [f"its own model has {metric} {score.score_text(metric)}{tested}"]
    own = values.get(f"{LOCAL}_{metric}", math.nan)
    if math.isfinite(own):
        gain = _estimate(values, "gain_over_own")
        rows = int(num_rows) if math.isfinite(num_rows) else MIN_TEST_ROWS
        verdict = site_verdict(gain, rows, metric, score.value, has_own=True)
        text = VERDICTS.get(verdict, "{verdict}: training alone has {own}, gain {gain}")
        own_text = format_score(metric, own)
        gain_text = gain.difference_text(metric, score.value)
        parts.append(text.format(verdict=verdict, own=own_text, gain=gain_text))
    for kind, words in ((GLOBAL, "the global model"), (CONSTANT, "a constant prediction")):
        value = values.get(f"{kind}_{metric}", math.nan)
        if math.isfinite(value):
            parts.append(f"{words} has {format_score(metric, value)}")
    if values.get("one_class") == 1:
        parts.append("it predicts one class for all of them")
    return "; ".join(parts)


def _estimate(values: Mapping[str, float], column: str) -> Estimate:
    """Return a value with the interval beside it; NaN where a column is missing."""
    return Estimate(*(values.get(f"{column}{part}", math.nan) for part in ("", "_low", "_high")))


def _name(client: int, names: Mapping[int, str]) -> str:
    """Return the name of a client, or its number in words."""
    return names.get(client) or f"client {client}"


def _list_clients(reasons: Mapping[int, str], names: Mapping[int, str]) -> str:
    """List clients by name with their reasons."""
    shown = [
        f"{_name(client, names)} ({reason})"
        for client, reason in list(reasons.items())[:MAX_NAMED_CLIENTS]
    ]
    num_more = len(reasons) - len(shown)
    return ", ".join(shown) + (f" and {num_more} more" if num_more else "")
