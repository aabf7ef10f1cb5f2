"""Values of options as text: how they are typed, and how files keep schedules."""

from __future__ import annotations

from typing import Any

from equipoise.config import schedules
from equipoise.config.schedules import Schedule
from equipoise.config.schema import Constraint, OptionType, invalid_value_message
from equipoise.utils.errors import UsageError


def parse(name: str, text: str, kind: OptionType, rule: Constraint) -> Any:
    """An option's value from its text; what is no number may be a schedule."""
    if kind.type is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind.type is not bool:
            return kind.type(text)
    except ValueError:
        if kind.allows_schedule and "(" in text:
            return from_config_value(name, text, kind)
    raise UsageError(invalid_value_message(name, text, kind, rule))


def from_config_value(name: str, value: Any, kind: OptionType) -> Any:
    """An option's value from what a file or a caller gives: text is a schedule where a number may be one."""
    if not (kind.allows_schedule and isinstance(value, str)):
        return value
    try:
        return schedules.parse_schedule(value)
    except UsageError as error:
        raise UsageError(f"{name} is '{value}': {error}") from error


def to_config_value(value: Any) -> Any:
    """What JSON and TOML keep of a value."""
    return str(value) if isinstance(value, Schedule) else value
