"""The folder of a run: where everything is, and how it is read and written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from equipoise.core import files
from equipoise.core.errors import UsageError
from equipoise.records import codec
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary

ENTRIES = (
    *("config.json", "rounds.jsonl", "summary.json", "clients.csv", "labels.csv", "report.html", "executor.json"),
    *("trackers.json", "tensorboard", "wandb", "models", "checkpoint"),
)


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
    def models(self) -> Path:
        return self.path / "models"

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
        """Refuse a folder that is not a run's."""
        if not self.config.is_file():
            raise UsageError(f"'{self.path}' is not a run folder: it has no config.json")

    def clear(self) -> None:
        """Remove what a run has written, and nothing else."""
        for name in ENTRIES:
            entry = self.path / name
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)

    def stream(self) -> Iterator[RoundRecord]:
        """Rounds on disk, one at a time; a last line that a crash cut short is left out."""
        if not self.rounds.exists():
            return
        with open(self.rounds) as lines:
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
            raise UsageError(f"'{self.rounds}' is damaged or of another version: {error}") from error

    def write_rounds(self, records: Sequence[RoundRecord]) -> None:
        """The whole log anew."""
        files.write_text(self.rounds, "".join(codec.dumps(record) + "\n" for record in records))

    def read_summary(self) -> Summary:
        """The summary of a finished run."""
        try:
            text = self.summary.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"'{self.path}' has no readable summary.json: {error}") from error
        try:
            return codec.decode(Summary, json.loads(text))
        except ValueError as error:
            raise UsageError(f"'{self.summary}' is damaged or of another version: {error}") from error

    def write_summary(self, summary: Summary) -> None:
        files.write_text(self.summary, codec.dumps(summary, indent=1))


def append_round(file: TextIO, record: RoundRecord) -> None:
    """One more line of a log that is open."""
    file.write(codec.dumps(record) + "\n")
    file.flush()
