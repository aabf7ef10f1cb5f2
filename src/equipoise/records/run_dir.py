"""The folder of a run: where everything is, and how it is read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.records import codec
from equipoise.records.client_table import read_names
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary
from equipoise.utils import io
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError, nearest

ENTRIES = (
    *("summary.json", "rounds.jsonl", "clients.csv", "labels.csv", "report.html", "executor.json"),
    *("preparation.json", "data.sha256", "devices.csv"),
    *("trackers.json", "tensorboard", "wandb", "models", "checkpoint"),
)
"""All that a run writes but its config."""

SHOWN = 20  # names of clients that an error tells


@dataclass(frozen=True)
class Folder:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def executor(self) -> Path:
        return self.path / "executor.json"

    @property
    def preparation(self) -> Path:
        """How raw rows become a model's input, where the task has tables."""
        return self.path / "preparation.json"

    @property
    def fingerprint(self) -> Path:
        """Of the data that the run began with."""
        return self.path / "data.sha256"

    @property
    def devices(self) -> Path:
        """The table of devices that the run began with, where it is the user's own."""
        return self.path / "devices.csv"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def card(self) -> Path:
        """What the models are."""
        return self.models / "card.json"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def clients(self) -> Path:
        return self.path / "clients.csv"

    @property
    def labels(self) -> Path:
        return self.path / "labels.csv"

    def demand(self) -> None:
        """Refuse a folder that is not a run's, or whose run was written in another format."""
        if not self.config.is_file():
            raise UsageError(f"'{self.path}' is not a run folder: it has no config.json")
        read_config(self.config)

    def begun(self) -> bool:
        """Whether there is anything in it; not if a run was cut short before it wrote its config."""
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
        """Refuse a folder that must not be written to; ``again``: one with a run in it may be."""
        if not self.begun():
            return
        if not again:
            raise UsageError(
                f"'{self.path}' exists already: choose another --out, or give --resume or --overwrite"
            )
        if not self.config.is_file():
            raise UsageError(
                f"'{self.path}' is not a run folder (it has no config.json): choose another --out"
            )

    def find_client(self, wanted: str) -> int:
        """A client's number by its name, or by the number itself if no client is named so."""
        names = read_names(self.clients)
        number = next((client for client, name in names.items() if name == wanted), None)
        if number is not None:
            return number
        if not wanted.isdecimal():
            known = (
                f": it has {', '.join(list(names.values())[:SHOWN])}"
                if names
                else ": give its number"
            )
            raise UsageError(
                f"'{self.path}' has no client '{wanted}'{nearest(wanted, names.values())}{known}"
            )
        return int(wanted)

    def clear(self) -> None:
        """Remove what a run has written, but the config: without one it would be no run's folder any more."""
        for name in ENTRIES:
            io.remove(self.path / name)
        io.sync(self.path)

    def check(self) -> None:
        """Refuse a config or a log that is not the one that the last checkpoint was saved with."""
        if not self.checkpoint.is_file():
            return
        meta = io.read_meta(self.checkpoint)
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
        """Rounds on disk, one at a time; a last line that a crash cut short is left out."""
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
        """All rounds on disk."""
        return list(self.stream())

    def read_round(self, tree: object) -> RoundRecord:
        """One line of the log."""
        try:
            return codec.decode(RoundRecord, tree)
        except ValueError as error:
            raise UsageError(
                f"'{self.rounds}' is damaged or of another version: {error}"
            ) from error

    def write_rounds(self, records: Sequence[RoundRecord]) -> int:
        """The whole log anew; gives its checksum."""
        io.write_text(self.rounds, _lines(records))
        return self.checksum_of(records)

    def checksum_of(self, records: Sequence[RoundRecord]) -> int:
        """Of a log with these rounds."""
        return io.checksum(_lines(records).encode())

    def append_round(self, record: RoundRecord, before: int) -> int:
        """One more line of the log; gives its checksum, from that of the lines before."""
        line = codec.dumps(record) + "\n"
        io.append(self.rounds, line)
        return io.checksum(line.encode(), before)

    def read_summary(self) -> Summary:
        """The summary of a finished run."""
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
        io.write_text(self.summary, codec.dumps(summary, indent=1))


def _lines(records: Sequence[RoundRecord]) -> str:
    return "".join(codec.dumps(record) + "\n" for record in records)
