"""What is learned, one file per task: ``two-state`` is the ``SPEC`` in ``two_state.py``; a new task is a new file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.contract import Options, Task, TrainingConfig
from equipoise.core.errors import AGAIN, IN_PYTHON, UsageError, nearest


@dataclass(frozen=True)
class TaskSpec:
    """How a task is configured and built."""

    name: str
    help: str
    config: type[Options]
    """A dataclass whose fields are the task's options."""
    training: TrainingConfig
    """The task's own defaults of local training."""
    models: tuple[str, ...]
    """Models that it takes, the default first; none where the task brings its own."""
    build: Callable[[Any, str, TrainingConfig, int], Task]
    """``(config, model, training, seed) -> task``."""
    in_python: bool = False
    """Whether it was made by the user's own Python code, and cannot be found again by its name."""

    @property
    def recorded_name(self) -> str:
        """How a run's config names it."""
        return f"{IN_PYTHON}:{self.name}" if self.in_python else self.name


def all_tasks() -> dict[str, TaskSpec]:
    """Every task that ships, by name."""
    found: dict[str, TaskSpec] = {}
    for info in pkgutil.iter_modules(__path__):
        spec = getattr(importlib.import_module(f"{__name__}.{info.name}"), "SPEC", None)
        if spec is not None:
            found[spec.name] = spec
    return dict(sorted(found.items()))


def find_task(wanted: str | TaskSpec) -> TaskSpec:
    """A task by name, or as it was made in Python."""
    if isinstance(wanted, TaskSpec):
        return wanted
    if not isinstance(wanted, str):
        raise UsageError(f"task is {wanted!r}: give a name, or an equipoise.Task")
    if wanted.startswith(f"{IN_PYTHON}:"):
        name = wanted.partition(":")[2]
        raise UsageError(f"task '{name}' was made in Python: go on with {AGAIN.format('task')}")
    file = wanted.replace("-", "_")
    if file.isidentifier() and importlib.util.find_spec(f"{__name__}.{file}") is not None:
        spec = getattr(importlib.import_module(f"{__name__}.{file}"), "SPEC", None)
        if isinstance(spec, TaskSpec):
            return spec
    raise UsageError(f"unknown task '{wanted}'{nearest(wanted, all_tasks())}; see 'equipoise list tasks'")
