"""Federated learning among clients that differ: one round, six decisions, each a constant, a schedule or an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.errors import UsageError

__all__ = ["UsageError", "add_task", "run"]
__version__ = "0.1.0"


def run(out: str | Path, *, resume: bool = False, overwrite: bool = False, **options: Any) -> dict[str, Any]:
    """Run a method on a task; the options are those of the command line (``method="fedprox", mu=0.1, rounds=50``).

    Gives the summary that is also in ``out/summary.json``; with the extra ``report``, ``out/report.html`` shows it.
    """
    from equipoise.config import Settings
    from equipoise.report import html
    from equipoise.runs import run as run_settings

    summary = run_settings(Settings.of(options), out, resume=resume, overwrite=overwrite)
    html.offer(Path(out))
    return summary


def __getattr__(name: str) -> Any:
    """``equipoise.add_task``, which loads PyTorch only when it is asked for."""
    if name == "add_task":
        from equipoise.tasks.own import add_task

        return add_task
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
