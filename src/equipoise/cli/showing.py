"""Runs with progress on the screen, and their results at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from equipoise.experiment.runner import Interrupted, OnMessage, OnRoundEnd
from equipoise.privacy.accountant import describe_spent
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary
from equipoise.report import html, tables
from equipoise.report.terminal import ProgressDisplay, make_console, print_results
from equipoise.report.trackers import RunTrackers
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.ipc import WorkerLost


def to_the_end(
    out: Path,
    settings: RunSettings,
    quiet: bool,
    trackers: RunTrackers,
    done: int,
    go: Callable[[OnRoundEnd], Summary],
) -> int:
    """Run with progress, then show the result as a table of one row.

    Arguments:
        out: the run's folder.
        settings: the run's options.
        quiet: whether nothing is printed but errors.
        trackers: the trackers that are told of every round.
        done: how many rounds had ended before.
        go: runs to the end and calls what it is given after every round.

    Returns:
        The exit code; an interrupted run ends with the command that continues it.
    """
    title = f"{settings.run.method} on {settings.run.task}"
    try:
        with ProgressDisplay(title, settings.run.rounds, quiet, done) as display, trackers:
            summary = go(both(display, trackers))
    except (Interrupted, KeyboardInterrupt):
        print(f"interrupted; go on with: equipoise resume {out}", file=sys.stderr)
        return 1
    except WorkerLost as lost:
        print(
            f"{lost}; the run goes on from its last checkpoint with: equipoise resume {out}",
            file=sys.stderr,
        )
        return 1
    report = html.try_write_report(out)
    if not quiet:
        _show(title, summary, out, report)
    return 0


def telling(quiet: bool) -> OnMessage | None:
    """Remarks of a run go to standard error, beside its results."""
    return None if quiet else lambda remark: print(f"note: {remark}", file=sys.stderr)


def both(display: ProgressDisplay, trackers: RunTrackers) -> OnRoundEnd:
    """One watcher that shows a round and tells the trackers of it."""

    def watch(record: RoundRecord) -> None:
        display(record)
        trackers(record)

    return watch


def _show(title: str, summary: Summary, out: Path, report: str) -> None:
    columns = tables.summary_columns(summary)
    by_method = {summary.about.method: [summary]}
    notes = tables.undefined_notes(by_method, columns)
    console = make_console()
    print_results(title, tables.summary_rows(by_method, columns), columns, console, notes)
    if summary.stopped:
        console.print(f"stopped at round {summary.rounds}: {summary.stopped}", highlight=False)
    if summary.privacy:
        console.print(describe_spent(summary.privacy), highlight=False)
    if summary.about.executor:
        console.print(f"executor: {summary.about.executor}", highlight=False)
    best = f"best by validation: round {summary.best_round}; " if summary.best_round else ""
    console.print(f"{best}everything is in {out}", highlight=False)
    console.print(report, highlight=False, markup=False, soft_wrap=True)
