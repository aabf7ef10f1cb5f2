"""What is learned, one file a task: ``two-state`` is the ``SPEC`` in ``two_state.py``; a new task is a new file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.contract import Options, Task, Training
from equipoise.core.errors import UsageError, nearest


@dataclass(frozen=True)
class TaskSpec:
    """How a task is configured and built."""

    name: str
    help: str
    config: type[Options]
    """A dataclass whose fields are the task's options."""
    training: Training
    """The task's own defaults of local training."""
    models: tuple[str, ...]
    """Models that it takes, the default first; none where the task brings its own."""
    build: Callable[[Any, str, Training, int], Task]
    """``(config, model, training, seed) -> task``."""


_ADDED: dict[str, TaskSpec] = {}


def add(spec: TaskSpec) -> None:
    """Make a task of the user's own known by its name, in this process."""
    if spec.name not in _ADDED and spec.name in all_tasks():
        raise UsageError(f"task '{spec.name}' exists already: choose another name for yours")
    _ADDED[spec.name] = spec


def all_tasks() -> dict[str, TaskSpec]:
    """Every task that ships or was added, by name."""
    found = dict(_ADDED)
    for info in pkgutil.iter_modules(__path__):
        spec = getattr(importlib.import_module(f"{__name__}.{info.name}"), "SPEC", None)
        if spec is not None:
            found[spec.name] = spec
    return dict(sorted(found.items()))


def find_task(name: str) -> TaskSpec:
    if name in _ADDED:
        return _ADDED[name]
    file = name.replace("-", "_")
    if file.isidentifier() and importlib.util.find_spec(f"{__name__}.{file}") is not None:
        spec = getattr(importlib.import_module(f"{__name__}.{file}"), "SPEC", None)
        if isinstance(spec, TaskSpec):
            return spec
    raise UsageError(f"unknown task '{name}'{nearest(name, all_tasks())}; see 'equipoise list tasks'")
