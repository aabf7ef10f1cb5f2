"""Values of options as text: how they are typed, and how files keep schedules."""

from __future__ import annotations

from typing import Any

from equipoise.config import schedules
from equipoise.config.schedules import Schedule
from equipoise.config.schema import Constraint, OptionType, refusal
from equipoise.utils.errors import UsageError


def parse(name: str, text: str, kind: OptionType, rule: Constraint) -> Any:
    """An option's value from its text; what is no number may be a schedule."""
    if kind.type is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if kind.type is not bool:
            return kind.type(text)
    except ValueError:
        if kind.over_rounds and "(" in text:
            return from_file(name, text, kind)
    raise UsageError(refusal(name, text, kind, rule))


def from_file(name: str, value: Any, kind: OptionType) -> Any:
    """An option's value from what a file or a caller gives: text is a schedule where a number may be one."""
    if not (kind.over_rounds and isinstance(value, str)):
        return value
    try:
        return schedules.read(value)
    except UsageError as error:
        raise UsageError(f"{name} is '{value}': {error}") from error


def to_file(value: Any) -> Any:
    """What JSON and TOML keep of a value."""
    return str(value) if isinstance(value, Schedule) else value
