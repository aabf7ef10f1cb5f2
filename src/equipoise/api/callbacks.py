"""Callbacks of a run: what happens at its start, after each round and at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from equipoise.records.rounds import RoundRecord
from equipoise.records.scores import NAMED
from equipoise.report.terminal import ProgressDisplay
from equipoise.utils.errors import UsageError
from equipoise.utils.metrics import higher_is_better

if TYPE_CHECKING:
    from equipoise.api.results import Run


class Callback:
    """Base class of callbacks; the defaults do nothing."""

    def on_start(self, run: Run, rounds: int) -> None:
        """Do something before the first round.

        Args:
            run: The run, whose folder may not exist yet.
            rounds: Planned number of rounds.
        """

    def on_round(self, record: RoundRecord) -> str | None:
        """Do something after a round.

        Args:
            record: The round.

        Returns:
            A reason to stop the run, or None.
        """
        return None

    def on_end(self, run: Run) -> None:
        """Do something after the last round, also if the run failed or was interrupted."""


class EarlyStopping(Callback):
    """Stop when a score has not become better for some evaluations."""

    def __init__(self, score: str = "personal.acc", patience: int = 10, min_delta: float = 0.0):
        """Choose the score.

        Args:
            score: Evaluation and metric, such as ``personal.auc``. Validation rows are used where
                there are some.
            patience: Evaluations without a better score after which the run stops.
            min_delta: How much better counts as better.

        Raises:
            UsageError: If the score or the patience cannot be used.
        """
        evaluation, _, metric = score.partition(".")
        if evaluation not in NAMED or not metric:
            raise UsageError(
                f"score is '{score}': must be one of {', '.join(NAMED)}, a dot and a metric, "
                "such as personal.acc"
            )
        if patience < 1:
            raise UsageError(f"patience is {patience}: must be at least 1")
        self.score = score
        self.patience = patience
        self.min_delta = min_delta
        self._evaluation = evaluation
        self._metric = metric
        self._best: float | None = None
        self._waited = 0

    def on_start(self, run: Run, rounds: int) -> None:
        """Forget an earlier run."""
        self._best = None
        self._waited = 0

    def on_round(self, record: RoundRecord) -> str | None:
        """Compare the score with the best one."""
        evaluations = record.val or record.test
        if evaluations is None:
            return None
        value = evaluations.named(self._evaluation).get(self._metric)
        if value is None:
            return None
        sign = 1.0 if higher_is_better(self._metric) else -1.0
        if self._best is None or sign * (value - self._best) > self.min_delta:
            self._best = value
            self._waited = 0
            return None
        self._waited += 1
        if self._waited < self.patience:
            return None
        return f"{self.score} has not become better for {self.patience} evaluations"


class Progress(Callback):
    """Show a progress bar: on terminals a live one, elsewhere one line per round."""

    def __init__(self) -> None:
        """Create the callback; the bar appears when the run starts."""
        self._display: ProgressDisplay | None = None
        self._stack = ExitStack()

    def on_start(self, run: Run, rounds: int) -> None:
        """Show the bar."""
        display = ProgressDisplay(run.folder.name, rounds, quiet=False)
        self._display = self._stack.enter_context(display)

    def on_round(self, record: RoundRecord) -> str | None:
        """Move the bar."""
        if self._display is not None:
            self._display(record)
        return None

    def on_end(self, run: Run) -> None:
        """Close the bar."""
        self._stack.close()


def combine(
    callbacks: Sequence[Callback], on_round: Callable[[RoundRecord], str | None] | None
) -> Callable[[RoundRecord], str | None]:
    """Return one function that calls all callbacks after a round.

    Args:
        callbacks: The callbacks.
        on_round: One more function.

    Returns:
        A function that returns the first reason to stop. All callbacks see every round.
    """

    def call_all(record: RoundRecord) -> str | None:
        reasons = [callback.on_round(record) for callback in callbacks]
        if on_round is not None:
            reasons.append(on_round(record))
        return next((reason for reason in reasons if reason), None)

    return call_all
