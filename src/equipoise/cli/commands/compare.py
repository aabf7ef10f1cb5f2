"""``equipoise compare``: several methods over several seeds, one table."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from equipoise.cli.parser import Parser, add_means, add_output, means_of
from equipoise.cli.several import several
from equipoise.cli.showing import both
from equipoise.experiment.compare import compare, with_equal_steps
from equipoise.experiment.runner import Interrupted, OnRoundEnd
from equipoise.experiment.tune import read_best
from equipoise.methods import find_method
from equipoise.records import codec
from equipoise.records.run_dir import Folder
from equipoise.records.summary import Compared
from equipoise.report import html, tables
from equipoise.report.terminal import ProgressDisplay, make_console, print_results
from equipoise.report.trackers import RunTrackers, parse_tracker_names
from equipoise.settings.option_registry import options, resolve_names
from equipoise.settings.run_settings import RunSettings
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError

DEFAULT = "runs/compare"
"""The folder of a comparison, where none is named."""


def main(arguments: list[str]) -> int:
    arguments = _continued(arguments)
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
    add_output(parser, DEFAULT)
    add_means(parser)
    chosen, cells = several(arguments, parser)
    if chosen["tuned"]:
        for name, given in cells.items():
            known = options(find_method(name), find_task(given["task"]))
            cells[name] = {**resolve_names(known, read_best(Path(chosen["tuned"]), name)), **given}
    parse_tracker_names(chosen["log"])  # a tracker that is not there is refused before any work
    if chosen["equal_steps"]:
        cells = with_equal_steps(cells)
    out, quiet = Path(chosen["out"]), chosen["quiet"]
    cell = contextlib.ExitStack()  # what watches the cell under way

    def announce(settings: RunSettings, folder: Path) -> OnRoundEnd:
        cell.close()
        done = len(Folder(folder).records()) if chosen["resume"] else 0
        title = f"{settings.run.method}, seed {settings.run.seed}"
        display = cell.enter_context(ProgressDisplay(title, settings.run.rounds, quiet, done))
        return both(display, cell.enter_context(RunTrackers(chosen["log"], folder, done)))

    again = {
        "resume": chosen["resume"],
        "overwrite": chosen["overwrite"],
        "means": means_of(chosen),
    }
    asked = [text for text in arguments if text not in ("--resume", "--overwrite")]
    try:
        with cell:
            by_method, columns = compare(
                cells,
                chosen["seeds"],
                out,
                ["equipoise", "compare", *asked],
                announce=announce,
                **again,
            )
    except (Interrupted, KeyboardInterrupt):
        print(
            f"interrupted; what is finished is in {out / 'table.md'}; go on with: equipoise resume {out}",
            file=sys.stderr,
        )
        return 1
    report = html.try_write_report(out)
    if not quiet:
        console = make_console()
        rows = tables.summary_rows(by_method, columns)
        notes = tables.undefined_notes(by_method, columns)
        print_results("mean ± standard deviation over seeds", rows, columns, console, notes)
        console.print(f"tables and runs are in {out}", highlight=False)
        console.print(report, highlight=False, markup=False, soft_wrap=True)
    return 0


def _continued(arguments: list[str]) -> list[str]:
    """``--resume`` without an option of the comparison means the command that is kept in its folder."""
    parser = Parser("compare", add_help=False)
    add_output(parser, DEFAULT)
    add_means(parser)
    chosen, rest = parser.parse_known_args(arguments)
    kept = Path(chosen.out) / "compare.json"
    if rest or not chosen.resume or chosen.config or not kept.is_file():
        return arguments
    try:
        command = codec.decode(Compared, json.loads(kept.read_text())).command
    except ValueError as error:
        raise UsageError(
            f"'{kept}' is damaged ({error}): give all options of the comparison again"
        ) from error
    if command[:2] != ["equipoise", "compare"]:
        raise UsageError(
            f"'{chosen.out}' was made in Python: go on with equipoise.compare(..., resume=True)"
        )
    return [*command[2:], *arguments]
