"""Options of a run on the command line and in config files, for one method or several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.cli.parser import Parser, Values
from equipoise.config.schema import parse
from equipoise.experiment.compare import first_methods, method_and_model, suitable
from equipoise.methods import all_methods, find_method, usual_method
from equipoise.records.run_dir import read_options_file
from equipoise.settings.option_registry import (
    Option,
    OptionTable,
    has_option,
    options,
    resolve_names,
)
from equipoise.tasks import TaskSpec, find_task
from equipoise.utils.errors import UsageError

GROUP_TITLES = {
    "run": "run",
    "deployment": "deployment (docs/how-to/deploy.md)",
    "timing": "simulated time (docs/how-to/clock.md)",
    "training": "local training",
    "privacy": "differential privacy (docs/how-to/privacy.md)",
    "task": "task '{task}'",
    "method": "method '{method}'",
}
COMMON_OPTIONS = (
    "method",
    "task",
    "model",
    "rounds",
    "seed",
    "participation",
    "epochs",
    "lr",
    "batch_size",
)
"""Options that ``--help`` always shows."""
HELP_FLAGS = ("-h", "--help", "--help-all")
TABLES = "tables"
TABLES_TITLE = "your own tables (all of their options: {command} --task tables --help)"
MAIN_TABLE_OPTIONS = (
    "data",
    "target",
    "client_column",
    "target_type",
    "event",
    "metric",
    "ignore_columns",
    "small_clients",
    "folds",
)
"""Options of tables that ``--help`` shows first, also where no task is named."""


def parse_run_options(
    parser: Parser, arguments: Sequence[str], first_values: Values | None = None
) -> tuple[Values, Values]:
    """Add the options of a run of one method to a parser and parse the command line.

    Args:
        parser: Parser of the command, with the command's own arguments.
        arguments: Arguments of the command.
        first_values: Method, task and options of the config file; read from the arguments if None.

    Returns:
        All parsed values by name, and the options of the run that were given.
    """
    if first_values is None:
        first_values = early_options(arguments)
    table = options(find_method(first_values["method"]), find_task(first_values["task"]))
    add_options(parser, table, first_values, arguments)
    values = vars(parser.parse(arguments))
    return values, given_options(first_values, values, table)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for help."""
    return any(text in HELP_FLAGS for text in arguments)


def early_options(arguments: Sequence[str], data_task: str = "tables") -> Values:
    """Read the options that decide which other options exist.

    Args:
        arguments: Arguments of the command.
        data_task: Task of data without a task.

    Returns:
        The options of the config file, with ``method``, ``task`` and ``model`` of the command
        line.

    Raises:
        UsageError: If method or task is not a text.
    """
    parser = Parser(add_help=False)
    for name in ("--method", "--task", "--data", "--model", "--config"):
        parser.add_argument(name)
    values, _ = parser.parse_known_args(arguments)
    given = read_options_file(Path(values.config)) if values.config else {}
    has_data = bool(values.data or given.get("data"))
    method = usual_method(values.model or given.get("model"))
    for name, default in (("method", method), ("task", data_task if has_data else "synthetic")):
        value = getattr(values, name) or given.get(name, default)
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}: must be text")
        given[name] = value
    if values.model:
        given["model"] = values.model
    return given


def add_options(
    parser: Parser,
    table: OptionTable,
    first_values: Values,
    arguments: Sequence[str],
    shown_owners: Sequence[str] = (),
) -> None:
    """Add the options of a run to a parser, in groups by owner.

    ``--help`` shows the common options, the main ones of tables, and those of a method or task that
    is named on the command line; ``--help-all`` shows all.

    Args:
        parser: Parser of the command.
        table: Options of the run.
        first_values: Method and task, for the titles of the groups.
        arguments: Arguments of the command.
        shown_owners: Owners whose options ``--help`` always shows.
    """
    parser.add_argument(
        "--help-all", action="help", help="show every option of the run, the method and the task"
    )
    flags = {"method": ("--method",), "task": ("--task", "--data")}
    named_owners = [
        owner for owner, names in flags.items() if any(t.startswith(names) for t in arguments)
    ]
    is_tables = first_values["task"] == TABLES
    about_tables: OptionTable = table if is_tables else {}
    if "task" not in named_owners and asks_for_help(arguments):
        about_tables = options(find_method("fedavg"), find_task(TABLES))
    main_options = {key: about_tables[key] for key in MAIN_TABLE_OPTIONS if key in about_tables}
    if main_options:
        group = parser.add_argument_group(TABLES_TITLE.format(command=parser.prog))
        for key, option in main_options.items():
            _add_option(group, key, option, option.help.replace("%", "%%"))
    named_owners += shown_owners
    show_all = "--help-all" in arguments
    groups = {
        owner: parser.add_argument_group(title.format_map(first_values))
        for owner, title in GROUP_TITLES.items()
    }
    for key, option in table.items():
        if key in main_options:
            continue
        is_shown = show_all or option.owner in named_owners or key in COMMON_OPTIONS
        help = option.help.replace("%", "%%") if is_shown else argparse.SUPPRESS
        _add_option(groups[option.owner], key, option, help)
    names = set(table)
    for option in table.values():  # other spellings are accepted, but never shown
        for name in sorted({option.name, option.full} - names):
            _add_option(groups[option.owner], name, option, argparse.SUPPRESS)
            names.add(name)


def _add_option(group: argparse._ArgumentGroup, name: str, option: Option, help: str) -> None:
    """Add one option to a group of a parser."""
    settings: Values = {"default": None, "dest": name, "help": help}
    if option.kind.type is bool:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = {int: "N", float: "X"}.get(option.kind.type, "NAME")
    group.add_argument(f"--{name.replace('_', '-')}", **settings)


def given_options(first_values: Values, values: Values, table: OptionTable) -> Values:
    """Merge the options of the config file and of the command line.

    Args:
        first_values: Options of the config file, with method and task.
        values: Parsed values of the command line; None means not given.
        table: Options of the run.

    Returns:
        Values by the names of ``table``. The command line wins over the file.
    """
    typed = {
        name: value
        for name, value in values.items()
        if value is not None and has_option(table, name)
    }
    given = resolve_names(table, first_values)
    for key, value in resolve_names(table, typed).items():
        is_text = isinstance(value, str)
        given[key] = parse(key, value, table[key].kind, table[key].rule) if is_text else value
    return given


def parse_several_methods(
    arguments: list[str], parser: Parser, with_models: bool = True
) -> tuple[Values, dict[str, Values]]:
    """Parse the command line of a command for several methods.

    Args:
        arguments: Arguments of the command.
        parser: Parser of the command, with the command's own arguments.
        with_models: Whether a method may have a model of its own, such as ``autopilot@linear``.

    Returns:
        All parsed values by name, and the options of each method.

    Raises:
        UsageError: If ``--methods`` is empty, names a method twice, or gives one a model where
            that is not possible.
    """
    without_help = [text for text in arguments if text not in HELP_FLAGS]
    early = early_options(without_help)
    task = find_task(early["task"])
    default = ",".join(first_methods(task, early.get("model", ""), with_models))
    parser.add_argument(
        "--methods",
        default=default,
        help="names with commas between, or 'all' that suit; method@model gives one another model "
        f"(default: {_default_methods(task, default, with_models)})",
    )
    methods = parser.parse_known_args(without_help)[0].methods
    names = [name for name in methods.split(",") if name]
    if methods == "all":
        names = list(all_methods())
    if not names or len(set(names)) < len(names):
        raise UsageError("--methods must name each method once, separated by commas, or be 'all'")
    models = {name: method_and_model(name)[1] for name in names}
    if not with_models and any(models.values()):
        raise UsageError("--methods has a method with a model of its own: give --model instead")
    tables = {name: options(find_method(method_and_model(name)[0]), task) for name in names}
    merged = {key: option for table in tables.values() for key, option in table.items()}
    del merged["method"]
    add_options(parser, merged, {**early, "method": "' and '".join(names)}, arguments)
    values = vars(parser.parse(arguments))
    del early["method"]
    cells = {
        name: given_options(_known_options(early, table), _known_options(values, table), table)
        for name, table in tables.items()
    }
    if methods == "all":
        cells, refused = suitable(cells)
        for reason in refused.values():
            print(f"left out: {reason}", file=sys.stderr)
    return values, cells


def _default_methods(task: TaskSpec, default: str, with_models: bool) -> str:
    """Say which methods are compared by default: of tables first, which most users have."""
    if task.name == TABLES:
        return default
    of_tables = ",".join(first_methods(find_task(TABLES), "", with_models))
    return f"{of_tables} with --data, {default} on task {task.name}"


def _known_options(given: Values, table: OptionTable) -> Values:
    """Return those of the given options that are in the table."""
    return {name: value for name, value in given.items() if has_option(table, name)}
