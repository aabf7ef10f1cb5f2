"""``equipoise data``: look at data before a run, and the exchange by files of sites whose rows stay where they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.cli.arguments import add_options, early_options, given_options
from equipoise.cli.parser import Parser, add_config, output_file
from equipoise.methods import find_method
from equipoise.settings.option_registry import options
from equipoise.settings.run_settings import RunSettings
from equipoise.tasks import find_task
from equipoise.tasks.tables import TablesConfig
from equipoise.utils import io
from equipoise.utils.errors import UsageError, nearest


def main(arguments: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "describe": _describe,
        "summarise": _summarise,
        "merge": _merge,
    }
    about = "Look at data before a run; or prepare sites whose rows stay where they are, by files of sums and counts."
    parser = Parser("data", about)
    parser.add_argument("what", choices=list(commands), help="what to do; each has its own --help")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise UsageError(f"unknown command 'data {arguments[0]}'{nearest(arguments[0], commands)}")
    return commands[parser.parse(arguments[:1]).what](arguments[1:])


def _describe(arguments: list[str]) -> int:
    parser = Parser(
        "data describe",
        "A task's data, as a run would share them out; of tables, every column and every problem.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    chosen, given = _options(parser, arguments, early_options(arguments))
    settings = RunSettings.from_options(given)
    if (
        isinstance(settings.task_config, TablesConfig)
        and settings.task_config.path.suffix != ".npz"
    ):
        return _describe_tables(settings.task_config, given, chosen["json"])
    from equipoise.experiment.runner import build_task
    from equipoise.report.data_description import describe_task, task_text

    found = describe_task(build_task(settings))
    print(json.dumps(found) if chosen["json"] else task_text(found))
    return 0


def _describe_tables(config: TablesConfig, given: dict[str, Any], as_json: bool) -> int:
    """Tables as they are, before anything is made of them; 2 where problems stand against a run."""
    from equipoise.data.tabular.description import describe_tables as describe
    from equipoise.data.tabular.io import scan_tables
    from equipoise.report.data_description import tables_json, tables_text

    tables, diagnostics = scan_tables(config.path, config.client_column, config)
    found = describe(tables, config, diagnostics)
    told = {name.replace("_", "-"): str(value) for name, value in given.items()}
    print((tables_json if as_json else tables_text)(found, told))
    return 2 if found.problems else 0


def _summarise(arguments: list[str]) -> int:
    parser = Parser(
        "data summarise",
        "What one site tells of its columns: sums and counts, which its owner can read; no rows.",
    )
    parser.add_argument("--client", required=True, help="the name of this site")
    parser.add_argument("--out", required=True, help="the file to write and to send")
    chosen, config = _table_options(parser, arguments)
    from equipoise.data.tabular.exchange import summarise_site

    io.write_text(output_file(chosen["out"]), summarise_site(config.path, chosen["client"], config))
    print(f"{chosen['out']}: sums and counts of {config.path}; send it to whoever merges them")
    return 0


def _merge(arguments: list[str]) -> int:
    parser = Parser("data merge", "One preparation for all sites, from what each has told.")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="what the sites wrote by 'equipoise data summarise'",
    )
    parser.add_argument(
        "--out", default="preparation.json", help="the preparation (default: preparation.json)"
    )
    chosen, config = _table_options(parser, arguments)
    from equipoise.data.tabular.exchange import merge_files

    made, notes = merge_files([Path(file) for file in chosen["files"]], config)
    io.write_text(output_file(chosen["out"]), made.to_json())
    for note in notes:
        print(note)
    print(
        f"{chosen['out']}: {len(made.features)} inputs of {len(made.clients)} sites; put it into every site's folder"
    )
    return 0


def _table_options(parser: Parser, arguments: list[str]) -> tuple[dict[str, Any], TablesConfig]:
    chosen, given = _options(parser, arguments, {"method": "fedavg", "task": "tables"})
    config = RunSettings.from_options(given).task_config
    assert isinstance(config, TablesConfig)
    return chosen, config


def _options(
    parser: Parser, arguments: list[str], early: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stood on the command line, and the options of a run among it."""
    known = options(find_method(early["method"]), find_task(early["task"]))
    add_config(parser)
    add_options(parser, known, early, arguments)
    chosen = vars(parser.parse(arguments))
    return chosen, given_options(early, chosen, known)
