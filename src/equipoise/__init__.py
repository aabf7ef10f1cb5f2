"""Federated learning among clients that differ: one round, six decisions, each a constant, a schedule or an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.core.errors import UsageError
from equipoise.records.summary import Summary

__all__ = ["UsageError", "add_task", "run"]
__version__ = "0.1.0"


def run(out: str | Path, *, resume: bool = False, overwrite: bool = False, log: str = "", **options: Any) -> Summary:
    """Run a method on a task; the options are those of the command line (``method="fedprox", mu=0.1, rounds=50``).

    Gives the summary that is also in ``out/summary.json``; with the extra ``report``, ``out/report.html`` shows it.
    ``log`` names trackers that are told of every round: ``"tensorboard,mlflow"``.
    """
    from equipoise.records.folder import Folder
    from equipoise.report.page import html
    from equipoise.report.trackers.tracking import Tracking
    from equipoise.runs.running import run as run_settings
    from equipoise.settings.config import Settings

    settings, done = Settings.of(options), len(Folder(Path(out)).records()) if resume else 0
    with Tracking(log, Path(out), done) as tracking:
        summary = run_settings(settings, out, resume=resume, overwrite=overwrite, watch=tracking)
    html.offer(Path(out))
    return summary


def __getattr__(name: str) -> Any:
    """``equipoise.add_task``, which loads PyTorch only when it is asked for."""
    if name == "add_task":
        from equipoise.tasks.own import add_task

        return add_task
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
