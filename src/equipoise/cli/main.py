"""Entry point of the command line, ``equipoise COMMAND``.

The module of a command, and PyTorch with it, is imported when the command is called, so that
``equipoise --help`` is quick.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from equipoise import __version__
from equipoise.utils.errors import UsageError, nearest


class Command(NamedTuple):
    """One command.

    Attributes:
        module: Module of ``equipoise.cli`` that holds the command.
        function: Function of that module: takes the arguments, returns the exit code.
        help: One line for ``equipoise --help``.
    """

    module: str
    function: str
    help: str


COMMANDS = {
    "run": Command(
        "run",
        "run",
        "Train with one method; the result is a folder with scores, models and a report.",
    ),
    "compare": Command(
        "compare",
        "compare",
        "Train with several methods over several seeds; the result is one table.",
    ),
    "tune": Command("tune", "tune", "Search for good options of methods on validation data."),
    "resume": Command("run", "resume", "Continue a run or a comparison that was stopped."),
    "watch": Command("tools", "watch", "Follow a run or a comparison from another terminal."),
    "report": Command("tools", "report", "Write one HTML page about one run or several."),
    "export": Command(
        "tools", "export", "Write a model of a run as safetensors, ONNX or TorchScript."
    ),
    "play": Command("tools", "play", "Play an episode of an agent of a run, and film it."),
    "predict": Command("tools", "predict", "Predict new rows of a table with a model of a run."),
    "certify": Command(
        "tools", "certify", "Measure what a client or the server would gain by deviating alone."
    ),
    "data": Command("data", "data", "Describe the data of a task, client by client."),
    "list": Command("tools", "list_names", "List the methods, the tasks or the models."),
    "studio": Command("studio", "studio", "Compare, decide and predict in your browser."),
    "flower": Command("flower", "flower", "Deploy on real machines with Flower."),
}
"""All commands by name, in the order of ``equipoise --help``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Command and options; those of the process if None.

    Returns:
        The exit code: 0 if the command succeeded, 1 if it failed or was interrupted, 2 for bad
        usage.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"equipoise {__version__}")
        return 0
    try:
        return _run_command(name, arguments[1:])
    except UsageError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except BrokenPipeError:  # the reader of our output has closed it
        return 1
    except (OSError, UnicodeError) as error:  # the disk or its content; saved files are intact
        text = " ".join(str(error).split())
        return _fail(f"{text} ({type(error).__name__}); nothing that was saved is lost", 1)


def _run_command(name: str, arguments: list[str]) -> int:
    """Import the module of a command and call its function."""
    if name not in COMMANDS:
        noun = "argument" if name.startswith("-") else "command"
        raise UsageError(f"unknown {noun} '{name}'{nearest(name, COMMANDS)}; see equipoise --help")
    command = COMMANDS[name]
    module = importlib.import_module(f"equipoise.cli.{command.module}")
    return int(getattr(module, command.function)(arguments))


def _fail(message: str, code: int) -> int:
    """Print a message to standard error and return the exit code."""
    with contextlib.suppress(OSError):
        print(f"equipoise: {message}", file=sys.stderr)
    return code


def _help() -> str:
    """Return the text of ``equipoise --help``."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: equipoise COMMAND [options]",
            "",
            "Federated learning among clients that differ.",
            "",
            *(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()),
            "",
            "Each command has its own --help. A first try: equipoise run --out runs/first",
            "Which method to use: equipoise list methods, and docs/which-method.md",
        ]
    )
