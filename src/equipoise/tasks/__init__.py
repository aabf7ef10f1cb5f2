"""Tasks: what is learned, one file per kind of task. Every `TaskSpec` in a file is a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from equipoise.core import ExperimentTask, Options, TrainingConfig
from equipoise.utils.discovery import all_declared, find_declared
from equipoise.utils.errors import PYTHON_OBJECT, RESUME_HINT, UsageError

AUTO_MODEL = "auto"
"""Stands for the model with the best validation score."""


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
    build: Callable[[Any, str, TrainingConfig, int], ExperimentTask]
    """``(config, model, training, seed) -> task``."""
    training_of: Callable[[Any], TrainingConfig] | None = None
    """From the task's options to its defaults of local training, if they depend on them."""
    patience: int = 0
    """Evaluations without a better validation score after which a run stops; 0 for never."""
    first_methods: tuple[str, ...] = ("fedavg", "local", "finetune")
    """Methods that a comparison runs unless others are named, the simplest first; `method@model`
    gives one another model. Of candidates that validation rows cannot tell apart the first is
    chosen."""
    in_python: bool = False
    """Whether it was made by the user's own Python code, and cannot be found again by its name."""

    def default_training(self, config: Any) -> TrainingConfig:
        """Return the defaults of local training.

        Args:
            config: Options of the task.
        """
        return self.training if self.training_of is None else self.training_of(config)

    @property
    def recorded_name(self) -> str:
        """How a run's config names it."""
        return f"{PYTHON_OBJECT}:{self.name}" if self.in_python else self.name


def all_tasks() -> dict[str, TaskSpec]:
    """Return every task of this package by name."""
    return all_declared((__name__,), _tasks_in)


def find_task(name: str | TaskSpec) -> TaskSpec:
    """Find a task.

    Args:
        name: A task's name, or a task that was made in Python.

    Returns:
        How the task is configured and built.

    Raises:
        UsageError: If there is no such task; the message names the nearest one.
    """
    if isinstance(name, TaskSpec):
        return name
    if not isinstance(name, str):
        raise UsageError(f"task is {name!r}: give a name, or an equipoise.Task")
    if name.startswith(f"{PYTHON_OBJECT}:"):
        class_name = name.partition(":")[2]
        raise UsageError(
            f"task '{class_name}' was made in Python: go on with {RESUME_HINT.format('task')}"
        )
    return find_declared("task", name, (__name__,), _tasks_in)


def _tasks_in(module: ModuleType) -> dict[str, TaskSpec]:
    """Return the tasks that a module declares, by name."""
    return {item.name: item for item in vars(module).values() if isinstance(item, TaskSpec)}
