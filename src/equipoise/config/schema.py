"""Typed configs whose options declare their default, help text and bounds.

The declarations validate values, word error messages, and generate the help and the reference. The
value of an option may be a schedule over the rounds of a run:

>>> cosine(0.1, 0.001).at(1, 100)
0.1
>>> str(steps({0: 1, 50: 5}))
'steps({0: 1, 50: 5})'
"""

from __future__ import annotations

import ast
import dataclasses
import math
import numbers
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field
from typing import Any, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

from equipoise.utils.errors import UsageError, did_you_mean

Number = TypeVar("Number", int, float)


class Schedule(ABC):
    """A value for every round. `parse_schedule(str(schedule))` restores it."""

    @abstractmethod
    def at(self, round: int, rounds: int) -> float:
        """Return the value in a round.

        Args:
            round: Round, from 1 on. Rounds after the last one have its value.
            rounds: Number of rounds of the run.
        """

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, ...]:
        """Values that bound all others: if they are valid, the value of every round is."""


class Scheduled(Generic[Number]):
    """Type of an option that may be a number or a schedule.

    Only for type checkers: the config holds the value itself. Hooks read numbers, because
    `Options.at` resolves schedules before each round.
    """

    def __get__(self, instance: object, owner: type) -> Number:
        """Return the value of the round."""
        raise NotImplementedError

    def __set__(self, instance: object, value: Number | Schedule) -> None:
        """Set a constant or a schedule."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Interpolation(Schedule):
    """Interpolation from the first to the last round."""

    start: float
    end: float

    def at(self, round: int, rounds: int) -> float:
        progress = self.progress((min(round, rounds) - 1) / (rounds - 1)) if rounds > 1 else 0.0
        return self.start * (1 - progress) + self.end * progress

    @abstractmethod
    def progress(self, time: float) -> float:
        """Map relative time in [0, 1] to relative progress from start to end in [0, 1]."""

    @property
    def bounds(self) -> tuple[float, ...]:
        return self.start, self.end

    def __str__(self) -> str:
        ends = f"{_format_number(self.start)}, {_format_number(self.end)}"
        return f"{type(self).__name__.lower()}({ends})"


class Linear(_Interpolation):
    """See :func:`linear`."""

    def progress(self, time: float) -> float:
        """Return the time itself."""
        return time


class Cosine(_Interpolation):
    """See :func:`cosine`."""

    def progress(self, time: float) -> float:
        """Return `(1 - cos(pi t)) / 2`."""
        return (1 - math.cos(math.pi * time)) / 2


@dataclass(frozen=True)
class Steps(Schedule):
    """See :func:`steps`."""

    values: tuple[tuple[int, float], ...]
    """Pairs of completed rounds and the value after them, ascending."""

    def at(self, round: int, rounds: int) -> float:
        """Return the value of the last step before the round."""
        return next(value for first, value in reversed(self.values) if first < round)

    @property
    def bounds(self) -> tuple[float, ...]:
        """All values."""
        return tuple(value for _, value in self.values)

    def __str__(self) -> str:
        """Return the schedule as it is written in options."""
        steps = (f"{first}: {_format_number(value)}" for first, value in self.values)
        return f"steps({{{', '.join(steps)}}})"


@dataclass(frozen=True)
class Constant(Schedule):
    """See :func:`constant`."""

    value: float

    def at(self, round: int, rounds: int) -> float:
        """Return the value."""
        return self.value

    @property
    def bounds(self) -> tuple[float, ...]:
        """The value."""
        return (self.value,)

    def __str__(self) -> str:
        """Return the schedule as it is written in options."""
        return f"constant({_format_number(self.value)})"


def cosine(start: float, end: float) -> Schedule:
    """Create a half-cosine schedule from `start` in the first round to `end` in the last."""
    return Cosine(_check_number(start), _check_number(end))


def linear(start: float, end: float) -> Schedule:
    """Create a linear schedule from `start` in the first round to `end` in the last."""
    return Linear(_check_number(start), _check_number(end))


def steps(values: Mapping[int, float]) -> Schedule:
    """Create a piecewise constant schedule.

    Args:
        values: Values by the number of completed rounds: `{0: 1, 50: 5}` is 5 from round 51 on.

    Returns:
        The schedule.

    Raises:
        UsageError: If there is no value at 0, or a key is not a whole number of at least 0.
    """
    is_invalid = not isinstance(values, Mapping) or any(
        type(first) is not int or first < 0 for first in values
    )
    if is_invalid or 0 not in values:
        raise UsageError(
            "steps takes values by the rounds done before, from 0 on, such as steps({0: 1, 50: 5})"
        )
    return Steps(tuple((first, _check_number(values[first])) for first in sorted(values)))


def constant(value: float) -> Schedule:
    """Create a schedule with the same value in all rounds."""
    return Constant(_check_number(value))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "cosine": cosine,
    "linear": linear,
    "steps": steps,
    "constant": constant,
}


def value_at(value: float | Schedule, round: int, rounds: int) -> float:
    """Return a number unchanged, or the value of a schedule in a round.

    Args:
        value: A number, or a schedule over rounds.
        round: The round, from 1 on.
        rounds: Rounds of the run.
    """
    return value.at(round, rounds) if isinstance(value, Schedule) else value


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule such as `cosine(0.1, 0.001)`.

    Raises:
        UsageError: If the text is not a schedule.
    """
    example = (
        "must be a number or a schedule, such as cosine(0.1, 0.001); "
        f"there are {', '.join(SCHEDULES)}"
    )
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            raise UsageError(example)
        return SCHEDULES[call.func.id](*(ast.literal_eval(argument) for argument in call.args))
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise UsageError(example) from error


def _check_number(value: float) -> float:
    """Return a number as a float; refuse what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"a schedule goes over numbers, and {value!r} is none")
    return float(value)


def _format_number(value: float) -> str:
    """Write a number so that it is read back to the bit, without a decimal point if it is whole."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


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
        lower = self.low if self.above is None else self.above
        upper = self.high if self.below is None else self.below
        if lower is not None and upper is not None and self.high != math.inf:
            left = "[" if self.above is None else "("
            right = "]" if self.below is None else ")"
            return f"in {left}{lower:g}, {upper:g}{right}"
        bounds = {
            "at least": self.low,
            "above": self.above,
            "at most": self.high,
            "below": self.below,
        }
        return " or ".join(
            "inf" if bound == math.inf else f"{relation} {bound:g}"
            for relation, bound in bounds.items()
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
    """Declare an option of a parent class with another default.

    Args:
        config: The parent class, which declares the option.
        name: Name of the option.
        default: The default in the subclass.

    Returns:
        The field, for the body of the subclass.
    """
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


_OPTION_TYPES: weakref.WeakKeyDictionary[type, Mapping[str, OptionType]] = (
    weakref.WeakKeyDictionary()
)


def option_types(config: type) -> Mapping[str, OptionType]:
    """Return the types of a config's options by name; each class is looked at once."""
    known = _OPTION_TYPES.get(config)
    if known is not None:
        return known
    hints = get_type_hints(config)
    types: dict[str, OptionType] = {}
    for item in dataclasses.fields(config):
        hint = hints[item.name]
        allows_schedule = get_origin(hint) is Scheduled
        value_type = get_args(hint)[0] if allows_schedule else hint
        types[item.name] = OptionType(value_type, allows_schedule)
    _OPTION_TYPES[config] = types
    return types


def describe_expected(kind: OptionType, rule: Constraint) -> str:
    """Describe valid values, as the end of an error message."""
    if rule.choices:
        return rule.bounds_text
    words = TYPE_NAMES.get(kind.type, f"of type {getattr(kind.type, '__name__', kind.type)}")
    bounds = f"{' of' if rule.bounds_text.startswith('at ') else ''} {rule.bounds_text}"
    return f"{words}{bounds}".rstrip() + (f", or {AUTO}" if rule.auto else "")


def invalid_value_message(name: str, value: Any, kind: OptionType, rule: Constraint) -> str:
    """Word the error of an invalid value: `lr is -1: must be a number above 0`.

    Args:
        name: Name of the option.
        value: The value that was given.
        kind: Type of the option.
        rule: Bounds and choices of the option.

    Returns:
        One sentence.
    """
    near = did_you_mean(value, rule.choices) if rule.choices and isinstance(value, str) else ""
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
        problems = []
        for item in dataclasses.fields(self):
            kind = known[item.name]
            rule = constraint_of(item)
            value = getattr(self, item.name)
            converted = _convert(kind, 0 if rule.auto and value == AUTO else value)
            if converted is MISSING or not _is_allowed(kind, rule, converted):
                problems.append(invalid_value_message(item.name, value, kind, rule))
            elif converted is not value:
                object.__setattr__(self, item.name, converted)
        if problems:
            raise UsageError("; ".join(problems))

    def at(self, round: int, rounds: int) -> Self:
        """Return the config of one round, with schedules replaced by their values."""
        changed: dict[str, Any] = {}
        for name, kind in option_types(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Schedule):
                changed[name] = kind.round_value(value.at(round, rounds))
            elif isinstance(value, Options):  # a method around another
                inner = value.at(round, rounds)
                if inner is not value:
                    changed[name] = inner
        return dataclasses.replace(self, **changed) if changed else self


def _convert(kind: OptionType, value: Any) -> Any:
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


def _is_allowed(kind: OptionType, rule: Constraint, value: Any) -> bool:
    """Tell whether a value, or every value of a schedule, is within the bounds."""
    if isinstance(value, Schedule):
        return all(rule.allows(kind.round_value(extreme)) for extreme in value.bounds)
    return kind.type not in TYPE_NAMES or rule.allows(value)


def parse(name: str, text: str, kind: OptionType, rule: Constraint) -> Any:
    """Parse the value of an option from the command line.

    Args:
        name: Name of the option, for errors.
        text: The value. Text that is not a number may be a schedule.
        kind: Type of the option.
        rule: Bounds of the option, for errors.

    Returns:
        The value in the type of the option.

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

    Returns:
        The value in the type of the option.

    Raises:
        UsageError: If the text is not a schedule.
    """
    if not (kind.allows_schedule and isinstance(value, str)):
        return value
    try:
        return parse_schedule(value)
    except UsageError as error:
        raise UsageError(f"{name} is '{value}': {error}") from error


def to_config_value(value: Any) -> Any:
    """Convert a value to JSON or TOML: schedules become text."""
    return str(value) if isinstance(value, Schedule) else value
