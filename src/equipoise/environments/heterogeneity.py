"""How agents differ: each trait gives every agent its own physics, motor or sensors.

An agent's position in a family of environments is its heterogeneity parameter u in (0, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Obs = npt.NDArray[np.float32]

MAX_SENSOR_OFFSET = 0.5  # in the units of scaled observations

INTERFACE_TRAITS = {
    "motor": "motors have 0.4 + 0.6 u of their strength",
    "reversed": "every second agent's motor is reversed",
    "sensors": "sensors come in an order of the agent's own",
    "offsets": f"each sensor's zero is off by up to {MAX_SENSOR_OFFSET}",
}
"""Traits for any environment: they transform actions and observations."""
PHYSICS_TRAITS = {
    "length": "the pole's, links' or rod's length is the agent's own",
    "gravity": "gravity is 0.5 + u times its own",
    "mass": "the pole's, links' or rod's mass is 0.25 + 1.5 u times its own",
    "goal": "what is rewarded is the agent's own: a place, a height, an angle",
}
"""Traits for environments whose physics is computed in `classic_control`."""


def parse_traits(text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Parse an option such as ``length,reversed``.

    Args:
        text: Trait names, separated by commas. May be empty.
        allowed: Names of the traits that the environment supports.

    Returns:
        The names.

    Raises:
        UsageError: If a name is not in `allowed`.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in allowed:
            known = f"choose from {', '.join(allowed)}"
            raise UsageError(
                f"differ is '{text}': there is no '{name}' here{did_you_mean(name, allowed)}; "
                f"{known}"
            )
    return names


@dataclass(frozen=True)
class AgentInterface:
    """Motors and sensors between agents and their environments. Rows are agents."""

    motor: Floats
    """``[K, 1]``: Relative motor strength. Negative if the motor is reversed."""
    order: Ints
    """``[K, obs_dim]``: Permutation of the observation."""
    offset: npt.NDArray[np.float32]
    """``[K, obs_dim]``: Offset that is added to the permuted observation."""

    @classmethod
    def from_traits(
        cls, differ: Sequence[str], u: Floats, obs_dim: int, seed: int
    ) -> AgentInterface:
        """Build the interface of agents 0 to K-1.

        Args:
            differ: Names of the traits. Traits of the physics are ignored.
            u: ``[K]``, heterogeneity parameters.
            obs_dim: Size of an observation.
            seed: Seed of the permutations and offsets.

        Returns:
            The interface, with one row per agent.
        """
        agents = np.arange(len(u))
        motor = 0.4 + 0.6 * u if "motor" in differ else np.ones(len(u))
        if "reversed" in differ:
            motor = np.where(agents % 2, -motor, motor)
        order = np.tile(np.arange(obs_dim), (len(u), 1))
        if "sensors" in differ:
            order = rng.uniform(rng.keys(seed, agents, 0, rng.SENSES[0]), obs_dim).argsort(1)
        offset = np.zeros(order.shape)
        if "offsets" in differ:
            draws = rng.uniform(rng.keys(seed, agents, 0, rng.SENSES[1]), obs_dim)
            offset = MAX_SENSOR_OFFSET * (2.0 * draws - 1.0)
        return cls(motor[:, None], order, offset.astype(np.float32))

    def observe(self, obs: Obs) -> Obs:
        """Permute and offset observations ``[K, E, obs_dim]``."""
        if self.is_identity:
            return obs
        permuted: Obs = np.take_along_axis(obs, self.order[:, None, :], -1)
        transformed: Obs = permuted + self.offset[:, None, :]
        return transformed

    @cached_property
    def is_identity(self) -> bool:
        """Whether observations pass unchanged."""
        return bool((self.order == np.arange(self.order.shape[1])).all() and not self.offset.any())

    def subset(self, ids: Ints) -> AgentInterface:
        """Return the rows of these agents."""
        return AgentInterface(self.motor[ids], self.order[ids], self.offset[ids])


@dataclass(frozen=True)
class BodyParams:
    """Physical parameters of each agent's environment, ``[K, 1]`` each."""

    length: Floats
    gravity: Floats
    """Multiple of the default gravity."""
    mass: Floats
    """Multiple of the default mass."""
    motor: Floats
    """Multiple of the default motor strength. Negative if the motor is reversed."""
    goal: Floats
    """Goal in [-1, 1], or NaN if agents share the default goal."""

    @classmethod
    def from_traits(
        cls,
        differ: Sequence[str],
        u: Floats,
        lengths: Floats,
        default_length: float,
        motor: Floats,
    ) -> BodyParams:
        """Build the parameters of agents.

        Args:
            differ: Names of the traits. Traits of the interface are ignored.
            u: ``[K]``, heterogeneity parameters.
            lengths: ``[K]``, lengths with the trait "length".
            default_length: Length without it.
            motor: ``[K, 1]``, relative motor strengths.

        Returns:
            The parameters, with one row per agent.
        """
        column = u[:, None]
        ones = np.ones_like(column)
        return cls(
            length=lengths[:, None] if "length" in differ else default_length * ones,
            gravity=0.5 + column if "gravity" in differ else ones,
            mass=0.25 + 1.5 * column if "mass" in differ else ones,
            motor=motor,
            goal=2.0 * column - 1.0 if "goal" in differ else np.nan * ones,
        )

    def subset(self, ids: Ints) -> BodyParams:
        """Return the rows of these agents."""
        return BodyParams(**{field.name: getattr(self, field.name)[ids] for field in fields(self)})

    @cached_property
    def has_goals(self) -> bool:
        """Whether each agent has its own goal."""
        return not bool(np.isnan(self.goal).any())
