"""How agents differ: each trait gives every agent an environment, a motor or sensors of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from equipoise.utils import rng
from equipoise.utils.errors import UsageError, nearest

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Seen = npt.NDArray[np.float32]
FURTHEST_OFF = 0.5  # of a sensor's zero, in the units in which agents see

SENSES = {
    "motor": "motors have 0.4 + 0.6 u of their strength",
    "reversed": "every second agent's motor is reversed",
    "sensors": "sensors come in an order of the agent's own",
    "offsets": f"each sensor's zero is off by up to {FURTHEST_OFF}",
}
"""Traits that any environment can have: they lie between it and the agent."""
BODIES = {
    "length": "the pole's, links' or rod's length is the agent's own",
    "gravity": "gravity is 0.5 + u times its own",
    "mass": "the pole's, links' or rod's mass is 0.25 + 1.5 u times its own",
    "goal": "what is rewarded is the agent's own: a place, a height, an angle",
}
"""Traits of environments whose physics we compute."""


def traits_named(text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The traits of an option such as ``length,reversed``."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in allowed:
            known = f"choose from {', '.join(allowed)}"
            raise UsageError(
                f"differ is '{text}': there is no '{name}' here{nearest(name, allowed)}; {known}"
            )
    return names


@dataclass(frozen=True)
class Senses:
    """What lies between agents and their environments; rows are agents."""

    motor: Floats
    """``[K, 1]``: strength as a share of its own, negative where it is reversed."""
    order: Ints
    """``[K, observations]``: which number comes where."""
    offset: npt.NDArray[np.float32]
    """``[K, observations]``, in the units in which agents see."""

    @classmethod
    def of(cls, differ: Sequence[str], u: Floats, observations: int, seed: int) -> Senses:
        """Of agents 0 to K-1 with these numbers."""
        agents = np.arange(len(u))
        motor = 0.4 + 0.6 * u if "motor" in differ else np.ones(len(u))
        if "reversed" in differ:
            motor = np.where(agents % 2, -motor, motor)
        order = np.tile(np.arange(observations), (len(u), 1))
        if "sensors" in differ:
            order = rng.uniform(rng.keys(seed, agents, 0, rng.SENSES[0]), observations).argsort(1)
        offset = np.zeros(order.shape)
        if "offsets" in differ:
            off = rng.uniform(rng.keys(seed, agents, 0, rng.SENSES[1]), observations)
            offset = FURTHEST_OFF * (2.0 * off - 1.0)
        return cls(motor[:, None], order, offset.astype(np.float32))

    def seen(self, seen: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What agents see of ``[K, E, observations]``."""
        if self.plain:
            return seen
        mixed: npt.NDArray[np.float32] = (
            np.take_along_axis(seen, self.order[:, None, :], -1) + self.offset[:, None, :]
        )
        return mixed

    @cached_property
    def plain(self) -> bool:
        """Whether agents see what there is."""
        return bool((self.order == np.arange(self.order.shape[1])).all() and not self.offset.any())

    def rows(self, ids: Ints) -> Senses:
        return Senses(self.motor[ids], self.order[ids], self.offset[ids])


@dataclass(frozen=True)
class Bodies:
    """What physics needs of each agent, ``[K, 1]`` each."""

    length: Floats
    gravity: Floats
    """Times its own."""
    mass: Floats
    """Times its own."""
    motor: Floats
    """Times its own strength; negative where it is reversed."""
    goal: Floats
    """In [-1, 1] where agents have goals of their own, else not a number."""

    @classmethod
    def of(
        cls, differ: Sequence[str], u: Floats, lengths: Floats, own_length: float, motor: Floats
    ) -> Bodies:
        column = u[:, None]
        ones = np.ones_like(column)
        return cls(
            lengths[:, None] if "length" in differ else own_length * ones,
            0.5 + column if "gravity" in differ else ones,
            0.25 + 1.5 * column if "mass" in differ else ones,
            motor,
            2.0 * column - 1.0 if "goal" in differ else np.nan * ones,
        )

    def rows(self, ids: Ints) -> Bodies:
        return Bodies(**{field.name: getattr(self, field.name)[ids] for field in fields(self)})

    @cached_property
    def has_goals(self) -> bool:
        return not bool(np.isnan(self.goal).any())
