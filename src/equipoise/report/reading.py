"""Runs as the report reads them: rounds without their long lists, the summary, tables of clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.records.client_table import read_names, read_table
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import Folder
from equipoise.records.summary import Summary
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Run:
    """One run, finished or not. Per-client lists of the rounds stay on disk; :meth:`Folder.stream` reads them."""

    folder: Folder
    config: dict[str, Any]
    records: list[RoundRecord]
    summary: Summary | None
    clients: dict[str, list[float]]
    labels: dict[str, list[float]]
    """Training samples of each class, one row per client; empty where a task has no classes."""
    names: dict[int, str] = field(default_factory=dict)
    """What clients are called, by their numbers; empty where they have numbers only."""

    @cached_property
    def headline(self) -> str:
        return next((head for record in self.records if (head := record.trained.headline)), "acc")

    def called(self, client: float) -> str:
        """What people call a client."""
        return self.names.get(int(client), f"client {client:.0f}")

    @property
    def last(self) -> int:
        """The number of the last round so far."""
        return self.records[-1].round

    @property
    def most_clients(self) -> int:
        """One more than the highest number of a client that is known."""
        known = self.clients.get("client", [])
        return int(max(known)) + 1 if known else max(record.clients for record in self.records)

    @property
    def personal(self) -> list[float]:
        """Each client's score with its personal model, which is the trained one where the method makes no other."""
        return self.clients.get(f"personal_{self.headline}") or self.clients.get(
            f"trained_{self.headline}", []
        )

    def series(self, name: str, metric: str | None = None) -> dict[int, float]:
        """A named test score by round, where it was evaluated and exists."""
        found = (
            (record.round, record.named(name).get(metric or self.headline))
            for record in self.records
        )
        return {t: value for t, value in found if value is not None}

    def note(self, name: str) -> dict[int, float]:
        """A number that the method noted, by round."""
        noted = ((record.round, record.logged.get(name)) for record in self.records)
        return {t: float(value) for t, value in noted if isinstance(value, int | float)}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed: one line of a plot, one row of a table."""

    label: str
    runs: list[Run] = field(default_factory=list)

    @property
    def first(self) -> Run:
        return self.runs[0]

    @cached_property
    def summaries(self) -> list[Summary]:
        return [run.summary for run in self.runs if run.summary is not None]


def read(path: Path) -> Run:
    """One run folder; what is missing in an unfinished one stays empty."""
    folder = Folder(path)
    folder.demand()
    folder.check()
    summary = folder.read_summary() if folder.summary.is_file() else None
    records = [_slim(record) for record in folder.stream()]
    tables = read_table(folder.clients), read_table(folder.labels)
    return Run(
        folder, read_config(folder.config), records, summary, *tables, read_names(folder.clients)
    )


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a file that was cut or edited makes go wrong is said in a sentence."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise UsageError(f"a file in '{path}' is damaged or of another version ({what})") from error


def _slim(record: RoundRecord) -> RoundRecord:
    short = {name: value for name, value in record.logged.items() if not isinstance(value, list)}
    return replace(record, decisions=None, ids=None, logged=short)
