"""``equipoise compare``: several methods over several seeds, one table."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from equipoise.cli.parser import Parser, add_output
from equipoise.cli.several import several
from equipoise.cli.showing import both
from equipoise.methods import find_method
from equipoise.records.folder import Folder
from equipoise.report import tables
from equipoise.report.page import html
from equipoise.report.terminal.fit import output
from equipoise.report.terminal.progress import Display
from equipoise.report.terminal.results import to_screen
from equipoise.report.trackers.tracking import Tracking
from equipoise.runs.compare import compare
from equipoise.runs.running import Interrupted, Watch
from equipoise.runs.tune import read_best
from equipoise.settings.config import Settings
from equipoise.settings.names import options, resolved
from equipoise.tasks import find_task


def main(arguments: list[str]) -> int:
    parser = Parser("compare", "Train with several methods over several seeds; the result is one table.")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from --seed on (default: 3)")
    parser.add_argument("--tuned", help="folder of 'equipoise tune': use the options that it found for each method")
    add_output(parser, "runs/compare")
    chosen, cells = several(arguments, parser)
    if chosen["tuned"]:
        for name, given in cells.items():
            known = options(find_method(name), find_task(given["task"]))
            cells[name] = {**resolved(known, read_best(Path(chosen["tuned"]), name)), **given}
    out, quiet = Path(chosen["out"]), chosen["quiet"]
    cell = contextlib.ExitStack()  # what watches the cell under way

    def announce(settings: Settings, folder: Path) -> Watch:
        cell.close()
        done = len(Folder(folder).records()) if chosen["resume"] else 0
        title = f"{settings.run.method}, seed {settings.run.seed}"
        display = cell.enter_context(Display(title, settings.run.rounds, quiet, done))
        return both(display, cell.enter_context(Tracking(chosen["log"], folder, done)))

    again = {"resume": chosen["resume"], "overwrite": chosen["overwrite"]}
    try:
        with cell:
            by_method, shown = compare(
                cells, chosen["seeds"], out, ["equipoise", "compare", *arguments], announce=announce, **again
            )
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; go on with the same command and --resume", file=sys.stderr)
        return 1
    report = html.offer(out)
    if not quiet:
        console = output()
        to_screen("mean ± standard deviation over seeds", tables.rows(by_method, shown), shown, console)
        console.print(f"tables and runs are in {out}", highlight=False)
        console.print(report, highlight=False, markup=False, soft_wrap=True)
    return 0
