"""``equipoise compare``: several methods over several seeds, one table."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from equipoise.cli.json_output import Output, add_json, existing_file, print_json
from equipoise.cli.options import parse_several_methods
from equipoise.cli.parser import Parser, add_output, add_resources, resources_from
from equipoise.cli.run import print_new_notes, show_and_track
from equipoise.experiment import compare as comparison
from equipoise.experiment.decision import conclude, read_decision
from equipoise.experiment.runner import Interrupted, OnRoundEnd
from equipoise.experiment.tune import read_best
from equipoise.methods import find_method
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.records.summary import Summary
from equipoise.report import tables
from equipoise.report.decision_text import print_decision
from equipoise.report.terminal import ProgressDisplay, make_console, print_results
from equipoise.report.trackers import RunTrackers, parse_tracker_names
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.option_registry import options, resolve_names
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError

DEFAULT_OUT = "runs/compare"
NOT_RECORDED = ("--resume", "--overwrite", "--json")
"""Options that are no part of the command that a comparison records."""


def compare(arguments: list[str]) -> int:
    """Train with several methods over several seeds.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
    arguments = _with_recorded_command(arguments)
    values, cells = parse_several_methods(arguments, _parser())
    if values["tuned"]:
        cells = _with_tuned_options(cells, Path(values["tuned"]))
    parse_tracker_names(values["log"])  # refuse an unknown tracker before any work
    if values["equal_steps"]:
        cells = comparison.with_equal_steps(cells)
    out = Path(values["out"])
    output = Output(values["quiet"], values["json"])
    current_run = contextlib.ExitStack()  # display and trackers of the run under way
    recorded = [text for text in arguments if text not in NOT_RECORDED]
    try:
        with current_run:
            by_method, columns = comparison.compare(
                cells,
                values["seeds"],
                out,
                ["equipoise", "compare", *recorded],
                resume=values["resume"],
                overwrite=values["overwrite"],
                announce=_announce(values, output, current_run),
                on_message=print_new_notes(output),
                resources=resources_from(values),
            )
    except (Interrupted, KeyboardInterrupt):
        print(
            f"interrupted; what is finished is in {out / 'table.md'}; "
            f"go on with: equipoise resume {out}",
            file=sys.stderr,
        )
        return 1
    report = conclude(out)
    if output.json:
        print_json(
            folder=str(out),
            methods=by_method,
            decision=read_decision(out),
            table=str(out / "table.md"),
            report=existing_file(RunFolder(out).report),
        )
    elif output.for_people:
        _print_table(by_method, columns, out, report)
    return 0


def _announce(
    values: dict[str, Any], output: Output, current_run: contextlib.ExitStack
) -> comparison.Announce:
    """Return a callback that opens display and trackers of the next run, and closes the last."""

    def announce(settings: ExperimentConfig, folder: Path) -> OnRoundEnd:
        current_run.close()
        rounds_done = RunFolder(folder).count_rounds() if values["resume"] else 0
        label = folder.parent.name  # such as autopilot@linear
        title = f"{label}, seed {settings.run.seed}"
        display = current_run.enter_context(
            ProgressDisplay(
                title,
                settings.run.rounds,
                not output.for_people,
                rounds_done,
                RunFolder(folder).read_prepared_names,
            )
        )
        trackers = current_run.enter_context(RunTrackers(values["log"], folder, rounds_done))
        return show_and_track(display, trackers)

    return announce


def _parser() -> Parser:
    """Return the parser of the options that are not options of the runs."""
    parser = Parser(
        "compare", "Train with several methods over several seeds; the result is one table."
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, from --seed on (default: 3)"
    )
    parser.add_argument(
        "--tuned", help="folder of 'equipoise tune': use the options that it found for each method"
    )
    parser.add_argument(
        "--equal-steps",
        action="store_true",
        help="give every method as many rounds as the first one's gradient steps pay for",
    )
    add_output(parser, DEFAULT_OUT)
    add_json(parser)
    add_resources(parser)
    return parser


def _with_tuned_options(cells: comparison.Cells, folder: Path) -> comparison.Cells:
    """Add the options that a search found for each method; given options win."""
    tuned: comparison.Cells = {}
    for label, given in cells.items():
        method, _ = comparison.method_and_model(label)
        table = options(find_method(method), find_task(given["task"]))
        tuned[label] = {**resolve_names(table, read_best(folder, label)), **given}
    return tuned


def _print_table(
    by_method: dict[str, list[Summary]], columns: list[tables.SummaryColumn], out: Path, report: str
) -> None:
    """Print the table of a finished comparison and where its files are."""
    console = make_console()
    decision = read_decision(out)
    if decision is None:
        rows = tables.summary_rows(by_method, columns)
        notes = tables.undefined_notes(by_method, columns)
        print_results("mean ± standard deviation over seeds", rows, columns, console, notes)
    else:
        print_decision(decision, console)
        console.print(f"next: equipoise choose {out}", highlight=False)
    console.print(f"all figures: {out / 'table.md'}; runs are in {out}", highlight=False)
    console.print(report, highlight=False, markup=False, soft_wrap=True)


def _with_recorded_command(arguments: list[str]) -> list[str]:
    """Add the options that the folder records, if only ``--resume`` and the folder are given."""
    parser = Parser("compare", add_help=False)
    add_output(parser, DEFAULT_OUT)
    add_json(parser)
    add_resources(parser)
    values, rest = parser.parse_known_args(arguments)
    folder = ComparisonFolder(Path(values.out))
    if rest or not values.resume or values.config or not folder.has_begun():
        return arguments
    command = folder.read().command
    if command[:2] != ["equipoise", "compare"]:
        raise UsageError(
            f"'{values.out}' was made in Python: go on with equipoise.compare(..., resume=True)"
        )
    return [*command[2:], *arguments]
