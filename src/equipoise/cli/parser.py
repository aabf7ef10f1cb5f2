"""What the commands' parsers share; nothing here needs PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from equipoise.config.schema import constraint_of, describe_default, option_types
from equipoise.settings.run_config import ResourceConfig
from equipoise.utils.errors import UsageError, nearest


class Parser(argparse.ArgumentParser):
    """Options must be spelt out. Errors are one line, with the nearest options; ``equipoise.cli.main`` prints them."""

    def __init__(self, command: str = "", about: str = "", add_help: bool = True) -> None:
        super().__init__(
            f"equipoise {command}", description=about, allow_abbrev=False, add_help=add_help
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options; an unknown one is refused with the names that are close to it."""
        result, rest = self.parse_known_args(arguments)
        if rest:
            known = [text for action in self._actions for text in action.option_strings]
            raise UsageError(
                f"unknown argument '{rest[0]}'{nearest(rest[0].partition('=')[0], known)}; see --help"
            )
        return result


def add_output(parser: Parser, default: str) -> None:
    """Where the result goes, and what becomes of what is there already."""
    parser.add_argument("--out", default=default, help=f"folder of the result (default: {default})")
    add_config(parser)
    parser.add_argument("--resume", action="store_true", help="continue with what is in the folder")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    add_log(parser)
    add_quiet(parser)


def add_config(parser: Parser) -> None:
    parser.add_argument("--config", help="TOML file with options, or the config.json of a run")


def add_log(parser: Parser) -> None:
    parser.add_argument(
        "--log",
        default="",
        help="trackers that are told of every round: tensorboard, mlflow, wandb",
    )


def add_means(parser: Parser) -> None:
    """What the command may use of the machine."""
    for item in fields(ResourceConfig):
        rule = constraint_of(item)
        parser.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=option_types(ResourceConfig)[item.name].type,
            default=item.default,
            help=f"{rule.help} {describe_default(item.default, rule)}",
        )


def means_of(chosen: Mapping[str, Any]) -> ResourceConfig:
    """What :func:`add_means` has read."""
    return ResourceConfig(**{item.name: chosen[item.name] for item in fields(ResourceConfig)})


def add_quiet(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def output_file(name: str) -> Path:
    """A file to be written, in a folder that exists."""
    file = Path(name)
    if file.is_dir():
        raise UsageError(f"'{name}' is a folder: --out must name a file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder '{file.parent}': --out must name a file in one")
    return file
