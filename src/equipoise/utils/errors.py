"""Errors that are meant for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

PYTHON_OBJECT = "python"
"""In a run's config, before the name of a method or task that only the Python code of its author can give again."""
RESUME_HINT = "run.resume() in the process that made it, or equipoise.open(folder).resume({}=...)"
"""How to go on with such a run."""


class UsageError(Exception):
    """Bad input or usage: one sentence that says what is wrong, where, and what to do. Exit code 2."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error: the closest known names, if any are close."""
    close = difflib.get_close_matches(name, list(known), 3, 0.5)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""
