"""Options of typed configs: default, sentence and bounds stand with the option.

From there values are checked (:func:`problems`), refusals worded (:func:`wanted`) and help and reference written
(:func:`documented`).
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

TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Constraint:
    """What is declared of an option beside its type and default. Infinity needs ``high=math.inf``."""

    help: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()

    def allows(self, value: Any) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return (
            (math.isfinite(value) or value == self.high)
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    @property
    def bounds_text(self) -> str:
        """The bounds in words; empty without any."""
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
) -> Any:
    """A field of a typed config.

    Arguments:
        default: its value unless another is given.
        help: the sentence that the command line and the reference show for it.
        low, high: bounds that are allowed themselves; ``high=math.inf`` allows infinity.
        above, below: bounds that are not.
        choices: the texts that it takes.
    """
    return field(
        default=default,
        metadata={"rule": Constraint(help, low, high, above, below, tuple(choices))},
    )


def with_default(config: type, name: str, default: Any) -> Any:
    """An option of a parent class, with another default."""
    return field(
        default=default,
        metadata=next(i for i in dataclasses.fields(config) if i.name == name).metadata,
    )


def constraint_of(item: Field[Any]) -> Constraint:
    rule: Constraint = item.metadata.get("rule", Constraint())
    return rule


@dataclass(frozen=True)
class OptionType:
    """The type of an option: a plain one, which may be allowed to change over rounds."""

    type: type
    allows_schedule: bool = False

    def round_value(self, number: float) -> float:
        """One round's value of a schedule; whole numbers are the nearest."""
        return math.floor(number + 0.5) if self.type is int else float(number)


def option_types(config: type) -> dict[str, OptionType]:
    """The types of a config's options by name."""
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
    """What a value must be, as the end of a refusal."""
    if rule.choices:
        return rule.bounds_text
    words = TYPE_NAMES.get(kind.type, f"of type {getattr(kind.type, '__name__', kind.type)}")
    return (
        f"{words}{' of' if rule.bounds_text.startswith('at ') else ''} {rule.bounds_text}".rstrip()
    )


def invalid_value_message(name: str, value: Any, kind: OptionType, rule: Constraint) -> str:
    """``lr is -1: must be a number above 0``."""
    near = nearest(value, rule.choices) if rule.choices and isinstance(value, str) else ""
    if isinstance(value, Schedule):
        return f"{name} is {value}: must be {describe_expected(kind, rule)} in every round"
    return f"{name} is {value!r}: must be {describe_expected(kind, rule)}{near}"


def describe_default(default: Any, rule: Constraint) -> str:
    """``(default: 0.1; above 0)``."""
    shown = str(default) if isinstance(default, Schedule) else repr(default)
    return f"(default: {shown}{'; ' + rule.bounds_text if rule.bounds_text else ''})"


@dataclass(frozen=True)
class Options:
    """A typed config: its options are checked when it is made, all of them, whoever makes it."""

    def __post_init__(self) -> None:
        known, found = option_types(type(self)), []
        for item in dataclasses.fields(self):
            kind, rule, value = known[item.name], constraint_of(item), getattr(self, item.name)
            plain = _converted(kind, value)
            if plain is MISSING or not _allowed(kind, rule, plain):
                found.append(invalid_value_message(item.name, value, kind, rule))
            elif plain is not value:
                object.__setattr__(self, item.name, plain)
        if found:
            raise UsageError("; ".join(found))

    def at(self, round: int, rounds: int) -> Self:
        """The same with the plain numbers of one round; itself where no option is a schedule."""
        moving: dict[str, Any] = {}
        for name, kind in option_types(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Schedule):
                moving[name] = kind.round_value(value.at(round, rounds))
            elif isinstance(value, Options) and (now := value.at(round, rounds)) is not value:
                moving[name] = now  # a method around another
        return dataclasses.replace(self, **moving) if moving else self


def _converted(kind: OptionType, value: Any) -> Any:
    """The value in the option's own type, where it means the same; else ``MISSING``."""
    if (
        kind.type not in TYPE_NAMES
        or type(value) is kind.type
        or (kind.allows_schedule and isinstance(value, Schedule))
    ):
        return value
    if kind.type is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if kind.type is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return MISSING


def _allowed(kind: OptionType, rule: Constraint, value: Any) -> bool:
    if isinstance(value, Schedule):
        return all(rule.allows(kind.round_value(extreme)) for extreme in value.bounds)
    return kind.type not in TYPE_NAMES or rule.allows(value)


def _first_bound(pair: tuple[float | None, float | None]) -> float:
    return next(bound for bound in pair if bound is not None)
