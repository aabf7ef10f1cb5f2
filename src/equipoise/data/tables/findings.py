"""What is found in tables: problems that stop a run, and notes on what is done with a column or a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Finding:
    """One sentence; ``client`` and ``column`` say where, as far as it has a place."""

    words: str
    problem: bool = False
    client: str = ""
    column: str = ""
    option: str = ""
    """What would help on the command line, such as ``--small pool``."""

    def __str__(self) -> str:
        column = f"column '{self.column}'" if self.column else ""
        client = f"client '{self.client}'" if self.client else ""
        where = " of ".join(filter(None, (column, client)))
        return f"{where}: {self.words}" if where else self.words


def refuse(findings: Sequence[Finding], source: str) -> None:
    """All problems at once."""
    problems = [str(finding) for finding in findings if finding.problem]
    if len(problems) == 1:
        raise UsageError(f"{source}: {problems[0]}")
    if problems:
        listed = "".join(
            f"\n  {number}. {problem}" for number, problem in enumerate(problems, start=1)
        )
        raise UsageError(f"{source} has {len(problems)} problems:{listed}")
