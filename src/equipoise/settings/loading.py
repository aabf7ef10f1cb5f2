"""Methods and tasks as they are given, names or values, and as a run's ``config.json`` records them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.core import Method
from equipoise.methods import find_method, recorded_name
from equipoise.settings.run_settings import RunSettings
from equipoise.tasks import TaskSpec, find_task
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import PYTHON_OBJECT, UsageError


def settings_of(given: Mapping[str, Any]) -> RunSettings:
    """Settings whose ``method`` may also be a class or an instance, whose options then count, and ``task`` a value."""
    given, method = dict(given), given.get("method", "fedavg")
    if isinstance(method, Method):
        # By their full names, which no option of the task can have; one that is given beside them is refused.
        own = {
            f"method.{item.name}": getattr(method, item.name) for item in dataclasses.fields(method)
        }
        given, method = {**given, **own}, type(method)
    return RunSettings.from_options({**given, "method": method})


def settings_in(
    config: Path, method: type[Method] | None = None, task: TaskSpec | None = None
) -> RunSettings:
    """Those of a run's ``config.json``; ``method`` and ``task``: what the run was given in Python."""
    given = read_config(config)
    asked = {
        "method": method and recorded_name(find_method(method)),
        "task": task and find_task(task).recorded_name,
    }
    for what, name in asked.items():
        if name and given.get(what) != name:
            raise UsageError(
                f"'{config.parent}' is a run with {what} '{given.get(what)}', not '{name}': give that one"
            )
    values = {"method": method, "task": task}
    return RunSettings.from_options(
        {**given, **{what: value for what, value in values.items() if value is not None}}
    )


def settings_like(settings: RunSettings, config: Path) -> RunSettings:
    """Those of a run's ``config.json``, with the method and task of these settings where Python made them."""
    method = type(settings.method) if settings.run.method.startswith(f"{PYTHON_OBJECT}:") else None
    return settings_in(config, method, settings.task_spec if settings.task_spec.in_python else None)
