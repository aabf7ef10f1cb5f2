"""``equipoise config`` and ``equipoise schema``: options of a run, and of config files."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.json_output import add_json, print_json
from equipoise.cli.parser import Parser, run_subcommand


def config(arguments: list[str]) -> int:
    """Run ``config show``.

    Args:
        arguments: Subcommand and its options.

    Returns:
        The exit code.
    """
    about = "Show the options of a run in the form of a config file."
    return run_subcommand("config", about, {"show": _show}, arguments)


def _show(arguments: list[str]) -> int:
    """Print the options of a run as YAML, or as JSON."""
    parser = Parser("config show", "The options of a run, as a file that --config reads.")
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument("--all", action="store_true", help="also options that have their default")
    add_json(parser)
    values = parser.parse(arguments)
    import yaml

    from equipoise.records.run_dir import RunFolder
    from equipoise.settings.nested import nested_options

    folder = RunFolder(Path(values.folder))
    folder.demand()
    nested = nested_options(folder.read_config(), with_defaults=values.all)
    if values.json:
        print_json(**nested)
    else:
        print(yaml.safe_dump(nested, sort_keys=False, allow_unicode=True), end="")
    return 0


def schema(arguments: list[str]) -> int:
    """Print the JSON schema of config files.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "schema", "The JSON schema of config files: editors complete and check options by it."
    )
    add_json(parser)  # it is JSON in any case
    parser.parse(arguments)
    from equipoise.settings.json_schema import config_schema

    print_json(**config_schema())
    return 0
