"""Egress rules of a node: what may leave a client, set by its owner in ``node.toml``.

    [egress]
    metrics = ["auc", "loss"]   # scores that may leave; all without this line
    statistics = false          # sums and counts of columns before round 1
    samples = false             # the number of training rows: 1 is sent instead
    decisions = false           # epochs and learning rate that the client chose
    min_count = 20              # rows below which neither scores nor statistics leave
    rounds_per_day = 100
    runs_per_day = 2

Scores that may not leave are withheld: the server gets NaN, and their names. A message whose answer
would break another rule is refused as a whole. The node's log has the reason, and the server's
operator gets it in one sentence. Uploads of models are the run's purpose: they are
limited by the number of rounds and runs, and by the privacy budget.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import torch

from equipoise.core import ClientResult, Scores
from equipoise.flower.codec import InvalidMessage
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.sealed_json import read_sealed, write_sealed


class EgressRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may leave a client. Without rules everything may that a run asks for."""

    metrics: tuple[str, ...] | None = None
    """Names of scores that may leave; None for all."""
    statistics: bool = True
    """Whether sums and counts of columns may leave before round 1."""
    samples: bool = True
    """Whether the number of training rows may leave."""
    decisions: bool = True
    """Whether epochs, learning rate, steps and what the method logs may leave."""
    min_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of rows below which neither scores nor statistics leave."""
    rounds_per_day: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Rounds that are answered per day (UTC), over all runs; None for no limit."""
    runs_per_day: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Runs in which this client takes part per day (UTC); None for no limit."""

    @staticmethod
    def load(file: Path) -> EgressRules:
        """Read the table ``[egress]`` of a TOML file.

        Args:
            file: The file.

        Returns:
            The rules.

        Raises:
            UsageError: If the file is missing, or has another table or an unknown rule.
        """
        try:
            tables = tomllib.loads(io.read_text(file))
            if tables.keys() != {"egress"}:
                raise UsageError(f"'{file}' must have one table, [egress]")
            return msgspec.convert(tables["egress"], EgressRules)
        except OSError as error:
            raise UsageError(f"the node's rules '{file}' cannot be read: {error}") from error
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
            raise UsageError(f"the node's rules '{file}' are wrong: {error}") from error

    def check_statistics(self, num_rows: int) -> None:
        """Check that statistics of columns may leave.

        Args:
            num_rows: Number of training rows.

        Raises:
            InvalidMessage: If they may not.
        """
        if not self.statistics:
            raise InvalidMessage("its owner's rules keep statistics of columns (statistics)")
        self._check_count(num_rows, "training")

    def may_leave(self, metric: str, num_rows: int) -> bool:
        """Return whether a score may leave.

        Args:
            metric: Name of the metric.
            num_rows: Number of rows on which it was measured.
        """
        is_allowed = self.metrics is None or metric in self.metrics
        return is_allowed and num_rows >= self.min_count

    def withhold_scores(
        self, scores: Scores, num_rows: Mapping[str, int]
    ) -> tuple[Scores, list[str]]:
        """Replace scores that may not leave by NaN.

        Args:
            scores: Scores by split, evaluation and metric.
            num_rows: Number of rows by split.

        Returns:
            The scores, and the names of those that are withheld.
        """
        withheld: set[str] = set()
        passed: Scores = {}
        for split, evaluations in scores.items():
            passed[split] = {}
            for name, metrics in evaluations.items():
                refused = {key for key in metrics if not self.may_leave(key, num_rows[split])}
                passed[split][name] = {
                    key: torch.full_like(value, math.nan) if key in refused else value
                    for key, value in metrics.items()
                }
                withheld |= {f"{split}/{key}" for key in refused}
        return passed, sorted(withheld)

    def check_decisions(self, result: ClientResult) -> None:
        """Check that what a client decided and logged may leave.

        Args:
            result: The client's result.

        Raises:
            InvalidMessage: If it may not.
        """
        if not self.decisions and (result.hparams is not None or result.logged):
            raise InvalidMessage(
                "its owner's rules keep epochs, learning rate and logged values (decisions)"
            )

    def _check_count(self, num_rows: int, split: str) -> None:
        if num_rows < self.min_count:
            raise InvalidMessage(
                f"its owner's rules keep what fewer than {self.min_count} {split} rows would tell "
                "(min_count)"
            )


NO_RULES = EgressRules()


class EgressCounter:
    """How many rounds and runs a client has answered today, over all runs, in one file."""

    def __init__(self, file: Path, rules: EgressRules) -> None:
        """Open the counter; the file is created with the first round.

        Args:
            file: The file.
            rules: Limits per day.
        """
        self.file = file
        self.rules = rules

    def count_round(self, run: str) -> None:
        """Count one round before it is answered.

        Args:
            run: Id of the run.

        Raises:
            InvalidMessage: If a limit of the day is reached.
        """
        rules = self.rules
        if rules.rounds_per_day is None and rules.runs_per_day is None:
            return
        rounds, runs = self._read_today()
        if rules.rounds_per_day is not None and rounds >= rules.rounds_per_day:
            raise InvalidMessage(
                f"its owner's rules allow {rules.rounds_per_day} rounds per day (rounds_per_day)"
            )
        if run not in runs:
            runs = [*runs, run]
        if rules.runs_per_day is not None and len(runs) > rules.runs_per_day:
            raise InvalidMessage(
                f"its owner's rules allow {rules.runs_per_day} runs per day (runs_per_day)"
            )
        table = {"day": _today(), "rounds": rounds + 1, "runs": runs}
        write_sealed(self.file, table)

    def _read_today(self) -> tuple[int, list[str]]:
        """Return the rounds and the runs of this day."""
        table = read_sealed(self.file, "today's rounds are not known")
        if table is None or table["day"] != _today():
            return 0, []
        return int(table["rounds"]), list(table["runs"])


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
