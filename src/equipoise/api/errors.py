"""Errors of Python calls speak Python: `target_type='regression'`, not `--target-type regression`.

The rules below the API are shared with the command line, and their messages name its options. They
are translated here, at the one place where Python calls enter.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from equipoise.utils.errors import UsageError

T = TypeVar("T")
SWITCHES = frozenset({"overwrite", "resume", "secure", "ensemble", "quiet", "local-baseline"})
"""Options of the command line without a value."""
# Words after an option that belong to the sentence; any other word is the option's value.
SENTENCE_WORDS = (
    "a|above|alone|an|and|are|as|below|beside|both|does|exclude|follows|for|forbids|from|has|in|is|"
    "it|keeps|limits|may|must|named|names|needs|of|on|or|out|says|so|such|takes|than|that|the|to|"
    "together|with|your"
)
_FLAG = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z][a-z.-]*[a-z])"
    r"(?:(?:=| )(?P<value>\"[^\"]*\"|'[^']*'|"
    rf"(?!(?:{SENTENCE_WORDS})(?:[\s);]|$))[\w.*<>-][\w.,:*-]*))?"
)
_COMMAND = re.compile(r"'equipoise (?P<command>[a-z]+)(?: (?P<rest>[^']*))?'")
COMMANDS = {
    "resume": "equipoise.open({folder!r}).resume()",
    "choose": "comparison.choose()",
    "run": "equipoise.run(...)",
    "compare": "equipoise.compare(...)",
    "predict": "run.predict(...)",
    "evaluate": "run.evaluate(...)",
    "adapt": "run.adapt(...)",
    "report": "run.report()",
    "certify": "run.certify()",
    "export": "run.export(...)",
}
"""How Python code does what a command does."""


def in_python_words(message: str) -> str:
    """Translate the options and commands in a message to arguments and calls.

    Args:
        message: A message that may name options of the command line.

    Returns:
        The message for somebody who called a function.
    """
    return _FLAG.sub(_argument, _COMMAND.sub(_call, message))


def _call(match: re.Match[str]) -> str:
    """Write a command of the command line as a call."""
    call = COMMANDS.get(match["command"])
    folder = (match["rest"] or "FOLDER").split(" ")[0]
    return call.format(folder=folder) if call else match[0]


def _argument(match: re.Match[str]) -> str:
    """Write an option of the command line as an argument."""
    name = match["name"].replace("-", "_")
    value = match["value"]
    rest = f" {value}" if value else ""
    if match["no"]:
        return f"{name}=False{rest}"
    if match["name"] in SWITCHES:
        return f"{name}=True{rest}"
    if not value:
        return name
    bare = value.rstrip(".,:")
    end = value[len(bare) :]
    text = bare.strip("'\"")
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None
    return f"{name}={text if is_number else repr(text)}{end}"


def speaks_python(item: T) -> T:
    """Translate the errors of a function, or of the public methods of a class.

    Args:
        item: The function or class.

    Returns:
        The function or class, whose `UsageError`s name arguments and calls.
    """
    if not isinstance(item, type):
        return _translating(item)  # type: ignore[return-value, arg-type]
    for name, member in list(vars(item).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(item, name, classmethod(_translating(member.__func__)))
        elif inspect.isfunction(member):
            setattr(item, name, _translating(member))
    return item


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with translated errors."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UsageError as error:
            error.args = (in_python_words(str(error)),)
            raise

    return call
