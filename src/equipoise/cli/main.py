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
from equipoise.cli.parser import expand_assignments
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.interrupt import command_process, exit_if_interrupted
from equipoise.utils.plugins import own_code_place


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
    "choose": Command(
        "models",
        "choose",
        "Say which model each site should use, and train it on all rows.",
    ),
    "adapt": Command("models", "adapt", "Give a site that joins after the run a personal model."),
    "evaluate": Command(
        "models", "evaluate", "Score models on new rows, beside a constant and the site's own."
    ),
    "explain": Command("models", "explain", "Say which inputs matter, overall and at each site."),
    "predict": Command("models", "predict", "Predict new rows of a table, site by site."),
    "export": Command(
        "models", "export", "Write a model as safetensors, ONNX, TorchScript or LightGBM."
    ),
    "play": Command("tools", "play", "Play an episode of an agent of a run, and film it."),
    "certify": Command(
        "tools", "certify", "Measure what a client or the server would gain by deviating alone."
    ),
    "train-policy": Command(
        "train_policy",
        "train_policy",
        "Train the policy of fedpolicy across many small federations.",
    ),
    "data": Command("data", "data", "Describe the data of a task, client by client."),
    "config": Command("config", "config", "Show the options of a run."),
    "schema": Command("config", "schema", "Print the JSON schema of config files."),
    "list": Command("tools", "list_names", "List the methods, the tasks or the models."),
    "studio": Command("studio", "studio", "Compare, decide and predict in your browser."),
    "privacy": Command("privacy", "privacy", "Plan noise and epsilon of a private run."),
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

    Raises:
        Exception: If there is a defect in Equipoise.
    """
    if arguments is None:  # this process is the command; otherwise it is a program that calls it
        with command_process():
            code = main(sys.argv[1:])
        exit_if_interrupted(code)
        return code
    arguments = list(arguments)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"equipoise {__version__}")
        return 0
    if any("\0" in argument for argument in arguments):
        return _fail("an argument has a NUL character: no path or value can contain one", 2)
    try:
        return _run_command(name, arguments[1:])
    except UsageError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)
    except BrokenPipeError:  # the reader of our output has closed it
        return 1
    except (OSError, UnicodeError) as error:  # the disk or its content; saved files are intact
        return _fail(
            f"{_one_line(error)} ({type(error).__name__}); nothing that was saved is lost", 1
        )
    except Exception as error:
        return _fail(*_explain(error))


def _run_command(name: str, arguments: list[str]) -> int:
    """Import the module of a command and call its function."""
    if name not in COMMANDS:
        noun = "argument" if name.startswith("-") else "command"
        raise UsageError(
            f"unknown {noun} '{name}'{did_you_mean(name, COMMANDS)}; see equipoise --help"
        )
    command = COMMANDS[name]
    arguments = expand_assignments(arguments)
    module = importlib.import_module(f"equipoise.cli.{command.module}")
    return int(getattr(module, command.function)(arguments))


def _one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())


def _explain(error: Exception) -> tuple[str, int]:
    """Explain an error that no command foresaw: of the user's own code, or of numbers.

    Args:
        error: The error.

    Returns:
        One line, and the exit code.

    Raises:
        Exception: The error itself, if it is a defect of Equipoise; its traceback is of use.
    """
    description = f"{type(error).__name__}: {_one_line(error)}"
    if place := own_code_place(error):
        return f"{place}: {description} (in your own code, not in Equipoise)", 1
    if isinstance(error, MemoryError) or "can't allocate memory" in description:  # NumPy, PyTorch
        advice = "lower the number of clients, samples, epochs or processes"
        return f"not enough memory ({description}): {advice}, or --client-memory-gib", 2
    if isinstance(error, ArithmeticError | RecursionError):
        return f"a number or nesting is out of range for this computation ({description})", 2
    raise error


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
