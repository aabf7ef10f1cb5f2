"""Convert the arguments of Python calls (names, classes, instances, wrappers) to options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeAlias

from equipoise.api.task import Task
from equipoise.core import Method
from equipoise.methods import find_method, recorded_name
from equipoise.settings.resources import ResourceConfig
from equipoise.tasks import TaskSpec
from equipoise.tasks.rl_deep import env_kwargs_text
from equipoise.utils.errors import PYTHON_OBJECT, UsageError

GivenMethod: TypeAlias = "str | type[Method] | Method | Wrapped"
"""A method's name, its class, an instance with options of its own, or one of these in a wrapper."""


@dataclass(frozen=True)
class Wrapped:
    """A method with wrappers, which are stored as options of the run."""

    method: GivenMethod
    options: Mapping[str, object] = field(default_factory=dict)


def private(
    method: GivenMethod,
    *,
    clip: float,
    noise: float = 0.0,
    delta: float | None = None,
    quantile: float | None = None,
    max_epsilon: float | None = None,
) -> Wrapped:
    """Add client-level differential privacy to a method.

    Args:
        method: A name, a class, an instance, or the result of another wrapper.
        clip: L2 norm to which the update of a client is clipped.
        noise: Standard deviation of the Gaussian noise on each upload, relative to ``clip``;
            without noise there is no guarantee.
        delta: Delta at which epsilon is reported.
        quantile: Share of the updates that should stay unclipped; ``clip`` then adapts to it.
        max_epsilon: End the run before epsilon passes this; without ``noise``, choose the noise
            for the planned rounds.

    Returns:
        The wrapped method.
    """
    given = {
        "dp_clip": clip,
        "dp_noise": noise,
        "dp_delta": delta,
        "dp_quantile": quantile,
        "max_epsilon": max_epsilon,
    }
    return Wrapped(method, {name: value for name, value in given.items() if value is not None})


def robust(method: GivenMethod, *, rule: str, share: float | None = None) -> Wrapped:
    """Add robust aggregation to a method; docs/how-to/trust.md has the rules.

    Args:
        method: A name, a class, an instance, or the result of another wrapper.
        rule: Name of the rule, such as ``trust`` or ``trimmed``.
        share: Parameter of the rule: for most, the share of hostile clients.

    Returns:
        The wrapped method.
    """
    return Wrapped(method, {"robust": rule if share is None else f"{rule}:{share:g}"})


def secure(method: GivenMethod) -> Wrapped:
    """Add secure aggregation to a method: the server sees only sums; see docs/how-to/privacy.md.

    Args:
        method: A name, a class, an instance, or the result of another wrapper.

    Returns:
        The wrapped method.
    """
    return Wrapped(method, {"secure": True})


def resources_from(processes: int | None, client_memory_gib: float | None) -> ResourceConfig:
    """Return the resource limits of a run; None means the default."""
    default = ResourceConfig()
    return ResourceConfig(
        default.processes if processes is None else processes,
        default.client_memory_gib if client_memory_gib is None else client_memory_gib,
    )


def merge_options(
    method: GivenMethod, task: str | Task, options: Mapping[str, object]
) -> dict[str, object]:
    """Merge method, task and options into one set of options.

    Args:
        method: The method, possibly wrapped.
        task: The task.
        options: Other options; None means not given.

    Returns:
        Options by name, with ``method`` and ``task``.

    Raises:
        UsageError: If a wrapper and the options set the same option.
    """
    merged = {name: value for name, value in options.items() if value is not None}
    if callable(merged.get("env_id")):
        raise UsageError(
            "env_id is the name of an environment: give a class or function as "
            "task=equipoise.Task.from_environment(...)"
        )
    if isinstance(merged.get("env_kwargs"), Mapping | list | tuple):
        merged["env_kwargs"] = env_kwargs_text(merged["env_kwargs"])  # type: ignore[arg-type]
    while isinstance(method, Wrapped):
        if twice := [name for name in method.options if name in merged]:
            raise UsageError(
                f"'{twice[0]}' is given twice, by a wrapper of the method and beside it: leave one "
                "out"
            )
        merged |= method.options
        method = method.method
    spec: str | TaskSpec = task.spec if isinstance(task, Task) else task
    if isinstance(task, Task):
        merged |= {f"task.{name}": value for name, value in task.options.items()}
    return {**merged, "method": method, "task": spec}


def python_parts(method: object, task: str | Task) -> tuple[type[Method] | None, Task | None]:
    """Return the parts of a run that its config cannot restore.

    Args:
        method: The method.
        task: The task.

    Returns:
        The class of the method and the task, each None if it can be found by name.
    """
    kind = method if isinstance(method, type) else type(method)
    unnamed = issubclass(kind, Method) and recorded_name(kind).startswith(f"{PYTHON_OBJECT}:")
    method_class = kind if unnamed else None
    if isinstance(task, Task) and task.spec.in_python:
        return method_class, task
    return method_class, None


def label_of(method: GivenMethod) -> str:
    """Return the name of a method with the options that differ from their defaults."""
    if isinstance(method, Wrapped):
        return _append_options(label_of(method.method), method.options)
    if isinstance(method, str):
        return method
    if not isinstance(method, Method):
        return find_method(method).name
    options = {item.name: (getattr(method, item.name), item.default) for item in fields(method)}
    changed = {name: value for name, (value, default) in options.items() if value != default}
    return _append_options(find_method(type(method)).name, changed)


def _append_options(name: str, options: Mapping[str, object]) -> str:
    """Append options to a name."""
    return " ".join([name, *(f"{option}={value}" for option, value in options.items())])


RUNS_FOLDER = Path("runs")


def new_folder(name: str) -> Path:
    """Create a new folder under ``runs/``."""
    number = 1
    name = name.replace(f"{PYTHON_OBJECT}:", "").replace(":", "-").replace("/", "-")
    while True:
        folder = RUNS_FOLDER / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
