"""Run methods on tasks, and open existing runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from equipoise.api.callbacks import Callback, Trackers, run_with_callbacks
from equipoise.api.errors import speaks_python
from equipoise.api.inputs import (
    GivenMethod,
    merge_options,
    new_folder,
    python_parts,
    resources_from,
)
from equipoise.api.results import Chosen, OnRound, Run
from equipoise.api.task import Task
from equipoise.core import Method, Schedule
from equipoise.experiment.compare import with_table_defaults
from equipoise.experiment.model_choice import choose_model
from equipoise.experiment.runner import run as run_settings
from equipoise.experiment.site_models import find_models, read_choice
from equipoise.methods import all_methods
from equipoise.records.run_dir import RunFolder
from equipoise.settings.loading import settings_of
from equipoise.tasks import AUTO_MODEL
from equipoise.utils.errors import UsageError


@speaks_python
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
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    overwrite: bool = False,
    log: str = "",
    processes: int | None = None,
    client_memory_gib: float | None = None,
    **options: object,
) -> Run:
    """Run a method on a task.

    Args:
        out: Folder of the run; a new one under ``runs/`` if None.
        method: A name, a class, an instance with options, or a wrapped method, see
            :func:`private`.
        task: A name, or a :class:`Task`.
        rounds: Federated rounds. None, here and below, means the default.
        seed: Seed of data, initial model, cohorts and batches.
        model: Name of the model.
        participation: Share of the clients that take part in a round.
        epochs: Local epochs per round.
        lr: Learning rate of local SGD.
        batch_size: Samples per local step.
        on_round: Called after each round with its record; may return a reason to stop.
        callbacks: Callbacks such as ``equipoise.callbacks.EarlyStopping("personal.auc")``.
        resume: Whether to continue the run in ``out``, if it is the same run.
        overwrite: Whether to replace the run in ``out``.
        log: Trackers that receive every round: ``"tensorboard,mlflow"``.
        processes: Processes that share the clients of a round; does not affect the result.
        client_memory_gib: Memory of each process for client state, in GiB; the rest spills to
            disk.
        options: Any other option of run, training, task or method, as on the command line.

    Returns:
        The finished run.

    Raises:
        UsageError: If options do not fit together, or ``out`` is in use.
    """
    if isinstance(out, str) and out in all_methods():
        raise UsageError(
            f"'{out}' is a method: say method='{out}'; the first argument is the folder of the run"
        )
    usual = {"rounds": rounds, "seed": seed, "model": model, "participation": participation}
    training = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    given = merge_options(method, task, {**usual, **training, **options})
    settings = settings_of(with_table_defaults(given))
    resources = resources_from(processes, client_memory_gib)
    if settings.run.model == AUTO_MODEL:
        settings = choose_model(settings, None, resources)
    run_config = settings.run
    trackers = [Trackers(log)] if log else []
    folder = Path(out) if out is not None else new_folder(f"{run_config.method}-{run_config.task}")

    train = partial(
        run_settings, settings, folder, resume=resume, overwrite=overwrite, resources=resources
    )
    result = Run(folder, *python_parts(settings.method, task))
    try:
        run_with_callbacks(result, run_config.rounds, [*callbacks, *trackers], on_round, train)
    finally:
        if out is None:
            with contextlib.suppress(OSError):  # keep the folder if it is not empty
                folder.rmdir()
    return result


@speaks_python
def open(
    folder: str | Path, *, method: type[Method] | None = None, task: Task | None = None
) -> Run:
    """Open the folder of a run, finished or not.

    Args:
        folder: Folder of the run.
        method: Class of its method, if that was given in Python; needed to resume it.
        task: Its task, if that was made in Python; needed for its models and to resume it.

    Returns:
        The run.

    Raises:
        UsageError: If the folder holds no run.
    """
    RunFolder(Path(folder)).demand()
    return Run(Path(folder), method, task)


@speaks_python
def open_choice(folder: str | Path, *, task: Task | None = None) -> Chosen:
    """Open the folder of a choice, or that of a comparison with a choice.

    Args:
        folder: Folder that ``equipoise choose`` or :meth:`Comparison.choose` wrote.
        task: Its task, if that was made in Python.

    Returns:
        The chosen models.

    Raises:
        UsageError: If the folder holds no choice.
    """
    path = find_models(Path(folder))
    read_choice(path)
    return Chosen(path, task)
