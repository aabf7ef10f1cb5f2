"""Make the settings of a run from Python values or from the options that its folder records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from equipoise.core import Method
from equipoise.methods import find_method, recorded_name, usual_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks import TaskSpec, find_task
from equipoise.utils.errors import PYTHON_OBJECT, UsageError


def settings_of(given: Mapping[str, Any]) -> ExperimentConfig:
    """Return settings from options whose method and task may be Python values.

    Args:
        given: Options by name. ``method`` is a name, a class, or an instance, whose options then
            count; ``task`` is a name or a task specification.

    Returns:
        The settings.

    Raises:
        UsageError: If an option is unknown, wrong or given twice.
    """
    given = dict(given)
    method = given.get("method", usual_method(given.get("model")))
    if isinstance(method, Method):
        # Full names cannot be options of the task; an option that is also in given is refused.
        for item in dataclasses.fields(method):
            given[f"method.{item.name}"] = getattr(method, item.name)
        method = type(method)
    return ExperimentConfig.from_options({**given, "method": method})


def settings_in(
    config: Mapping[str, Any], method: type[Method] | None = None, task: TaskSpec | None = None
) -> ExperimentConfig:
    """Return the settings of a run.

    Args:
        config: Options of the run, from ``RunFolder.read_config``.
        method: Class of its method, if that was given in Python.
        task: Its task, if that was made in Python.

    Returns:
        The settings.

    Raises:
        UsageError: If the run has another method or task.
    """
    recorded: dict[str, str] = {}
    values: dict[str, Any] = {}
    if method is not None:
        recorded["method"] = recorded_name(find_method(method))
        values["method"] = method
    if task is not None:
        recorded["task"] = find_task(task).recorded_name
        values["task"] = task
    for option, name in recorded.items():
        if config.get(option) != name:
            raise UsageError(
                f"the run has {option} '{config.get(option)}', not '{name}': give that one"
            )
    return ExperimentConfig.from_options({**config, **values})


def settings_like(settings: ExperimentConfig, config: Mapping[str, Any]) -> ExperimentConfig:
    """Return the settings of a run that may use the same Python method or task.

    Args:
        settings: Settings whose method and task are used if they were made in Python.
        config: Options of the run, from ``RunFolder.read_config``.

    Returns:
        The settings of the run.
    """
    method = type(settings.method) if settings.run.method.startswith(f"{PYTHON_OBJECT}:") else None
    return settings_in(config, method, settings.task_spec if settings.task_spec.in_python else None)
