"""What a user gives, gathered into the options of a run: methods and tasks by name or as values, wrappers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from equipoise.api.results import OnRound, Run, go_on
from equipoise.api.task import Task
from equipoise.core import Method, Schedule
from equipoise.experiment.runner import run as run_settings
from equipoise.methods import find_method, recorded_name
from equipoise.records.run_dir import Folder
from equipoise.settings.loading import settings_of
from equipoise.settings.run_config import ResourceConfig
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import IN_PYTHON, UsageError

GivenMethod: TypeAlias = "str | type[Method] | Method | Wrapped"
"""A method's name, its class, an instance with options of its own, or one of these in a wrapper."""


@dataclass(frozen=True)
class Wrapped:
    """A method with what is put around it, as options of the run: they are recorded, checked and resumed like all."""

    method: GivenMethod
    options: Mapping[str, Any] = field(default_factory=dict)


def private(
    method: GivenMethod,
    *,
    clip: float,
    noise: float = 0.0,
    delta: float | None = None,
    quantile: float | None = None,
) -> Wrapped:
    """The method under differential privacy of whole clients.

    Arguments:
        method: a name, a class, an instance, or what another wrapper gave.
        clip: the L2 norm to which a client's change of the model is clipped.
        noise: standard deviation of the Gaussian noise on each upload, over ``clip``; without it nothing is promised.
        delta: the delta at which epsilon is told.
        quantile: the share of the changes that should stay unclipped: ``clip`` then follows it from round to round.
    """
    given = {"dp_clip": clip, "dp_noise": noise, "dp_delta": delta, "dp_quantile": quantile}
    return Wrapped(method, {name: value for name, value in given.items() if value is not None})


def robust(method: GivenMethod, *, rule: str, share: float | None = None) -> Wrapped:
    """The method under a rule that hostile clients cannot move far; docs/trust.md has the rules.

    Arguments:
        method: a name, a class, an instance, or what another wrapper gave.
        rule: the rule's name, such as ``trust`` or ``trimmed``.
        share: the number that the rule takes: for most, the share of the clients that may lie.
    """
    return Wrapped(method, {"robust": rule if share is None else f"{rule}:{share:g}"})


def secure(method: GivenMethod) -> Wrapped:
    """The method with a server that sees exact sums of uploads alone; docs/privacy.md says what that protects.

    Arguments:
        method: a name, a class, an instance, or what another wrapper gave.
    """
    return Wrapped(method, {"secure": True})


def given_means(processes: int | None, state_memory: float | None) -> ResourceConfig:
    """What a run may use of the machine; ``None`` means not given."""
    given: dict[str, Any] = {"processes": processes, "state_memory": state_memory}
    return ResourceConfig(**{name: value for name, value in given.items() if value is not None})


def gathered(method: GivenMethod, task: str | Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a run by name, ``method`` and ``task`` among them; ``None`` means not given."""
    found = {name: value for name, value in options.items() if value is not None}
    while isinstance(method, Wrapped):
        if twice := [name for name in method.options if name in found]:
            raise UsageError(
                f"'{twice[0]}' is given twice, by a wrapper of the method and beside it: leave one out"
            )
        found |= method.options
        method = method.method
    spec: str | TaskSpec = task.spec if isinstance(task, Task) else task
    if isinstance(task, Task):
        found |= {f"task.{name}": value for name, value in task.options.items()}
    return {**found, "method": method, "task": spec}


def given_in_python(method: object, task: str | Task) -> tuple[type[Method] | None, Task | None]:
    """The class and the task that cannot be found again by the names that a run's config records."""
    kind = method if isinstance(method, type) else type(method)
    unnamed = issubclass(kind, Method) and recorded_name(kind).startswith(f"{IN_PYTHON}:")
    return kind if unnamed else None, task if isinstance(
        task, Task
    ) and task.spec.in_python else None


def label_of(method: GivenMethod) -> str:
    """A method's name, and the options by which it differs from its defaults."""
    if isinstance(method, Wrapped):
        return _labelled(label_of(method.method), method.options)
    if isinstance(method, str):
        return method
    if not isinstance(method, Method):
        return find_method(method).name
    options = {item.name: (getattr(method, item.name), item.default) for item in fields(method)}
    changed = {name: value for name, (value, default) in options.items() if value != default}
    return _labelled(find_method(type(method)).name, changed)


def _labelled(name: str, options: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{option}={value}" for option, value in options.items())])


RUNS = Path("runs")


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
    state_memory: float | None = None,
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
        state_memory: GiB of memory of each process for what its clients hold; what does not fit is kept in files.
        options: any other option of run, training, task or method, as on the command line.

    Returns:
        The finished run.
    """
    usual = {"rounds": rounds, "seed": seed, "model": model, "participation": participation}
    training = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    settings = settings_of(gathered(method, task, {**usual, **training, **options}))
    chosen, means = settings.run, given_means(processes, state_memory)
    folder = Path(out) if out is not None else new_folder(f"{chosen.method}-{chosen.task}")

    def go(watch: OnRound) -> object:
        return run_settings(
            settings,
            folder,
            resume=resume,
            overwrite=overwrite,
            on_round_end=watch,
            resources=means,
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


def new_folder(name: str) -> Path:
    """A folder under ``runs/`` that was not there before."""
    number, name = 1, name.replace(f"{IN_PYTHON}:", "").replace(":", "-").replace("/", "-")
    while True:
        folder = RUNS / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
