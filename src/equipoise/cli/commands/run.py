"""``equipoise run``: train with one method."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.arguments import add_options, early_options, given_options
from equipoise.cli.parser import Parser, add_means, add_output, means_of
from equipoise.cli.showing import telling, to_the_end
from equipoise.experiment.multiprocess import is_worker_rank, run_worker
from equipoise.experiment.runner import build_task, run
from equipoise.methods import find_method
from equipoise.records.run_dir import Folder
from equipoise.report.trackers import RunTrackers
from equipoise.settings.option_registry import options
from equipoise.settings.run_settings import RunSettings
from equipoise.tasks import find_task


def main(arguments: list[str]) -> int:
    early = early_options(arguments)
    known = options(find_method(early["method"]), find_task(early["task"]))
    parser = Parser(
        "run", "Train with one method; the result is a folder with scores, models and a report."
    )
    add_output(parser, "runs/last")
    add_means(parser)
    add_options(parser, known, early, arguments)
    chosen = vars(parser.parse(arguments))
    settings = RunSettings.from_options(given_options(early, chosen, known))
    means, out = means_of(chosen), Path(chosen["out"])
    if is_worker_rank():
        run_worker(settings, build_task(settings), means, out)
        return 0
    done = len(Folder(out).records()) if chosen["resume"] else 0
    trackers = RunTrackers(chosen["log"], out, done)
    again = {
        "resume": chosen["resume"],
        "overwrite": chosen["overwrite"],
        "on_message": telling(chosen["quiet"]),
        "resources": means,
    }
    return to_the_end(
        out,
        settings,
        chosen["quiet"],
        trackers,
        done,
        lambda watch: run(settings, out, on_round_end=watch, **again),
    )
