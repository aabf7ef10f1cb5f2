"""How commands read options: from the command line and a config file, with errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from equipoise.core.errors import UsageError, nearest
from equipoise.settings.config import Option, parse, read_config

OWNERS = {
    "run": "run",
    "training": "local training",
    "privacy": "differential privacy (docs/privacy.md)",
    "task": "task '{task}'",
    "method": "method '{method}'",
}


class Parser(argparse.ArgumentParser):
    """Errors are one line, with the nearest options; :func:`main` prints them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        result, rest = self.parse_known_args(arguments)
        if rest:
            known = [text for action in self._actions for text in action.option_strings]
            raise UsageError(f"unknown argument '{rest[0]}'{nearest(rest[0].partition('=')[0], known)}; see --help")
        return result


def early_options(arguments: list[str]) -> dict[str, Any]:
    """Options that decide which other options there are: the config file's, method and task."""
    parser = Parser(add_help=False, allow_abbrev=False)
    for name in ("--method", "--task", "--config"):
        parser.add_argument(name)
    found, _ = parser.parse_known_args(arguments)
    given = read_config(Path(found.config)) if found.config else {}
    for name, default in (("method", "fedavg"), ("task", "synthetic")):
        value = getattr(found, name) or given.get(name, default)
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}: must be text")
        given[name] = value
    return given


def add_options(parser: Parser, known: dict[str, Option], early: dict[str, Any]) -> None:
    groups = {owner: parser.add_argument_group(title.format_map(early)) for owner, title in OWNERS.items()}
    for item in known.values():
        kwargs: dict[str, Any] = {"default": None, "dest": item.name}
        kwargs["help"] = f"{item.help} (default: {item.default!r})".replace("%", "%%")
        if item.type is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["metavar"] = {int: "N", float: "X"}.get(item.type, "NAME")
        groups[item.owner].add_argument(f"--{item.name.replace('_', '-')}", **kwargs)


def given_options(chosen: dict[str, Any], known: dict[str, Option]) -> dict[str, Any]:
    """Values that stood on the command line, in their own types."""
    return {
        name: parse(known[name], value) if isinstance(value, str) else value
        for name, value in chosen.items()
        if name in known and value is not None
    }
