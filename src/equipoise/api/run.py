"""Run methods on tasks, and open runs that exist."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from equipoise.api.inputs import (
    GivenMethod,
    gathered,
    given_in_python,
    new_folder,
    resources_from,
)
from equipoise.api.results import OnRound, Run, go_on
from equipoise.api.task import Task
from equipoise.core import Method, Schedule
from equipoise.experiment.runner import run as run_settings
from equipoise.records.run_dir import Folder
from equipoise.settings.loading import settings_of


def run(
    out: str | Path | None = None,
    *,
    method: GivenMethod = "fedavg",
    task: str | Task = "synthetic",
    rounds: int | None = None,
    seed: int | None = None,
    model: str | None = None,
    participation: float | None = None,
    epochs: int | Schedule | None = None,
    lr: float | Schedule | None = None,
    batch_size: int | None = None,
    on_round: OnRound | None = None,
    resume: bool = False,
    overwrite: bool = False,
    log: str = "",
    processes: int | None = None,
    client_memory_gib: float | None = None,
    **options: Any,
) -> Run:
    """Run a method on a task.

    Arguments:
        out: the folder of the run; without it, a new one under ``runs/``.
        method: a name, a class, an instance with options of its own, or one in a wrapper such as :func:`private`.
        task: a name, or a :class:`Task`.
        rounds, seed, model, participation, epochs, lr, batch_size: the usual options; ``None`` is the default's value.
        on_round: called after each round with its record; a text that it gives is the reason to stop there.
        resume: go on with what is in ``out``, if it is the same run.
        overwrite: replace what is in ``out``.
        log: trackers that are told of every round: ``"tensorboard,mlflow"``.
        processes: how many processes share the clients of a round; the result does not depend on it.
        client_memory_gib: GiB of memory of each process for what its clients hold; what does not fit is kept in files.
        options: any other option of run, training, task or method, as on the command line.

    Returns:
        The finished run.
    """
    usual = {"rounds": rounds, "seed": seed, "model": model, "participation": participation}
    training = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    settings = settings_of(gathered(method, task, {**usual, **training, **options}))
    chosen = settings.run
    resources = resources_from(processes, client_memory_gib)
    folder = Path(out) if out is not None else new_folder(f"{chosen.method}-{chosen.task}")

    def go(watch: OnRound) -> object:
        return run_settings(
            settings,
            folder,
            resume=resume,
            overwrite=overwrite,
            on_round_end=watch,
            resources=resources,
        )

    try:
        go_on(Folder(folder), log, on_round, go)
    finally:
        if out is None:
            with contextlib.suppress(OSError):  # stays if there is anything in it
                folder.rmdir()
    return Run(folder, *given_in_python(settings.method, task))


def open(
    folder: str | Path, *, method: type[Method] | None = None, task: Task | None = None
) -> Run:
    """A run's folder, finished or not.

    Arguments:
        folder: where the run is.
        method, task: what the run was given in Python, if it was; needed for its models and to resume it.
    """
    Folder(Path(folder)).demand()
    return Run(Path(folder), method, task)
