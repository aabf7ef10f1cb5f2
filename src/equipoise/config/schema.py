"""Typed configs whose options declare their default, help text and bounds.

The declarations validate values, word error messages, and generate the help and the reference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, Self, get_args, get_origin, get_type_hints

from equipoise.config.schedules import Schedule, Scheduled
from equipoise.utils.errors import UsageError, nearest

AUTO = "auto"
"""The text that options with `auto` take for 0."""
MAX_WHOLE_NUMBER = 2**53
"""Largest whole number of any option: the largest that JSON keeps exactly."""
TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Constraint:
    """Help text and bounds of an option. Infinity is only valid with `high=math.inf`."""

    help: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    auto: bool = False
    """Whether the text `auto` is valid for a number; it is stored as 0."""

    def allows(self, value: Any) -> bool:
        """Tell whether a value is within the bounds."""
        if isinstance(value, str):
            return "\0" not in value and (not self.choices or value in self.choices)
        if isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
            return False
        return (
            (math.isfinite(value) or value == self.high)
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    @property
    def bounds_text(self) -> str:
        """The bounds in words; empty without bounds."""
        if self.choices:
            return f"one of {', '.join(choice or 'nothing' for choice in self.choices)}"
        least, most = (self.low, self.above), (self.high, self.below)
        if least != (None, None) and most != (None, None) and self.high != math.inf:
            left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"in {left}{_first_bound(least):g}, {_first_bound(most):g}{right}"
        words = {
            "at least": self.low,
            "above": self.above,
            "at most": self.high,
            "below": self.below,
        }
        return " or ".join(
            "inf" if bound == math.inf else f"{word} {bound:g}"
            for word, bound in words.items()
            if bound is not None
        )


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] = (),
    auto: bool = False,
) -> Any:
    """Declare an option of a typed config.

    Args:
        default: Default value.
        help: Sentence for the command line and the reference.
        low: Inclusive lower bound.
        high: Inclusive upper bound; `math.inf` allows infinity.
        above: Exclusive lower bound.
        below: Exclusive upper bound.
        choices: Valid texts.
        auto: Whether the text `auto` is valid for a number; it is stored as 0.

    Returns:
        A dataclass field.
    """
    return field(
        default=default,
        metadata={"rule": Constraint(help, low, high, above, below, tuple(choices), auto)},
    )


def with_default(config: type, name: str, default: Any) -> Any:
    """Declare an option of a parent class with another default."""
    return field(
        default=default,
        metadata=next(i for i in dataclasses.fields(config) if i.name == name).metadata,
    )


def constraint_of(item: Field[Any]) -> Constraint:
    """Return the constraint of a dataclass field."""
    rule: Constraint = item.metadata.get("rule", Constraint())
    return rule


@dataclass(frozen=True)
class OptionType:
    """Type of an option."""

    type: type
    allows_schedule: bool = False

    def round_value(self, number: float) -> float:
        """Convert the value of a schedule to the type; integers are rounded."""
        return math.floor(number + 0.5) if self.type is int else float(number)


def option_types(config: type) -> dict[str, OptionType]:
    """Return the types of a config's options by name."""
    return _kinds(config)


@functools.cache
def _kinds(config: type) -> dict[str, OptionType]:
    hints = get_type_hints(config)
    found = {}
    for item in dataclasses.fields(config):
        hint = hints[item.name]
        over_rounds = get_origin(hint) is Scheduled
        found[item.name] = OptionType(get_args(hint)[0] if over_rounds else hint, over_rounds)
    return found


def describe_expected(kind: OptionType, rule: Constraint) -> str:
    """Describe valid values, as the end of an error message."""
    if rule.choices:
        return rule.bounds_text
    words = TYPE_NAMES.get(kind.type, f"of type {getattr(kind.type, '__name__', kind.type)}")
    bounds = f"{' of' if rule.bounds_text.startswith('at ') else ''} {rule.bounds_text}"
    return f"{words}{bounds}".rstrip() + (f", or {AUTO}" if rule.auto else "")


def invalid_value_message(name: str, value: Any, kind: OptionType, rule: Constraint) -> str:
    """Word the error of an invalid value: `lr is -1: must be a number above 0`."""
    near = nearest(value, rule.choices) if rule.choices and isinstance(value, str) else ""
    if isinstance(value, Schedule):
        return f"{name} is {value}: must be {describe_expected(kind, rule)} in every round"
    if isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
        return f"{name} is too large: must be at most 2^53, about {MAX_WHOLE_NUMBER:.0e}"
    return f"{name} is {value!r}: must be {describe_expected(kind, rule)}{near}"


def describe_default(default: Any, rule: Constraint) -> str:
    """Describe default and bounds: `(default: 0.1; above 0)`."""
    shown = str(default) if isinstance(default, Schedule) else repr(default)
    return f"(default: {shown}{'; ' + rule.bounds_text if rule.bounds_text else ''})"


@dataclass(frozen=True)
class Options:
    """Base class of typed configs. All options are validated when a config is created."""

    def __post_init__(self) -> None:
        """Convert and validate all options."""
        known = option_types(type(self))
        found = []
        for item in dataclasses.fields(self):
            kind = known[item.name]
            rule = constraint_of(item)
            value = getattr(self, item.name)
            plain = 0 if rule.auto and value == AUTO else value
            plain = _converted(kind, plain)
            if plain is MISSING or not _allowed(kind, rule, plain):
                found.append(invalid_value_message(item.name, value, kind, rule))
            elif plain is not value:
                object.__setattr__(self, item.name, plain)
        if found:
            raise UsageError("; ".join(found))

    def at(self, round: int, rounds: int) -> Self:
        """Return the config of one round, with schedules replaced by their values."""
        moving: dict[str, Any] = {}
        for name, kind in option_types(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Schedule):
                moving[name] = kind.round_value(value.at(round, rounds))
            elif isinstance(value, Options) and (now := value.at(round, rounds)) is not value:
                moving[name] = now  # a method around another
        return dataclasses.replace(self, **moving) if moving else self


def _converted(kind: OptionType, value: Any) -> Any:
    """Convert a value to the option's type if it is equivalent, otherwise `MISSING`."""
    if (
        kind.type not in TYPE_NAMES
        or type(value) is kind.type
        or (kind.allows_schedule and isinstance(value, Schedule))
    ):
        return value
    if kind.type is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return MISSING
    if kind.type is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return MISSING


def _allowed(kind: OptionType, rule: Constraint, value: Any) -> bool:
    if isinstance(value, Schedule):
        return all(rule.allows(kind.round_value(extreme)) for extreme in value.bounds)
    return kind.type not in TYPE_NAMES or rule.allows(value)


def _first_bound(pair: tuple[float | None, float | None]) -> float:
    return next(bound for bound in pair if bound is not None)
