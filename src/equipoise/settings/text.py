"""Values of options as text: how they are typed on a command line, and how files keep schedules."""

from __future__ import annotations

from typing import Any

from equipoise.core import schedules
from equipoise.core.errors import UsageError
from equipoise.core.options import refusal
from equipoise.core.schedules import Schedule
from equipoise.settings.names import Option


def parse(item: Option, text: str) -> Any:
    """An option's value from its text on the command line."""
    kind = item.kind.type
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(refusal(item.name, text, item.kind, item.rule))
    try:
        return kind(text)
    except ValueError as error:
        if item.kind.over_rounds and "(" in text:
            return from_file(item, text)
        raise UsageError(refusal(item.name, text, item.kind, item.rule)) from error


def from_file(item: Option, value: Any) -> Any:
    """An option's value from what a file or a caller gives: text is a schedule where a number may be one."""
    if not (item.kind.over_rounds and isinstance(value, str)):
        return value
    try:
        return schedules.read(value)
    except UsageError as error:
        raise UsageError(f"{item.name} is '{value}': {error}") from error


def to_file(value: Any) -> Any:
    """What JSON and TOML keep of a value."""
    return str(value) if isinstance(value, Schedule) else value
