"""The folder of a run: paths of its files, and how they are read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.records import codec
from equipoise.records.client_table import read_names
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary
from equipoise.utils import io, serialization
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError, nearest

ENTRIES = (
    *("summary.json", "rounds.jsonl", "clients.csv", "labels.csv", "report.html", "executor.json"),
    "decision.json",
    *("preparation.json", "data.sha256", "devices.csv"),
    *("trackers.json", "tensorboard", "wandb", "models", "checkpoint"),
)
"""Everything that a run writes, except its config."""

MAX_LISTED_CLIENTS = 20  # names in an error message


@dataclass(frozen=True)
class Folder:
    """Paths and files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """Options of the run."""
        return self.path / "config.json"

    @property
    def rounds(self) -> Path:
        """Log with one line per round."""
        return self.path / "rounds.jsonl"

    @property
    def summary(self) -> Path:
        """Summary of the finished run."""
        return self.path / "summary.json"

    @property
    def checkpoint(self) -> Path:
        """Last checkpoint."""
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def executor(self) -> Path:
        """Executor that was chosen by measurement."""
        return self.path / "executor.json"

    @property
    def preparation(self) -> Path:
        """Preprocessing of tables or recordings."""
        return self.path / "preparation.json"

    @property
    def fingerprint(self) -> Path:
        """Fingerprint of the data that the run began with."""
        return self.path / "data.sha256"

    @property
    def devices(self) -> Path:
        """Device table of the user that the run began with."""
        return self.path / "devices.csv"

    @property
    def models(self) -> Path:
        """Folder of the models."""
        return self.path / "models"

    @property
    def card(self) -> Path:
        """Card of the models."""
        return self.models / "card.json"

    @property
    def baselines(self) -> Path:
        """Constant and local model of each named client."""
        return self.models / "baselines.safetensors"

    def outputs(self, split: str) -> Path:
        """What all kinds of models say about the clients' ``test`` or ``val`` rows."""
        return self.models / f"outputs-{split}.safetensors"

    @property
    def decision(self) -> Path:
        """Scores on the same rows and the verdict."""
        return self.path / "decision.json"

    @property
    def trackers(self) -> Path:
        """State of the trackers."""
        return self.path / "trackers.json"

    @property
    def report(self) -> Path:
        """HTML report."""
        return self.path / "report.html"

    @property
    def clients(self) -> Path:
        """Table of clients: size, scores and traffic."""
        return self.path / "clients.csv"

    @property
    def labels(self) -> Path:
        """Table of class counts of clients."""
        return self.path / "labels.csv"

    def demand(self) -> None:
        """Raise ``UsageError`` if this is no folder of a run, or one of another format."""
        if not self.config.is_file():
            raise UsageError(f"'{self.path}' is not a run folder: it has no config.json")
        read_config(self.config)

    def begun(self) -> bool:
        """Return whether the folder is in use.

        It is not if a run ended before it wrote its config.
        """
        if not self.path.is_dir():
            return self.path.exists()
        before = (self.preparation, self.fingerprint, self.devices)  # written before the config
        empty = {io.LOCK_FILE, *(io.temporary_path(file).name for file in (*before, self.config))}
        if not self.config.exists():
            empty |= {file.name for file in before}
        if not any(self.checkpoint.parent.glob("*")):
            empty.add(self.checkpoint.parent.name)
        return any(entry.name not in empty for entry in self.path.iterdir())

    def refuse(self, again: bool) -> None:
        """Check that a run may be written to the folder.

        Args:
            again: Whether the folder may contain a run.

        Raises:
            UsageError: If the folder is in use, or by something else than a run.
        """
        if not self.begun():
            return
        if not again:
            raise UsageError(
                f"'{self.path}' exists already: choose another --out, or give --resume or "
                "--overwrite"
            )
        if not self.config.is_file():
            raise UsageError(
                f"'{self.path}' is not a run folder (it has no config.json): choose another --out"
            )

    def find_client(self, wanted: str) -> int:
        """Find a client.

        Args:
            wanted: Name of the client, or its number if no client has that name.

        Returns:
            The number of the client.

        Raises:
            UsageError: If there is no client of that name.
        """
        names = read_names(self.clients)
        number = next((client for client, name in names.items() if name == wanted), None)
        if number is not None:
            return number
        if not wanted.isdecimal():
            known = (
                f": it has {', '.join(list(names.values())[:MAX_LISTED_CLIENTS])}"
                if names
                else ": give its number"
            )
            raise UsageError(
                f"'{self.path}' has no client '{wanted}'{nearest(wanted, names.values())}{known}"
            )
        return int(wanted)

    def clear(self) -> None:
        """Remove the files of a run, except the config, which marks the folder as a run."""
        for name in ENTRIES:
            io.remove(self.path / name)
        io.sync(self.path)

    def check(self) -> None:
        """Check that config and log are those of the last checkpoint.

        Raises:
            UsageError: If one was changed, cut or damaged.
        """
        if not self.checkpoint.is_file():
            return
        meta = serialization.read_meta(self.checkpoint)
        if io.checksum(self.config.read_bytes()) != meta["config"]:
            raise UsageError(
                f"'{self.config}' was changed after the run began: its checksum does not match"
            )
        lines = self.rounds.read_bytes().splitlines(keepends=True) if self.rounds.exists() else []
        if len(lines) < meta["round"]:
            raise UsageError(
                f"'{self.rounds}' has fewer rounds than the checkpoint: it was cut or edited"
            )
        if io.checksum(b"".join(lines[: meta["round"]])) not in meta["log"]:
            raise UsageError(f"'{self.rounds}' was damaged or edited: its checksum does not match")

    def stream(self) -> Iterator[RoundRecord]:
        """Iterate over the rounds on disk; a last line that a crash cut is ignored."""
        if not self.rounds.exists():
            return
        with open(self.rounds, "rb") as lines:
            for line in lines:
                try:
                    tree = json.loads(line)
                except ValueError:
                    return
                yield self.read_round(tree)

    def records(self) -> list[RoundRecord]:
        """Return all rounds on disk."""
        return list(self.stream())

    def read_round(self, tree: object) -> RoundRecord:
        """Decode one line of the log; raise ``UsageError`` if it is damaged."""
        try:
            return codec.decode(RoundRecord, tree)
        except ValueError as error:
            raise UsageError(
                f"'{self.rounds}' is damaged or of another version: {error}"
            ) from error

    def write_rounds(self, records: Sequence[RoundRecord]) -> int:
        """Rewrite the whole log and return its checksum."""
        io.write_text(self.rounds, _lines(records))
        return self.checksum_of(records)

    def checksum_of(self, records: Sequence[RoundRecord]) -> int:
        """Return the checksum of a log with these rounds."""
        return io.checksum(_lines(records).encode())

    def append_round(self, record: RoundRecord, before: int) -> int:
        """Append a round to the log.

        Args:
            record: The round.
            before: Checksum of the log so far.

        Returns:
            Checksum of the new log.
        """
        line = codec.dumps(record) + "\n"
        io.append(self.rounds, line)
        return io.checksum(line.encode(), before)

    def read_summary(self) -> Summary:
        """Read the summary of a finished run; raise ``UsageError`` if it is damaged."""
        try:
            text = self.summary.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{self.path}' has no readable summary.json: {error}") from error
        try:
            return codec.decode(Summary, json.loads(text))
        except ValueError as error:
            raise UsageError(
                f"'{self.summary}' is damaged or of another version: {error}"
            ) from error

    def write_summary(self, summary: Summary) -> None:
        """Write the summary, which marks the run as finished."""
        io.write_text(self.summary, codec.dumps(summary, indent=1))


def _lines(records: Sequence[RoundRecord]) -> str:
    """Return the text of a log."""
    return "".join(codec.dumps(record) + "\n" for record in records)
