"""Turn what a user gives in Python (names, classes, instances, wrapped methods) into options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from equipoise.api.task import Task
from equipoise.core import Method
from equipoise.methods import find_method, recorded_name
from equipoise.settings.run_config import ResourceConfig
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import PYTHON_OBJECT, UsageError

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


def given_means(processes: int | None, client_memory_gib: float | None) -> ResourceConfig:
    """What a run may use of the machine; ``None`` means not given."""
    given: dict[str, Any] = {"processes": processes, "client_memory_gib": client_memory_gib}
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
    unnamed = issubclass(kind, Method) and recorded_name(kind).startswith(f"{PYTHON_OBJECT}:")
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


def new_folder(name: str) -> Path:
    """A folder under ``runs/`` that was not there before."""
    number, name = 1, name.replace(f"{PYTHON_OBJECT}:", "").replace(":", "-").replace("/", "-")
    while True:
        folder = RUNS / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
