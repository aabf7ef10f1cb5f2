"""Live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from equipoise.records.rounds import RoundRecord
from equipoise.report.terminal.words import written

LINES = 20  # plain lines of a run
SHOWN = ("global", "personal")  # the two scores of the line


@contextlib.contextmanager
def steps(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows how many steps of how many are done, as it is told; a bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    shown = not quiet and console.is_terminal
    with Progress(*_bar(), console=console, disable=not shown) as bar:
        task = bar.add_task(title, total=None, scores="")

        def told(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)
            if not quiet and not shown:
                console.print(
                    f"{title}: {done} of {of}", highlight=False, markup=False, soft_wrap=True
                )

        yield told


def _bar() -> Sequence[ProgressColumn]:
    """What a line of progress shows."""
    scores = TextColumn("{task.fields[scores]}")
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        scores,
        TimeRemainingColumn(),
    )


class Display:
    """Shows a run's rounds as they end; silent if ``quiet``."""

    def __init__(self, title: str, rounds: int, quiet: bool, done: int = 0) -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self.console = Console(stderr=True)
        self._started, self._first, self._scores = time.perf_counter(), done, ""
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._bar = Progress(*_bar(), console=self.console)
            self._bar.start()
            self._id = self._bar.add_task(
                self.title, total=self.rounds, completed=self._first, scores=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        if self.quiet:
            return
        t = record.round
        if record.evaluated:
            self._scores = self._line(record)
        if record.dropped:
            reason = next(iter(record.rejected.values()), "not finite")
            self._say(f"round {t}: left out clients {record.dropped} ({reason})")
        if self._bar:
            self._bar.update(self._id, completed=t, scores=self._scores)
        elif t == self.rounds or record.stop or t % max(1, self.rounds // LINES) == 0:
            left = (
                (time.perf_counter() - self._started) / max(1, t - self._first) * (self.rounds - t)
            )
            self._say(f"{self.title}  round {t}/{self.rounds}  {self._scores}  {left:.0f} s left")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @staticmethod
    def _line(record: RoundRecord) -> str:
        headline = record.trained.headline or "acc"
        return "  ".join(
            f"{name} {written(headline, record.named(name).get(headline))}" for name in SHOWN
        )
