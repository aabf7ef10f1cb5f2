"""Errors of usage, with messages for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

PYTHON_OBJECT = "python"
"""Prefix, in a run's config, of methods and tasks that exist only in the user's Python code."""
RESUME_HINT = "run.resume() in the process that made it, or equipoise.open(folder).resume({}=...)"
"""How to continue a run with such an object."""


class UsageError(Exception):
    """Bad input: one sentence with what is wrong, where, and what to do. Exit code 2."""


class DamagedFile(UsageError):
    """A file is missing, damaged or edited. Nobody may go on as if it were not there."""


def require(condition: bool, message: str) -> None:
    """Raise a `UsageError` with this message unless the condition holds.

    Args:
        condition: What must hold.
        message: The error: what is wrong, where, what to do.

    Raises:
        UsageError: If the condition does not hold.
    """
    if not condition:
        raise UsageError(message)


def refuse_all(problems: Iterable[tuple[bool, str]]) -> None:
    """Raise one `UsageError` with all problems that are there.

    Args:
        problems: Whether each problem is there, and its message.

    Raises:
        UsageError: If any problem is there.
    """
    messages = [message for is_there, message in problems if is_there]
    if messages:
        raise UsageError("; ".join(messages))


def install_hint(extra: str) -> str:
    """Say how to install an optional extra, from a wheel or in a clone of the repository."""
    return f"pip install 'equipoise[{extra}]' (in a clone: pip install -e '.[{extra}]')"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Suggest similar names for an error message.

    Args:
        name: The unknown name.
        candidates: All valid names.

    Returns:
        ` (did you mean 'a' or 'b'?)`, or an empty string if no name is close.
    """
    close = difflib.get_close_matches(name, list(candidates), 3, 0.5)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""
