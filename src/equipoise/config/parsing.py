"""Convert option values from and to text."""

from __future__ import annotations

from typing import Any

from equipoise.config import schedules
from equipoise.config.schedules import Schedule
from equipoise.config.schema import AUTO, Constraint, OptionType, invalid_value_message
from equipoise.utils.errors import UsageError


def parse(name: str, text: str, kind: OptionType, rule: Constraint) -> Any:
    """Parse the value of an option from the command line.

    Args:
        name: Name of the option, for errors.
        text: The value. Text that is not a number may be a schedule.
        kind: Type of the option.
        rule: Bounds of the option, for errors.

    Raises:
        UsageError: If the text is not a value of this type.
    """
    if rule.auto and text == AUTO:
        return 0
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
    """Convert a value from a file or a caller: text is parsed as a schedule if allowed.

    Args:
        name: Name of the option, for errors.
        value: The value.
        kind: Type of the option.

    Raises:
        UsageError: If the text is not a schedule.
    """
    if not (kind.allows_schedule and isinstance(value, str)):
        return value
    try:
        return schedules.parse_schedule(value)
    except UsageError as error:
        raise UsageError(f"{name} is '{value}': {error}") from error


def to_config_value(value: Any) -> Any:
    """Convert a value to JSON or TOML: schedules become text."""
    return str(value) if isinstance(value, Schedule) else value
