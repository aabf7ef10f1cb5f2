"""The options of a run in the nested form of config files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.config.schema import to_config_value
from equipoise.methods import find_method
from equipoise.settings.option_registry import options
from equipoise.tasks import find_task
from equipoise.utils.config_file import NAMED_SECTIONS
from equipoise.utils.errors import UsageError


def nested_options(config: Mapping[str, Any], with_defaults: bool = False) -> dict[str, Any]:
    """Group options by their owner, so that a config file reads like a description of the run.

    Args:
        config: Options by name, as in the `config.json` of a run.
        with_defaults: Whether to include options that have their default.

    Returns:
        Options of the run at the top; `method`, `task` and other owners as sections.
    """
    try:
        known = options(find_method(config["method"]), find_task(config["task"]))
    except UsageError:  # a method or task that was made in Python
        return dict(config)
    sections: dict[str, Any] = {owner: {"name": config[owner]} for owner in NAMED_SECTIONS}
    for name, value in config.items():
        if name in NAMED_SECTIONS or name not in known:
            continue
        option = known[name]
        if not with_defaults and to_config_value(option.default) == value:
            continue
        if option.owner == "run":
            sections[option.name] = value
        else:
            sections.setdefault(option.owner, {})[option.name] = value
    for owner in NAMED_SECTIONS:
        if sections[owner].keys() == {"name"}:
            sections[owner] = sections[owner]["name"]
    return sections
