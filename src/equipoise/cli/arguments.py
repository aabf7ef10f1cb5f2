"""How commands read the options of a run: from the command line and a config file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.cli.parser import Parser
from equipoise.config.parsing import parse
from equipoise.settings.option_registry import Option, OptionTable, has_option, resolve_names
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError

OWNERS = {
    "run": "run",
    "timing": "simulated time (docs/clock.md)",
    "training": "local training",
    "privacy": "differential privacy (docs/privacy.md)",
    "task": "task '{task}'",
    "method": "method '{method}'",
}
USUAL = ("method", "task", "model", "rounds", "seed", "participation", "epochs", "lr", "batch_size")
"""Options that ``--help`` always shows."""


def early_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Options that decide which other options there are: the config file's, method and task."""
    parser = Parser(add_help=False)
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


def add_options(
    parser: Parser, known: OptionTable, early: dict[str, Any], arguments: Sequence[str]
) -> None:
    """Options of a run, in groups by owner.

    ``--help`` shows the usual ones, and those of a method or task that is named; ``--help-all`` shows all.
    """
    parser.add_argument(
        "--help-all", action="help", help="show every option of the run, the method and the task"
    )
    named = [
        owner
        for owner in ("method", "task")
        if any(text.startswith(f"--{owner}") for text in arguments)
    ]
    everything = "--help-all" in arguments
    groups = {
        owner: parser.add_argument_group(title.format_map(early)) for owner, title in OWNERS.items()
    }
    for key, item in known.items():
        shown = everything or item.owner in named or key in USUAL
        _add(
            groups[item.owner],
            key,
            item,
            item.help.replace("%", "%%") if shown else argparse.SUPPRESS,
        )
    there = set(known)
    for item in known.values():  # names that are understood, but never shown
        for name in sorted({item.name, item.full} - there):
            _add(groups[item.owner], name, item, argparse.SUPPRESS)
            there.add(name)


def _add(group: argparse._ArgumentGroup, name: str, item: Option, help: str) -> None:
    how: dict[str, Any] = {"default": None, "dest": name, "help": help}
    if item.kind.type is bool:
        how["action"] = argparse.BooleanOptionalAction
    else:
        how["metavar"] = {int: "N", float: "X"}.get(item.kind.type, "NAME")
    group.add_argument(f"--{name.replace('_', '-')}", **how)


def given_options(
    early: dict[str, Any], chosen: dict[str, Any], known: OptionTable
) -> dict[str, Any]:
    """Values of the config file and the command line, by the names of ``known``; the latter in their own types."""
    typed = {
        name: value
        for name, value in chosen.items()
        if value is not None and has_option(known, name)
    }
    mine = {
        key: parse(key, value, known[key].kind, known[key].rule)
        if isinstance(value, str)
        else value
        for key, value in resolve_names(known, typed).items()
    }
    return {**resolve_names(known, early), **mine}


def own_options(given: dict[str, Any], known: OptionTable) -> dict[str, Any]:
    """Those that a method has, of options that were given for several."""
    return {name: value for name, value in given.items() if has_option(known, name)}
