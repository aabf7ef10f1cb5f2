"""``equipoise data``: describe data before a run; prepare sites whose rows stay where they are."""

from __future__ import annotations

import shlex
from pathlib import Path

from equipoise.cli.json_output import add_json, print_json
from equipoise.cli.options import asks_for_help, parse_run_options
from equipoise.cli.parser import Parser, Values, add_config, output_file, run_subcommand
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.tables import TablesConfig
from equipoise.utils import io


def data(arguments: list[str]) -> int:
    """Run ``data describe``, ``data sample``, ``data summarise`` or ``data merge``.

    Args:
        arguments: Subcommand and its options.

    Returns:
        The exit code.
    """
    about = (
        "Look at data before a run, or write sample data; or prepare sites whose rows stay where "
        "they are, by files of sums and counts."
    )
    subcommands = {
        "describe": _describe,
        "sample": _sample,
        "summarise": _summarise,
        "merge": _merge,
    }
    return run_subcommand("data", about, subcommands, arguments)


def _describe(arguments: list[str]) -> int:
    """Print how the data of a task are split over clients; of tables, every column and problem."""
    parser = Parser(
        "data describe",
        "A task's data, as a run would share them out; of tables, every column and every problem.",
    )
    add_json(parser)
    add_config(parser)
    if asks_for_help(arguments) and not any(text.startswith("--task") for text in arguments):
        arguments = ["--task", "tables", *arguments]
    values, given = parse_run_options(parser, arguments)
    settings = ExperimentConfig.from_options(given)
    if isinstance(settings.task_config, TablesConfig) and not settings.task_config.has_recordings:
        return _describe_tables(settings, given, values["json"])
    from equipoise.experiment.build import build_task
    from equipoise.report.data_description import describe_task, task_text

    description = describe_task(build_task(settings))
    if values["json"]:
        print_json(**description)
    else:
        print(task_text(description))
    return 0


def _describe_tables(settings: ExperimentConfig, given: Values, as_json: bool) -> int:
    """Print a description of raw tables; return 2 if their problems would stop a run."""
    from equipoise.data.tabular.description import describe_tables, with_notes_of
    from equipoise.data.tabular.io import scan_tables
    from equipoise.experiment.build import task_config_of
    from equipoise.report.data_description import solving_options, tables_entries, tables_text
    from equipoise.tasks.tables import split_generator

    config = task_config_of(settings)
    assert isinstance(config, TablesConfig)
    tables, diagnostics = scan_tables(config.path, config.client_column, config)
    rng = split_generator(settings.run.seed)
    description = describe_tables(tables, config, rng, diagnostics)
    flags = {name.replace("_", "-"): str(value) for name, value in given.items()}
    solution = solving_options(description, flags)
    if description.target is None and solution:  # only a clear target shows leaks
        options = {name.replace("-", "_"): value for name, value in solution.items()}
        solved = task_config_of(ExperimentConfig.from_options({**given, **options}))
        assert isinstance(solved, TablesConfig)
        rng = split_generator(settings.run.seed)
        description = with_notes_of(description, describe_tables(tables, solved, rng, diagnostics))
    if as_json:
        print_json(**tables_entries(description, flags))
    else:
        print(tables_text(description, flags))
    return 2 if description.problems else 0


def _sample(arguments: list[str]) -> int:
    """Write a sample federation, and print the commands to try with it."""
    from equipoise.data.tabular.sample import CLIENT_COLUMN, CLINICS, TARGET, write_sample

    parser = Parser(
        "data sample",
        "Write sample tables of six made-up clinics, one CSV file each, to try every command with.",
    )
    parser.add_argument("folder", help="the folder to write, such as clinics/")
    parser.add_argument("--seed", type=int, default=0, help="draws the rows (default: 0)")
    add_json(parser)
    values = parser.parse(arguments)
    new_rows = write_sample(Path(values.folder), values.seed)
    command = ["equipoise", "data", "describe", "--data", values.folder, "--target", TARGET]
    if values.json:
        print_json(
            folder=values.folder,
            clients=len(CLINICS),
            target=TARGET,
            new_rows=str(new_rows),
            client_column=CLIENT_COLUMN,
            command=command,
        )
        return 0
    print(f"{values.folder}: {len(CLINICS)} clinics, one file each; target '{TARGET}'")
    print(f"{new_rows}: new rows of all clinics, with the column '{CLIENT_COLUMN}'")
    print(f"look at them with:\n  {shlex.join(command)}")
    return 0


def _summarise(arguments: list[str]) -> int:
    """Write the sums and counts of one site's columns; no rows."""
    parser = Parser(
        "data summarise",
        "Write the sums and counts of one site's columns, which its owner can read; no rows.",
    )
    parser.add_argument("--client", required=True, help="the name of this site")
    parser.add_argument("--out", required=True, help="the file to write and to send")
    add_json(parser)
    values, config = _parse_table_options(parser, arguments)
    from equipoise.data.tabular.exchange import summarise_site

    io.write_text(output_file(values["out"]), summarise_site(config.path, values["client"], config))
    if values["json"]:
        print_json(file=values["out"], client=values["client"], source=str(config.path))
        return 0
    print(f"{values['out']}: sums and counts of {config.path}; send it to whoever merges them")
    return 0


def _merge(arguments: list[str]) -> int:
    """Write one preparation for all sites from the files of their sums and counts."""
    parser = Parser("data merge", "Write one preparation for all sites, from their summaries.")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="what the sites wrote by 'equipoise data summarise'",
    )
    parser.add_argument(
        "--out", default="preparation.json", help="the preparation (default: preparation.json)"
    )
    add_json(parser)
    values, config = _parse_table_options(parser, arguments)
    from equipoise.data.tabular.exchange import merge_files

    merged, notes = merge_files([Path(file) for file in values["files"]], config)
    io.write_text(output_file(values["out"]), merged.to_json())
    if values["json"]:
        print_json(
            file=values["out"],
            inputs=list(merged.features),
            clients=list(merged.clients),
            notes=list(notes),
        )
        return 0
    for note in notes:
        print(note)
    print(
        f"{values['out']}: {len(merged.features)} inputs of {len(merged.clients)} sites; "
        "put it into every site's folder"
    )
    return 0


def _parse_table_options(parser: Parser, arguments: list[str]) -> tuple[Values, TablesConfig]:
    """Parse the options of the task ``tables``."""
    add_config(parser)
    early = {"method": "fedavg", "task": "tables"}
    values, given = parse_run_options(parser, arguments, early)
    config = ExperimentConfig.from_options(given).task_config
    assert isinstance(config, TablesConfig)
    return values, config
