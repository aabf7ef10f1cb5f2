"""The command line, ``equipoise COMMAND``: a command's code, and PyTorch with it, is loaded when it is called."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence

from equipoise import __version__
from equipoise.utils.errors import UsageError, nearest

COMMANDS = {
    "run": "Train with one method; the result is a folder with scores, models and a report.",
    "compare": "Train with several methods over several seeds; the result is one table.",
    "tune": "Search for good options of methods on validation data.",
    "resume": "Continue a run or a comparison that was stopped.",
    "watch": "Follow a run or a comparison from another terminal.",
    "report": "Write one HTML page about one run or several.",
    "export": "Write a model of a run as safetensors, ONNX or TorchScript.",
    "play": "Play an episode of an agent of a run, and film it.",
    "predict": "Predict for new rows of a table, by a model of a run.",
    "certify": "Measure what a client or the server would gain by choosing differently.",
    "data": "Describe the data of a task, client by client.",
    "list": "List the methods, the tasks or the models.",
    "flower": "Deploy on real machines with Flower.",
}
"""What each command does; its code is ``main`` in ``equipoise.cli.commands.NAME``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 when it is done, 1 if it failed or was interrupted, 2 for bad usage."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help", "--version"):
        print(f"equipoise {__version__}" if first == "--version" else _help())
        return 0
    try:
        if first not in COMMANDS:
            what = "argument" if first.startswith("-") else "command"
            raise UsageError(
                f"unknown {what} '{first}'{nearest(first, COMMANDS)}; see equipoise --help"
            )
        return int(importlib.import_module(f"equipoise.cli.commands.{first}").main(arguments[1:]))
    except UsageError as error:
        return _told(str(error), 2)
    except KeyboardInterrupt:
        return _told("interrupted", 1)
    except BrokenPipeError:  # whoever read our output has gone
        return 1
    except (
        OSError,
        UnicodeError,
    ) as error:  # of the disk or its content: what was saved before is as it was
        return _told(
            f"{' '.join(str(error).split())} ({type(error).__name__}); nothing that was saved is lost",
            1,
        )


def _told(line: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"equipoise: {line}", file=sys.stderr)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: equipoise COMMAND [options]",
            "",
            "Federated learning among clients that differ.",
            "",
            *(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()),
            "",
            "Each command has its own --help. A first try: equipoise run --out runs/first",
            "Which method to use: equipoise list methods, and docs/which-method.md",
        ]
    )
