"""``equipoise run`` and ``equipoise resume``: train with one method, with a progress display."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from equipoise.cli.json_output import Output, add_json, existing_file, print_json
from equipoise.cli.options import parse_run_options
from equipoise.cli.parser import (
    Parser,
    add_log,
    add_output,
    add_quiet,
    add_resources,
    resources_from,
)
from equipoise.experiment import runner
from equipoise.experiment.build import build_task
from equipoise.experiment.compare import with_table_defaults
from equipoise.experiment.decision import conclude, read_decision
from equipoise.experiment.model_choice import choose_model
from equipoise.experiment.multiprocess import is_worker_rank, run_worker
from equipoise.experiment.runner import Interrupted, OnMessage, OnRoundEnd
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.records.summary import Summary
from equipoise.report import tables
from equipoise.report.decision_text import print_decision
from equipoise.report.terminal import ProgressDisplay, make_console, print_results
from equipoise.report.trackers import RunTrackers
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.ipc import WorkerLost
from equipoise.tasks import AUTO_MODEL

NUMBER = re.compile(r"\d[\d.,]*")


def run(arguments: list[str]) -> int:
    """Train with one method.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "run", "Train with one method; the result is a folder with scores, models and a report."
    )
    add_output(parser, "runs/last")
    add_json(parser)
    add_resources(parser)
    values, given = parse_run_options(parser, arguments)
    settings = ExperimentConfig.from_options(with_table_defaults(given))
    resources = resources_from(values)
    output = Output(values["quiet"], values["json"])
    out = Path(values["out"])
    if is_worker_rank():
        task = build_task(settings)
        settings = settings.with_chosen_noise(task.info.num_clients, is_simulation=True)
        run_worker(settings, task, resources, out)
        return 0

    if settings.run.model == AUTO_MODEL:
        RunFolder(out).refuse(values["overwrite"])
        settings = choose_model(settings, _print_notes(output), resources)

    def train(on_round_end: OnRoundEnd) -> Summary:
        return runner.run(
            settings,
            out,
            resume=values["resume"],
            overwrite=values["overwrite"],
            on_round_end=on_round_end,
            on_message=_print_notes(output),
            resources=resources,
        )

    rounds_done = RunFolder(out).count_rounds() if values["resume"] else 0
    trackers = RunTrackers(values["log"], out, rounds_done)
    return _train_with_progress(out, settings, output, trackers, rounds_done, train)


def resume(arguments: list[str]) -> int:
    """Continue a run or a comparison; show the result of a finished one.

    Args:
        arguments: Folder and options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "resume",
        "Continue a run or a comparison that was stopped; of a finished one the result is shown.",
    )
    parser.add_argument("folder", help="folder of the run or comparison")
    add_log(parser)
    add_resources(parser)
    add_quiet(parser)
    add_json(parser)
    values = parser.parse(arguments)
    resources = resources_from(vars(values))
    output = Output(values.quiet, values.json)
    out = Path(values.folder)
    folder = RunFolder(out)
    if ComparisonFolder(out).has_begun() and not folder.has_config():
        return _resume_comparison(values.folder, values.log, output, resources)
    settings = ExperimentConfig.from_options(folder.read_config())

    def train(on_round_end: OnRoundEnd) -> Summary:
        return runner.resume_run(
            out, on_round_end, on_message=_print_notes(output), resources=resources
        )

    rounds_done = folder.count_rounds()
    trackers = RunTrackers(values.log, out, rounds_done)
    return _train_with_progress(out, settings, output, trackers, rounds_done, train)


def _resume_comparison(folder: str, log: str, output: Output, resources: ResourceConfig) -> int:
    """Continue a comparison with the options that its folder records."""
    from equipoise.cli.compare import compare

    arguments = ["--resume", "--out", folder]
    if log:
        arguments += ["--log", log]
    arguments += [f"--{name}" for name, is_set in output._asdict().items() if is_set]
    for name, value in asdict(resources).items():
        if value != getattr(ResourceConfig, name):
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return compare(arguments)


def _train_with_progress(
    out: Path,
    settings: ExperimentConfig,
    output: Output,
    trackers: RunTrackers,
    rounds_done: int,
    train: Callable[[OnRoundEnd], Summary],
) -> int:
    """Train with a progress display, then print the result as a table of one row.

    Args:
        out: Folder of the run.
        settings: Options of the run.
        output: What to print.
        trackers: Trackers that receive every round.
        rounds_done: Rounds that had ended before.
        train: Trains to the end and calls its argument after every round.

    Returns:
        The exit code; an interrupted run prints the command that continues it.
    """
    title = f"{settings.run.method} on {settings.run.task}"
    try:
        display = ProgressDisplay(
            title,
            settings.run.rounds,
            not output.for_people,
            rounds_done,
            RunFolder(out).read_prepared_names,
        )
        with display, trackers:
            summary = train(show_and_track(display, trackers))
    except (Interrupted, KeyboardInterrupt):
        print(f"interrupted; go on with: equipoise resume {out}", file=sys.stderr)
        return 1
    except WorkerLost as lost:
        print(
            f"{lost}; the run goes on from its last checkpoint with: equipoise resume {out}",
            file=sys.stderr,
        )
        return 1
    report = conclude(out)
    if output.json:
        print_json(
            folder=str(out),
            summary=summary,
            decision=read_decision(out),
            report=existing_file(RunFolder(out).report),
        )
    elif output.for_people:
        _print_summary(title, summary, out, report)
    return 0


def show_and_track(display: ProgressDisplay, trackers: RunTrackers) -> OnRoundEnd:
    """Return a callback that passes each round to the progress display and to the trackers."""

    def on_round_end(record: RoundRecord) -> None:
        display(record)
        trackers(record)

    return on_round_end


def _print_notes(output: Output) -> OnMessage | None:
    """Return a callback that prints notes of a run to standard error."""
    if output.quiet:
        return None
    return lambda message: print(f"note: {message}", file=sys.stderr)


def print_new_notes(output: Output) -> OnMessage | None:
    """Return a callback that prints notes of several runs to standard error, each once.

    Runs with other seeds repeat a note with other figures: notes are told apart by their words.

    Args:
        output: What to print.
    """
    print_note = _print_notes(output)
    if print_note is None:
        return None
    printed: set[str] = set()

    def print_new(message: str) -> None:
        words = NUMBER.sub("", message)
        if words not in printed:
            printed.add(words)
            print_note(message)

    return print_new


def _print_summary(title: str, summary: Summary, out: Path, report: str) -> None:
    """Print the scores of a finished run and where its files are."""
    console = make_console()
    decision = read_decision(out)
    if decision is None:
        columns = tables.summary_columns(summary)
        by_method = {summary.about.method: [summary]}
        notes = tables.undefined_notes(by_method, columns)
        print_results(title, tables.summary_rows(by_method, columns), columns, console, notes)
    else:
        print_decision(decision, console)
        console.print(f"next: equipoise choose {out}", highlight=False)
    if summary.stopped:
        console.print(f"stopped at round {summary.rounds}: {summary.stopped}", highlight=False)
    if summary.privacy:
        console.print(describe_spent(summary.privacy), highlight=False)
    if summary.about.executor:
        console.print(f"executor: {summary.about.executor}", highlight=False)
    best = f"best by validation: round {summary.best_round}; " if summary.best_round else ""
    console.print(f"{best}everything is in {out}", highlight=False)
    console.print(report, highlight=False, markup=False, soft_wrap=True)
