"""CartPole, Acrobot and Pendulum over any number of agents and parallel copies at once.

Formulas, constants and the order of operations are those of Gymnasium 1.x: the same action in the
same state leads to the same next state. The parameters that differ between agents (lengths,
gravity, masses, motors, goals) are in `BodyParams`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from equipoise.environments.heterogeneity import BodyParams, Bools, Floats


class Physics(ABC):
    """Equations of motion for states ``[K, E, state_dim]``: K agents with E copies each."""

    gym_id: ClassVar[str]
    state_dim: ClassVar[int] = 4
    """Size of a state; an initial state consumes as many uniform numbers."""
    obs_dim: ClassVar[int]
    num_actions: ClassVar[int]
    """Number of discrete actions, or the dimension of an action vector."""
    continuous: ClassVar[bool] = False
    """Whether actions are vectors in [-1, 1]."""
    default_length: ClassVar[float]
    max_episode_steps: ClassVar[int] = 500
    min_return: ClassVar[float]
    max_return: ClassVar[float]
    obs_scale: ClassVar[tuple[float, ...]]
    """Typical size of each observed number. Observations are divided by it, because networks learn
    badly from inputs far below 1."""

    @abstractmethod
    def agent_length(self, u: Floats) -> Floats:
        """Return each agent's length for its heterogeneity parameter u."""

    @abstractmethod
    def initial_state(self, draws: Floats) -> Floats:
        """Return initial states from uniform numbers ``[..., state_dim]``."""

    @abstractmethod
    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Return Gymnasium's observation ``[..., obs_dim]``."""

    @abstractmethod
    def step(
        self, state: Floats, action: npt.NDArray[Any], bodies: BodyParams
    ) -> tuple[Floats, Floats, Bools]:
        """Take one step.

        Args:
            state: ``[K, E, state_dim]``.
            action: ``[K, E]``, or ``[K, E, num_actions]`` if continuous.
            bodies: Parameters of the K agents.

        Returns:
            Next states, rewards ``[K, E]`` and terminations ``[K, E]``.
        """


class CartPole(Physics):
    """A pole on a cart; u sets half the pole's length, 0.1 to 0.9. A goal is a cart position."""

    gym_id = "CartPole-v1"
    obs_dim = 4
    num_actions = 2
    default_length = 0.5
    min_return = 0.0
    max_return = 500.0
    obs_scale = (1.0, 1.0, 0.1, 1.0)
    GRAVITY = 9.8
    CART_MASS = 1.0
    POLE_MASS = 0.1
    FORCE = 10.0
    DT = 0.02
    MAX_POSITION = 2.4
    MAX_ANGLE = 12 * 2 * math.pi / 360

    def agent_length(self, u: Floats) -> Floats:
        """Return half the pole's length, 0.1 to 0.9."""
        return 0.1 + 0.8 * u

    def initial_state(self, draws: Floats) -> Floats:
        """Return states near the upright position at rest."""
        return -0.05 + 0.1 * draws

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Return position, speed, angle and angular speed."""
        return state.astype(np.float32)

    def step(
        self, state: Floats, action: npt.NDArray[Any], bodies: BodyParams
    ) -> tuple[Floats, Floats, Bools]:
        """Take one Euler step."""
        _, speed, angle, angle_speed = (state[..., i] for i in range(4))
        force = bodies.motor * self.FORCE * (2 * action - 1)
        cos = np.cos(angle)
        sin = np.sin(angle)
        mass = self.POLE_MASS * bodies.mass
        total_mass = mass + self.CART_MASS
        pole_moment = mass * bodies.length
        thrust = (force + pole_moment * np.square(angle_speed) * sin) / total_mass
        inertia = bodies.length * (4.0 / 3.0 - mass * np.square(cos) / total_mass)
        angle_accel = (self.GRAVITY * bodies.gravity * sin - cos * thrust) / inertia
        accel = thrust - pole_moment * angle_accel * cos / total_mass
        after = np.stack([speed, accel, angle_speed, angle_accel], -1)
        after *= self.DT
        after += state
        position = after[..., 0]
        fallen = (np.abs(position) > self.MAX_POSITION) | (np.abs(after[..., 2]) > self.MAX_ANGLE)
        if not bodies.has_goals:
            return after, np.ones(fallen.shape), fallen
        return after, 1.0 - np.minimum(np.abs(position - bodies.goal), 1.0), fallen


class Acrobot(Physics):
    """Two links to swing up; u sets the length of both, 0.5 to 1.5. A goal is a height."""

    gym_id = "Acrobot-v1"
    obs_dim = 6
    num_actions = 3
    default_length = 1.0
    min_return = -500.0
    max_return = 0.0
    obs_scale = (1.0, 1.0, 1.0, 1.0, 3.0, 3.0)
    DT = 0.2
    GRAVITY = 9.8
    INERTIA = 1.0
    GOAL_HEIGHT = 1.0
    MAX_SPEED = np.array([4 * math.pi, 9 * math.pi])

    def agent_length(self, u: Floats) -> Floats:
        """Return the length of both links, 0.5 to 1.5; centres of mass are halfway."""
        return 0.5 + u

    def initial_state(self, draws: Floats) -> Floats:
        """Return states near the hanging position at rest, rounded to float32 like Gymnasium's."""
        return (-0.1 + 0.2 * draws).astype(np.float32).astype(np.float64)

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Return cosine and sine of both angles, and both angular speeds."""
        obs = np.empty((*state.shape[:-1], 6), np.float32)
        angles = state[..., :2]
        obs[..., 0:4:2] = np.cos(angles)
        obs[..., 1:4:2] = np.sin(angles)
        obs[..., 4:] = state[..., 2:]
        return obs

    def step(
        self, state: Floats, action: npt.NDArray[Any], bodies: BodyParams
    ) -> tuple[Floats, Floats, Bools]:
        """Take one Runge-Kutta step of order 4."""
        y = np.ascontiguousarray(np.moveaxis(state, -1, 0))
        dt = self.DT
        torque = bodies.motor * (action.astype(np.float64) - 1.0)
        k1 = self._derivative(y, torque, bodies)
        k2 = self._derivative(y + dt / 2.0 * k1, torque, bodies)
        k3 = self._derivative(y + dt / 2.0 * k2, torque, bodies)
        k4 = self._derivative(y + dt * k3, torque, bodies)
        after = np.stack(list(y + dt / 6.0 * (k1 + 2 * (k2 + k3) + k4)), -1)
        angles = after[..., :2]
        while (outside := np.abs(angles) > math.pi).any():
            angles[outside] -= np.copysign(2 * math.pi, angles[outside])
        after[..., 2:] = np.clip(after[..., 2:], -self.MAX_SPEED, self.MAX_SPEED)
        height = -np.cos(angles[..., 0]) - np.cos(angles[..., 1] + angles[..., 0])
        goal = self.GOAL_HEIGHT + 0.8 * bodies.goal if bodies.has_goals else self.GOAL_HEIGHT
        reached = height > goal
        return after, np.where(reached, 0.0, -1.0), reached

    def _derivative(self, y: Floats, torque: Floats, bodies: BodyParams) -> Floats:
        """Compute dy/dt: Gymnasium's formulas with inertia 1 and common factors taken out."""
        t1, t2, w1, w2 = y
        half = 0.5 * bodies.mass * bodies.length
        square = half * bodies.length  # m l lc
        weight = half * (self.GRAVITY * bodies.gravity)  # m lc g
        cos = square * np.cos(t2)
        sin = square * np.sin(t2)
        second = 0.5 * square + self.INERTIA
        d1 = 2.0 * (cos + second) + 2.0 * square
        d2 = cos + second
        phi2 = weight * np.sin(t1 + t2)
        phi1 = phi2 + 3.0 * weight * np.sin(t1) - sin * w2 * (w2 + 2.0 * w1)
        ratio = d2 / d1
        derivative = np.empty_like(y)
        derivative[:2] = y[2:]
        derivative[3] = (torque + ratio * phi1 - sin * w1 * w1 - phi2) / (second - ratio * d2)
        derivative[2] = -ratio * derivative[3] - phi1 / d1
        return derivative


class Pendulum(Physics):
    """A rod to swing up and hold; u sets its length, 0.5 to 1.5. A goal is the angle to hold."""

    gym_id = "Pendulum-v1"
    state_dim = 2
    obs_dim = 3
    num_actions = 1
    continuous = True
    default_length = 1.0
    min_return = -1600.0
    max_return = 0.0
    max_episode_steps = 200
    obs_scale = (1.0, 1.0, 4.0)
    GRAVITY = 10.0
    DT = 0.05
    MAX_TORQUE = 2.0
    MAX_SPEED = 8.0
    MAX_GOAL_ANGLE = 0.3  # rad; the motor can still hold the rod there

    def agent_length(self, u: Floats) -> Floats:
        """Return the rod's length, 0.5 to 1.5."""
        return 0.5 + u

    def initial_state(self, draws: Floats) -> Floats:
        """Return any angle, and an angular speed in [-1, 1]."""
        state: Floats = (2.0 * draws - 1.0) * np.array([math.pi, 1.0])
        return state

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Return cosine and sine of the angle, and the angular speed."""
        angle = state[..., 0]
        speed = state[..., 1]
        return np.stack([np.cos(angle), np.sin(angle), speed], -1).astype(np.float32)

    def step(
        self, state: Floats, action: npt.NDArray[Any], bodies: BodyParams
    ) -> tuple[Floats, Floats, Bools]:
        """Take one semi-implicit Euler step."""
        angle = state[..., 0]
        speed = state[..., 1]
        command = np.clip(action[..., 0].astype(np.float64), -1.0, 1.0)
        torque = bodies.motor * (self.MAX_TORQUE * command)
        from_goal = angle - self.MAX_GOAL_ANGLE * bodies.goal if bodies.has_goals else angle
        off = (from_goal + math.pi) % (2 * math.pi) - math.pi
        cost = np.square(off) + 0.1 * np.square(speed) + 0.001 * np.square(torque)
        gravity = self.GRAVITY * bodies.gravity
        length = bodies.length
        accel = (
            3 * gravity / (2 * length) * np.sin(angle)
            + 3.0 / (bodies.mass * np.square(length)) * torque
        )
        new_speed = np.clip(speed + accel * self.DT, -self.MAX_SPEED, self.MAX_SPEED)
        after = np.stack([angle + new_speed * self.DT, new_speed], -1)
        return after, -cost, np.zeros(cost.shape, bool)
