"""Argument parser and arguments that several commands share. Nothing here imports PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from equipoise.config.schema import constraint_of, describe_default, option_types
from equipoise.settings.resources import ResourceConfig
from equipoise.utils.config_file import parse_assignment
from equipoise.utils.errors import UsageError, did_you_mean

Values: TypeAlias = dict[str, Any]
"""Values by name; each has the type of its option."""


class Parser(argparse.ArgumentParser):
    """Parser without abbreviations, whose errors are one line with the nearest options."""

    def __init__(self, command: str = "", about: str = "", add_help: bool = True) -> None:
        """Create the parser of a command.

        Args:
            command: Name of the command, for the usage line.
            about: Description for ``--help``.
            add_help: Whether there is an option ``--help``.
        """
        super().__init__(
            f"equipoise {command}", description=about, allow_abbrev=False, add_help=add_help
        )

    def error(self, message: str) -> NoReturn:
        """Raise a ``UsageError``, which the entry point prints.

        Raises:
            UsageError: Always, with the message.
        """
        raise UsageError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Args:
            arguments: Arguments of the command.

        Returns:
            Values by name.

        Raises:
            UsageError: If an argument is unknown; the message has the nearest names.
        """
        result, rest = self.parse_known_args(arguments)
        if rest:
            known = [text for action in self._actions for text in action.option_strings]
            close = did_you_mean(rest[0].partition("=")[0], known)
            raise UsageError(f"unknown argument '{rest[0]}'{close}; see --help")
        return result


def run_subcommand(
    command: str,
    about: str,
    subcommands: Mapping[str, Callable[[list[str]], int]],
    arguments: list[str],
) -> int:
    """Run a command that consists of subcommands, such as ``equipoise data describe``.

    Args:
        command: Name of the command.
        about: Description for ``--help``.
        subcommands: Function of each subcommand.
        arguments: Subcommand and its options.

    Returns:
        The exit code.

    Raises:
        UsageError: If the subcommand is unknown.
    """
    parser = Parser(command, about)
    parser.add_argument(
        "command", choices=list(subcommands), help="what to do; each has its own --help"
    )
    if arguments and not arguments[0].startswith("-") and arguments[0] not in subcommands:
        close = did_you_mean(arguments[0], subcommands)
        raise UsageError(f"unknown command '{command} {arguments[0]}'{close}")
    return subcommands[parser.parse(arguments[:1]).command](arguments[1:])


def add_output(parser: Parser, default: str) -> None:
    """Add the arguments of a command that writes a result folder.

    Args:
        parser: Parser of the command.
        default: Default folder.
    """
    parser.add_argument("--out", default=default, help=f"folder of the result (default: {default})")
    add_config(parser)
    parser.add_argument("--resume", action="store_true", help="continue with what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    add_log(parser)
    add_quiet(parser)


def add_config(parser: Parser) -> None:
    """Add ``--config`` and ``--set``."""
    parser.add_argument(
        "--config", help="YAML, TOML or JSON file with options, or the config.json of a run"
    )
    parser.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="set one option by its full name, such as method.mu=0.1; may be repeated",
    )


def expand_assignments(arguments: Sequence[str]) -> list[str]:
    """Replace ``--set NAME=VALUE`` by the flag of the option.

    Args:
        arguments: Arguments of a command.

    Returns:
        Arguments in which ``--set method.mu=0.1`` is ``--method.mu=0.1``.

    Raises:
        UsageError: If an assignment is not of this form.
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for text in rest:
        if text != "--set" and not text.startswith("--set="):
            expanded.append(text)
            continue
        name, value = parse_assignment(next(rest, "") if text == "--set" else text[len("--set=") :])
        flag = name.replace("_", "-")
        switches = {"true": f"--{flag}", "false": f"--no-{flag}"}
        expanded.append(switches.get(value.lower(), f"--{flag}={value}"))
    return expanded


def add_log(parser: Parser) -> None:
    """Add ``--log``."""
    parser.add_argument(
        "--log",
        default="",
        help="trackers that receive every round: tensorboard, mlflow, wandb, trackio",
    )


def add_quiet(parser: Parser) -> None:
    """Add ``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def add_resources(parser: Parser) -> None:
    """Add one argument for each resource limit."""
    for item in fields(ResourceConfig):
        constraint = constraint_of(item)
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=option_types(ResourceConfig)[item.name].type,
            default=item.default,
            help=f"{constraint.help} {describe_default(item.default, constraint)}",
        )


def resources_from(values: Values) -> ResourceConfig:
    """Return the resource limits among parsed values."""
    return ResourceConfig(**{item.name: values[item.name] for item in fields(ResourceConfig)})


def output_file(name: str) -> Path:
    """Check the path of a file that will be written.

    Args:
        name: Path as given by the user.

    Returns:
        The path.

    Raises:
        UsageError: If it is a folder, or its folder does not exist.
    """
    file = Path(name)
    if file.is_dir():
        raise UsageError(f"'{name}' is a folder: --out must name a file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder '{file.parent}': --out must name a file in one")
    return file
