"""Schedules: option values that change over the rounds of a run.

>>> cosine(0.1, 0.001).at(1, 100)
0.1
>>> str(steps({0: 1, 50: 5}))
'steps({0: 1, 50: 5})'
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from equipoise.utils.errors import UsageError

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
        return f"{type(self).__name__.lower()}({_text(self.start)}, {_text(self.end)})"


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

    def at(self, round: int, rounds: int) -> float:
        """Return the value of the last step before the round."""
        return next(value for done, value in reversed(self.values) if done < round)

    @property
    def bounds(self) -> tuple[float, ...]:
        """All values."""
        return tuple(value for _, value in self.values)

    def __str__(self) -> str:
        """Return the schedule as it is written in options."""
        return f"steps({{{', '.join(f'{done}: {_text(value)}' for done, value in self.values)}}})"


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
        return f"constant({_text(self.value)})"


def cosine(start: float, end: float) -> Schedule:
    """Create a half-cosine schedule from `start` in the first round to `end` in the last."""
    return Cosine(_number(start), _number(end))


def linear(start: float, end: float) -> Schedule:
    """Create a linear schedule from `start` in the first round to `end` in the last."""
    return Linear(_number(start), _number(end))


def steps(values: Mapping[int, float]) -> Schedule:
    """Create a piecewise constant schedule.

    Args:
        values: Values by the number of completed rounds: `{0: 1, 50: 5}` is 5 from round 51 on.

    Raises:
        UsageError: If there is no value at 0, or a key is not a whole number of at least 0.
    """
    wrong = not isinstance(values, Mapping) or any(
        type(done) is not int or done < 0 for done in values
    )
    if wrong or 0 not in values:
        raise UsageError(
            "steps takes values by the rounds done before, from 0 on, such as steps({0: 1, 50: 5})"
        )
    return Steps(tuple((done, _number(values[done])) for done in sorted(values)))


def constant(value: float) -> Schedule:
    """Create a schedule with the same value in all rounds."""
    return Constant(_number(value))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "cosine": cosine,
    "linear": linear,
    "steps": steps,
    "constant": constant,
}


def value_at(value: float | Schedule, round: int, rounds: int) -> float:
    """Return a number unchanged, or the value of a schedule in a round."""
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


def _number(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"a schedule goes over numbers, and {value!r} is none")
    return float(value)


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
