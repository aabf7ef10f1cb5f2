"""How to repeat a run: the command, and every option with its value."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from equipoise.config.parsing import to_file
from equipoise.methods import find_method
from equipoise.report.reading import Group
from equipoise.settings.option_registry import options
from equipoise.tasks import find_task
from equipoise.utils.errors import UsageError


def repeat(groups: Sequence[Group], command: str) -> str:
    """The command, and every option with its value."""
    configs = "".join(
        f"<details><summary>Configuration: {escape(group.label)}</summary>"
        f"<pre>{escape(json.dumps(group.first.config, indent=1))}</pre></details>"
        for group in groups
    )
    return f"<pre>{escape(command)}</pre>{configs}"


def command(config: dict[str, Any]) -> str:
    """What to type for this run: the options that are not at their defaults."""
    words = ["equipoise", "run", "--method", config["method"], "--task", config["task"]]
    try:
        known = options(find_method(config["method"]), find_task(config["task"]))
    except UsageError:  # a method or task of somebody's own, which is not here
        known = {}
    for name, value in config.items():
        if name in ("method", "task") or (name in known and to_file(known[name].default) == value):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return shlex.join(words)
