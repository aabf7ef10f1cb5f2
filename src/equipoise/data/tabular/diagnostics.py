"""Problems that stop a run, and notes on how a column or client is treated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.utils.errors import UsageError

MAX_LISTED = 5  # rows or columns that a message names


@dataclass(frozen=True)
class Diagnostic:
    """One problem or note.

    Attributes:
        message: One sentence.
        is_problem: Whether it stops a run.
        client: The client that it concerns, if it concerns one.
        column: The column that it concerns, if it concerns one.
        option: The option that would solve the problem or that a note advises, such as
            `--small-clients pool`.
    """

    message: str
    is_problem: bool = False
    client: str = ""
    column: str = ""
    option: str = ""

    def __str__(self) -> str:
        """Return the place and the message."""
        column = f"column '{self.column}'" if self.column else ""
        client = f"client '{self.client}'" if self.client else ""
        place = " of ".join(filter(None, (column, client)))
        return f"{place}: {self.message}" if place else self.message


def raise_problems(diagnostics: Sequence[Diagnostic], source: str) -> None:
    """Raise one error that lists all problems, if there are any.

    Args:
        diagnostics: Problems and notes; notes are ignored.
        source: The file or folder that they concern.

    Raises:
        UsageError: If there is at least one problem.
    """
    problems = [str(diagnostic) for diagnostic in diagnostics if diagnostic.is_problem]
    if len(problems) == 1:
        raise UsageError(f"{source}: {problems[0]}")
    if problems:
        lines = (f"\n  {number}. {problem}" for number, problem in enumerate(problems, start=1))
        raise UsageError(f"{source} has {len(problems)} problems:{''.join(lines)}")


def list_rows(row_numbers: Sequence[int]) -> str:
    """Name rows in a message: `rows 2, 3, 4, 5, 6 and 15 more`."""
    plural = "s" if len(row_numbers) > 1 else ""
    return f"row{plural} {_shorten([str(number) for number in row_numbers])}"


def list_names(names: Sequence[str]) -> str:
    """Name columns in a message, in quotation marks."""
    return _shorten([repr(name) for name in names])


def texts_alike(texts: Sequence[str]) -> list[list[str]]:
    """Return groups of texts that are equal but for case and white space."""
    by_form: dict[str, list[str]] = {}
    for text in texts:
        by_form.setdefault("".join(text.lower().split()), []).append(text)
    return [group for group in by_form.values() if len(group) > 1]


def list_groups(groups: Sequence[Sequence[str]]) -> str:
    """Name groups of texts in a message: `'Male' and 'male'; 'F' and 'f'`."""
    return "; ".join(" and ".join(map(repr, group)) for group in groups)


def _shorten(items: list[str]) -> str:
    """Join items by commas; only the first few are named."""
    more = len(items) - MAX_LISTED
    return ", ".join(items[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
