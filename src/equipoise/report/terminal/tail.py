"""A run that may still go on: its rounds as they are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.report.terminal.words import duration
from equipoise.utils.config_file import read_config

RECENT = 20  # rounds that tell how long the next ones take


class Tail:
    """A run's rounds, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self.config = read_config(self.folder.config)
        self.records: list[RoundRecord] = []
        self._offset = 0

    def look(self) -> None:
        """Take in the lines that are whole; a file that shrank was written anew by a resume."""
        file = self.folder.rounds
        size = file.stat().st_size if file.exists() else 0
        if size < self._offset:
            self.records, self._offset = [], 0
        if size == self._offset:
            return
        with open(file, "rb") as lines:
            lines.seek(self._offset)
            text = lines.read()
        whole = text.rfind(b"\n") + 1
        self._offset += whole
        self.records += [
            self.folder.read_round(json.loads(line)) for line in text[:whole].splitlines()
        ]

    @property
    def finished(self) -> bool:
        return self.folder.summary.exists()

    @property
    def title(self) -> str:
        return f"{self.config['method']} on {self.config['task']}, seed {self.config['seed']}"

    @property
    def done(self) -> int:
        return self.records[-1].round if self.records else 0

    @property
    def planned(self) -> int:
        return int(self.config["rounds"])

    @property
    def state(self) -> str:
        """Rounds done, and what is to come."""
        if self.finished:
            stop = self.records[-1].stop if self.records else None
            return f"round {self.done}/{self.planned}, finished" + (f": {stop}" if stop else "")
        left = seconds_left(self.records, self.planned)
        return f"round {self.done}/{self.planned}" + (
            "" if left is None else f", {duration(left)} left"
        )

    @property
    def headline(self) -> str:
        return next((head for record in self.records if (head := record.trained.headline)), "acc")

    def course(self, name: str) -> list[float]:
        """The headline of a named evaluation over rounds."""
        values = [record.named(name).get(self.headline) for record in self.records]
        return [value for value in values if value is not None]


def seconds_left(records: Sequence[RoundRecord], planned: int) -> float | None:
    """What the last rounds took, for those to come."""
    recent = [record.seconds for record in records[-RECENT:]]
    return sum(recent) / len(recent) * (planned - records[-1].round) if recent else None
