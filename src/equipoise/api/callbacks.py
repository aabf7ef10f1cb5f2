"""Callbacks of a run: what happens at its start, after rounds and checkpoints, and at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from equipoise.experiment.decision import conclude
from equipoise.experiment.runner import Interrupted, OnCheckpoint, OnRoundEnd
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.records.scores import NAMED
from equipoise.report.terminal import ProgressDisplay
from equipoise.report.trackers import RunTrackers, parse_tracker_names
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

    def on_checkpoint(self, run: Run, round: int) -> None:
        """Do something after a checkpoint was written, from which the run can be resumed.

        Args:
            run: The run.
            round: Last round of the checkpoint. :meth:`on_round` of this round comes later.
        """

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
        value = evaluations.evaluation(self._evaluation).get(self._metric)
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


class Trackers(Callback):
    """Send every round to experiment trackers, as the argument ``log`` of a run does."""

    def __init__(self, names: str) -> None:
        """Choose the trackers.

        Args:
            names: Names with commas between: ``"tensorboard,mlflow"``; docs/how-to/trackers.md has
                all.

        Raises:
            UsageError: If a tracker is unknown or not installed.
        """
        parse_tracker_names(names)
        self.names = names
        self._trackers: RunTrackers | None = None
        self._stack = ExitStack()

    def on_start(self, run: Run, rounds: int) -> None:
        """Prepare the trackers; they open with the first round."""
        rounds_done = RunFolder(run.folder).count_rounds()
        self._trackers = self._stack.enter_context(RunTrackers(self.names, run.folder, rounds_done))

    def on_round(self, record: RoundRecord) -> str | None:
        """Send the round."""
        if self._trackers is not None:
            self._trackers(record)
        return None

    def on_end(self, run: Run) -> None:
        """Send the summary of a finished run, and close the trackers."""
        self._stack.close()


class TrainFn(Protocol):
    """A function that runs to the end."""

    def __call__(self, *, on_round_end: OnRoundEnd, on_checkpoint: OnCheckpoint) -> object:
        """Run to the end; call the arguments after every round and every checkpoint."""


def run_with_callbacks(
    run: Run,
    rounds: int,
    callbacks: Sequence[Callback],
    on_round: OnRoundEnd | None,
    train: TrainFn,
) -> None:
    """Run to the end with callbacks, then write the decision and the report.

    Args:
        run: The run.
        rounds: Planned number of rounds.
        callbacks: The callbacks; all see every round, and the first reason to stop counts.
        on_round: One more function that is called after every round.
        train: Runs to the end.

    Raises:
        KeyboardInterrupt: If the user asked to stop.
    """

    def on_round_end(record: RoundRecord) -> str | None:
        reasons = [callback.on_round(record) for callback in callbacks]
        if on_round is not None:
            reasons.append(on_round(record))
        return next((reason for reason in reasons if reason), None)

    def on_checkpoint(round: int) -> None:
        for callback in callbacks:
            callback.on_checkpoint(run, round)

    for callback in callbacks:
        callback.on_start(run, rounds)
    try:
        train(on_round_end=on_round_end, on_checkpoint=on_checkpoint)
    except Interrupted:
        how = f"equipoise.open({str(run.folder)!r}).resume()"
        raise KeyboardInterrupt(f"stopped after a whole round; go on with {how}") from None
    finally:
        for callback in callbacks:
            callback.on_end(run)
    conclude(run.folder)
