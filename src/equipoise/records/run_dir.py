"""The folder of a run: its files by name, and how they are read and written.

Every command reads the files of a run through :class:`RunFolder`, which compares them with the
manifest of the run (:mod:`equipoise.records.manifest`).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from equipoise.records import codec
from equipoise.records.client_table import parse_names, parse_table
from equipoise.records.manifest import (
    MANIFEST_FILE,
    CheckedFile,
    CheckedFolder,
    FileState,
    NamedFile,
    seal_line,
    unseal_line,
)
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Compared, Summary
from equipoise.utils import io
from equipoise.utils.config_file import config_text, parse_config
from equipoise.utils.errors import UsageError, did_you_mean

CONFIG = "config.json"
INPUTS = ("preparation.json", "data.sha256", "devices.csv")
"""What a resumed run is compared with; written before the config."""
CHECKPOINTS = "checkpoint"
MODELS = "models"
ENTRIES = (
    *("summary.json", "rounds.jsonl", "clients.csv", "labels.csv", "report.html", "executor.json"),
    *("decision.json", "validation.csv", "explanation.json"),
    *INPUTS,
    *("trackers.json", "tensorboard", "wandb", MODELS, CHECKPOINTS),
)
"""Everything that a run writes, except its config and its manifest."""
MAX_LISTED_CLIENTS = 20  # names in an error message


@dataclass(frozen=True)
class RunFolder(CheckedFolder):
    """Files of a run."""

    config = NamedFile(CONFIG)
    """Options of the run."""
    preparation = NamedFile("preparation.json")
    """Preprocessing of tables or recordings."""
    fingerprint = NamedFile("data.sha256")
    """Fingerprint of the data that the run began with."""
    devices = NamedFile("devices.csv")
    """Device table of the user that the run began with."""
    executor = NamedFile("executor.json")
    """Executor that was chosen by measurement."""
    rounds = NamedFile("rounds.jsonl")
    """Log with one line per round."""
    checkpoint = NamedFile(f"{CHECKPOINTS}/last.safetensors")
    """Last checkpoint."""
    summary = NamedFile("summary.json")
    """Summary of the finished run."""
    clients = NamedFile("clients.csv")
    """Table of clients: size, scores and traffic."""
    baselines = NamedFile(f"{MODELS}/baselines.safetensors")
    """Constant and local model of each named client."""
    validation = NamedFile("validation.csv")
    """Scores of the global model at sites outside training, in a deployment."""
    evaluation = NamedFile("evaluation.json")
    """Scores of a single site's models in detail: calibration, groups."""
    explanation = NamedFile("explanation.json")
    """Which inputs matter, on the run's test rows."""
    hazard = NamedFile(f"{MODELS}/hazard.json")
    """Baseline hazard of survival, from the summed tables of all clients."""
    labels = NamedFile("labels.csv")
    """Table of class counts of clients."""
    card = NamedFile(f"{MODELS}/card.json")
    """Card of the models."""
    trackers = NamedFile("trackers.json")
    """State of the trackers."""
    flower = NamedFile("flower.json")
    """Name of the run at its remote clients, and the bytes that they sent before round 1."""
    requests = NamedFile("requests.json")
    """Requests to remote clients in the current round, written before they are sent."""

    def model(self, name: str) -> CheckedFile:
        """Return a model file: `global`, `global-best`, `shared`, `frozen` or `personal`."""
        return self.file(f"{MODELS}/{name}.safetensors")

    def outputs(self, split: str) -> CheckedFile:
        """Return the file of all models' outputs on the clients' ``test`` or ``val`` rows."""
        return self.model(f"outputs-{split}")

    @property
    def models(self) -> Path:
        """Folder of the models, for messages and exports; see :meth:`model`."""
        return self.path / MODELS

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoint, also for client state that does not fit into memory."""
        return self.path / CHECKPOINTS

    @property
    def report(self) -> Path:
        """HTML report, which no command reads."""
        return self.path / "report.html"

    # ------------------------------------------------------------------ state of the folder

    def has_config(self) -> bool:
        """Return whether this is the folder of a run: whether it has a config."""
        return (self.path / CONFIG).is_file()

    def is_run(self) -> bool:
        """Return whether this is the folder of a run, also if its config was deleted."""
        return self.has_config() or bool(self.states(CONFIG))

    def demand(self) -> None:
        """Raise ``UsageError`` if this is no folder of a run, or a damaged or older one."""
        self.read_config()

    def has_begun(self) -> bool:
        """Return whether the folder is in use.

        It is not if a run ended before it wrote its config.
        """
        if not self.path.is_dir():
            return self.path.exists()
        empty = {io.LOCK_FILE}
        if not self.has_config():
            empty |= {MANIFEST_FILE, *INPUTS}
        if not any(self.checkpoints.glob("*")):
            empty.add(CHECKPOINTS)
        names = {entry.name for entry in self.path.iterdir()}
        return any(not name.startswith(io.TEMPORARY_PREFIX) for name in names - empty)

    def refuse(self, allows_run: bool) -> None:
        """Check that a run may be written to the folder.

        Args:
            allows_run: Whether the folder may contain a run.

        Raises:
            UsageError: If the folder is in use, or by something else than a run.
        """
        if not self.has_begun():
            return
        if self.path.is_file():
            raise UsageError(f"'{self.path}' is a file, not a folder: choose another --out")
        if not allows_run:
            raise UsageError(
                f"'{self.path}' exists already: choose another --out, or give --resume or "
                "--overwrite"
            )
        if not self.has_config():
            raise UsageError(
                f"'{self.path}' is not a run folder (it has no {CONFIG}): choose another --out"
            )

    def clear(self) -> None:
        """Remove the files of a run, except the config, which marks the folder as a run."""
        self.restart([CONFIG], ENTRIES)

    def begin(self, options: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
        """Make the folder a run: write what a resumed run is compared with, then the config.

        Args:
            options: Every option of the run.
            inputs: Texts of :data:`INPUTS` by name; empty ones are not written.
        """
        texts = {name: text for name, text in inputs.items() if text}
        self.write({**texts, CONFIG: config_text(options)})

    def remove_leftovers(self) -> None:
        """Settle the manifest and remove temporary files after a process was killed."""
        self.settle()
        for folder in (self.path, self.checkpoints, self.models):
            io.remove_temporaries(folder)

    # ------------------------------------------------------------------ reading

    def read_config(self) -> dict[str, Any]:
        """Return the options of the run.

        Raises:
            UsageError: If this is no folder of a run, one of another format, or the config was
                changed.
        """
        if not self.has_config():
            raise UsageError(f"'{self.path}' is not a run folder: it has no {CONFIG}")
        # The format comes first: folders of other versions have other manifests.
        options = parse_config(self.path / CONFIG)
        self.verify(CONFIG)
        return options

    def read_summary(self) -> Summary:
        """Read the summary of a finished run; raise ``UsageError`` if it is damaged."""
        return codec.loads(Summary, self.summary.read_text(), self.summary)

    def read_table(self, file: CheckedFile) -> dict[str, list[float]]:
        """Read the numeric columns of a table; return nothing if there is no file."""
        return parse_table(file.read_text(), file) if file.exists() else {}

    def read_names(self) -> dict[int, str]:
        """Read the names of clients by number; return nothing if they have no names."""
        return parse_names(self.clients.read_text(), self.clients) if self.clients.exists() else {}

    def read_prepared_names(self) -> dict[int, str]:
        """Read the names of clients by number, from the first round on.

        Nothing is returned without tables, and where clients held out change the numbers.
        """
        if not self.preparation.exists() or self.read_config().get("holdout_clients"):
            return {}
        return dict(enumerate(json.loads(self.preparation.read_text()).get("clients", ())))

    def find_client(self, wanted: str) -> int:
        """Find a client.

        Args:
            wanted: Name of the client, or its number. Where names are numbers themselves, such as
                those of districts, a number is a name: another client's model is never given.

        Returns:
            The number of the client.

        Raises:
            UsageError: If there is no client of that name.
        """
        names = self.read_names()
        number = next((client for client, name in names.items() if name == wanted), None)
        if number is not None:
            return number
        self._refuse_pooled_client(wanted)
        is_number = wanted.isdecimal()
        if names:
            has_numeric_names = any(name.isdecimal() for name in names.values())
            is_number = is_number and int(wanted) in names and not has_numeric_names
        if not is_number:
            known = (
                f": it has {', '.join(list(names.values())[:MAX_LISTED_CLIENTS])}"
                if names
                else ": give its number"
            )
            raise UsageError(
                f"'{self.path}' has no client '{wanted}'"
                f"{did_you_mean(wanted, names.values())}{known}"
            )
        return int(wanted)

    def _refuse_pooled_client(self, name: str) -> None:
        """Say which model serves a client that was too small for one of its own."""
        if not self.preparation.exists():
            return
        served_by = dict(json.loads(self.preparation.read_text()).get("served_by", ()))
        if name not in served_by:
            return
        pool = served_by[name]
        if pool:
            raise UsageError(
                f"client '{name}' has no model of its own, because it had few rows: "
                f"the model of '{pool}' was trained on its rows and serves it"
            )
        raise UsageError(
            f"client '{name}' was left out of training, because it had few rows: "
            "only the global model may serve it"
        )

    # ------------------------------------------------------------------ rounds

    def stream(self, with_lost: bool = False) -> Iterator[RoundRecord]:
        """Iterate over the rounds of the run.

        Of a run that was killed these are the rounds up to its last checkpoint: later ones are
        lost, and computed again when it is resumed.

        Args:
            with_lost: Whether to add the lost rounds that are still on disk.

        Yields:
            The rounds; a last line that is not complete is ignored.

        Raises:
            UsageError: If a line was damaged or edited.
        """
        if not self.rounds.exists():
            return
        with_tail = with_lost or io.is_locked(self.path)
        left = sys.maxsize if with_tail else self.covered_bytes(self.rounds.name)
        with self.verify(self.rounds.name).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                left -= len(line)
                if left < 0 or not line.endswith(b"\n"):
                    return
                yield self.parse_line(line, number)

    def records(self, limit: int | None = None) -> list[RoundRecord]:
        """Return the first rounds on disk; all of them without a limit."""
        return list(islice(self.stream(), limit))

    def count_rounds(self) -> int:
        """Return the number of rounds on disk, also lost ones, before the first damaged one."""
        count = 0
        try:
            for record in self.stream(with_lost=True):
                count = record.round
        except UsageError:  # a resumed run computes these rounds again
            pass
        return count

    def follow(self) -> LogFollower:
        """Return a reader of a log that still grows."""
        return LogFollower(self)

    def parse_line(self, line: bytes, number: int) -> RoundRecord:
        """Check and decode one line of the log.

        Args:
            line: The line, with its end.
            number: Number of the line, from 1, which is that of its round.

        Returns:
            The round.

        Raises:
            UsageError: If the line was damaged or edited.
        """
        text = unseal_line(line)
        if text is None:
            raise UsageError(f"'{self.rounds}' is damaged or was edited in line {number}")
        record = codec.loads(RoundRecord, text, self.rounds)
        if record.round != number:
            raise UsageError(f"'{self.rounds}' was edited: line {number} is round {record.round}")
        return record

    # ------------------------------------------------------------------ writing

    def write_summary(self, summary: Summary) -> None:
        """Write the summary, which marks the run as finished."""
        self.summary.write(summary_text(summary))


def log_line(record: RoundRecord) -> bytes:
    """Return one line of the log, with its checksum and its end."""
    return seal_line(codec.dumps(record))


def summary_text(summary: Summary) -> str:
    """Return the content of ``summary.json``."""
    return codec.dumps(summary, indent=1)


def read_options_file(path: Path) -> dict[str, Any]:
    """Read the file of ``--config``: TOML, or the config of a run, which is then checked."""
    folder = RunFolder(path.parent)
    if path.name == CONFIG and (folder.path / MANIFEST_FILE).is_file():
        return folder.read_config()
    return parse_config(path)


class RoundLog:
    """Writer of ``rounds.jsonl``. The manifest covers the log up to the last checkpoint."""

    def __init__(self, folder: RunFolder, records: Sequence[RoundRecord]) -> None:
        """Rewrite the log of a run with these rounds."""
        self._folder = folder
        self.rewrite(records)

    def rewrite(self, records: Sequence[RoundRecord]) -> None:
        """Replace the whole log."""
        content = b"".join(map(log_line, records))
        self._digest = hashlib.sha256(content)
        self._size = len(content)
        self._folder.rounds.write(content)

    def append(self, record: RoundRecord) -> None:
        """Append one round, unsynced."""
        line = log_line(record)
        io.append(self._folder.path / self._folder.rounds.name, line.decode())
        self._digest.update(line)
        self._size += len(line)

    def sync(self) -> dict[str, FileState]:
        """Sync the log and return its state, for the manifest."""
        io.sync(self._folder.path / self._folder.rounds.name)
        return {self._folder.rounds.name: FileState(self._size, self._digest.hexdigest())}


class LogFollower:
    """Reader of the rounds of a run that may still go on."""

    def __init__(self, folder: RunFolder) -> None:
        """Follow the rounds of a run folder."""
        self._folder = folder
        self._offset = 0
        self.records: list[RoundRecord] = []
        """Rounds so far."""

    def poll(self) -> None:
        """Read the complete lines that are new. A file that shrank was rewritten by a resume."""
        folder = self._folder
        if not folder.rounds.exists():
            return
        path = folder.verify(folder.rounds.name)
        size = path.stat().st_size
        if not io.is_locked(folder.path):  # rounds after the last checkpoint of a killed run
            size = folder.covered_bytes(folder.rounds.name)
        if size < self._offset:
            self.records = []
            self._offset = 0
        if size == self._offset:
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            text = file.read(size - self._offset)
        end = text.rfind(b"\n") + 1
        self._offset += end
        for line in text[:end].splitlines(keepends=True):
            self.records.append(folder.parse_line(line, len(self.records) + 1))


@dataclass(frozen=True)
class ComparisonFolder(CheckedFolder):
    """Folder of a comparison: the folders of its runs, and ``compare.json``."""

    comparison = NamedFile("compare.json")
    """Command and summaries."""

    def has_begun(self) -> bool:
        """Return whether a comparison has begun here; its manifest may be missing."""
        if (self.path / self.comparison.name).is_file():
            return True
        return bool(self.states(self.comparison.name))

    def clear(self) -> None:
        """Forget an earlier comparison; the folders of its runs stay until they are replaced."""
        self.restart([], [self.comparison.name])

    def read(self) -> Compared:
        """Read command and summaries; raise ``UsageError`` if the file is damaged."""
        return codec.loads(Compared, self.comparison.read_text(), self.comparison)

    def write_comparison(self, compared: Compared) -> None:
        """Write command and summaries."""
        self.comparison.write(codec.dumps(compared, indent=1))
