"""CartPole, Acrobot and Pendulum over any number of agents and parallel copies at once.

Formulas, constants and order of operations are Gymnasium's, so that from the same state the same action leads to the
same state. What is each agent's own (lengths, gravity, masses, motors, goals) stands in :class:`Bodies`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from equipoise.environments.heterogeneity import Bodies, Flags, Floats


class Physics(ABC):
    """States are ``[K, E, states]``: K agents, E copies of each one's environment."""

    gym_id: ClassVar[str]
    states: ClassVar[int] = 4
    """Numbers of a state, and uniform draws that a first one needs."""
    observations: ClassVar[int]
    actions: ClassVar[int]
    continuous: ClassVar[bool] = False
    """Whether actions are vectors in [-1, 1] of so many numbers."""
    own_length: ClassVar[float]
    limit: ClassVar[int] = 500
    """Steps after which an episode is cut."""
    lowest: ClassVar[float]
    highest: ClassVar[float]
    """Bounds of an episode's return."""
    usual: ClassVar[tuple[float, ...]]
    """Usual sizes of what is observed: agents see it in these units, for nets learn badly from numbers far below 1."""

    @abstractmethod
    def length(self, u: Floats) -> Floats:
        """What an agent's number means."""

    @abstractmethod
    def start(self, draws: Floats) -> Floats:
        """First states from uniform numbers ``[..., states]``."""

    @abstractmethod
    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Gymnasium's observation of them."""

    @abstractmethod
    def step(
        self, state: Floats, action: npt.NDArray[Any], own: Bodies
    ) -> tuple[Floats, Floats, Flags]:
        """Next states, rewards, and which episodes ended by themselves."""


class CartPole(Physics):
    """A pole on a cart; u is mapped to half its length, 0.1 to 0.9. A goal is a place that the cart is to hold."""

    gym_id, observations, actions = "CartPole-v1", 4, 2
    own_length, lowest, highest = 0.5, 0.0, 500.0
    usual = (1.0, 1.0, 0.1, 1.0)
    GRAVITY, CART, POLE, FORCE, TAU = 9.8, 1.0, 0.1, 10.0, 0.02
    FURTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360

    def length(self, u: Floats) -> Floats:
        return 0.1 + 0.8 * u

    def start(self, draws: Floats) -> Floats:
        return -0.05 + 0.1 * draws

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        return state.astype(np.float32)

    def step(
        self, state: Floats, action: npt.NDArray[Any], own: Bodies
    ) -> tuple[Floats, Floats, Flags]:
        _, speed, angle, turn = (state[..., i] for i in range(4))
        force = own.motor * self.FORCE * (2 * action - 1)
        cos, sin = np.cos(angle), np.sin(angle)
        mass = self.POLE * own.mass
        total, pole = mass + self.CART, mass * own.length
        push = (force + pole * np.square(turn) * sin) / total
        slow = own.length * (4.0 / 3.0 - mass * np.square(cos) / total)
        bend = (self.GRAVITY * own.gravity * sin - cos * push) / slow
        pull = push - pole * bend * cos / total
        after = np.stack([speed, pull, turn, bend], -1)
        after *= self.TAU
        after += state
        place = after[..., 0]
        over = (np.abs(place) > self.FURTHEST) | (np.abs(after[..., 2]) > self.STEEPEST)
        if not own.has_goals:
            return after, np.ones(over.shape), over
        return after, 1.0 - np.minimum(np.abs(place - own.goal), 1.0), over


class Acrobot(Physics):
    """Two links swung up; u is mapped to the length of both, 0.5 to 1.5, centres halfway. A goal is a height."""

    gym_id, observations, actions = "Acrobot-v1", 6, 3
    own_length, lowest, highest = 1.0, -500.0, 0.0
    usual = (1.0, 1.0, 1.0, 1.0, 3.0, 3.0)
    STEP, GRAVITY, INERTIA, HEIGHT = 0.2, 9.8, 1.0, 1.0
    FASTEST = np.array([4 * math.pi, 9 * math.pi])

    def length(self, u: Floats) -> Floats:
        return 0.5 + u

    def start(self, draws: Floats) -> Floats:
        return (-0.1 + 0.2 * draws).astype(np.float32).astype(np.float64)

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        seen = np.empty((*state.shape[:-1], 6), np.float32)
        angles, seen[..., 4:] = state[..., :2], state[..., 2:]
        seen[..., 0:4:2], seen[..., 1:4:2] = np.cos(angles), np.sin(angles)
        return seen

    def step(
        self, state: Floats, action: npt.NDArray[Any], own: Bodies
    ) -> tuple[Floats, Floats, Flags]:
        """One step of Runge and Kutta's fourth order."""
        y, dt = np.ascontiguousarray(np.moveaxis(state, -1, 0)), self.STEP
        torque = own.motor * (action.astype(np.float64) - 1.0)
        k1 = self._slope(y, torque, own)
        k2 = self._slope(y + dt / 2.0 * k1, torque, own)
        k3 = self._slope(y + dt / 2.0 * k2, torque, own)
        k4 = self._slope(y + dt * k3, torque, own)
        after = np.stack(list(y + dt / 6.0 * (k1 + 2 * (k2 + k3) + k4)), -1)
        angles = after[..., :2]
        while (far := np.abs(angles) > math.pi).any():
            angles[far] -= np.copysign(2 * math.pi, angles[far])
        after[..., 2:] = np.clip(after[..., 2:], -self.FASTEST, self.FASTEST)
        height = -np.cos(angles[..., 0]) - np.cos(angles[..., 1] + angles[..., 0])
        over = height > (self.HEIGHT + 0.8 * own.goal if own.has_goals else self.HEIGHT)
        return after, np.where(over, 0.0, -1.0), over

    def _slope(self, y: Floats, torque: Floats, own: Bodies) -> Floats:
        """Gymnasium's formulas with moments of inertia 1, centres halfway, and what is common taken out."""
        t1, t2, w1, w2 = y
        half = 0.5 * own.mass * own.length
        square, weight = half * own.length, half * (self.GRAVITY * own.gravity)  # m l lc, m lc g
        cos, sin = square * np.cos(t2), square * np.sin(t2)
        second = 0.5 * square + self.INERTIA
        d1 = 2.0 * (cos + second) + 2.0 * square
        d2 = cos + second
        phi2 = weight * np.sin(t1 + t2)
        phi1 = phi2 + 3.0 * weight * np.sin(t1) - sin * w2 * (w2 + 2.0 * w1)
        share = d2 / d1
        slope = np.empty_like(y)
        slope[:2] = y[2:]
        dw2 = slope[3] = (torque + share * phi1 - sin * w1 * w1 - phi2) / (second - share * d2)
        slope[2] = -share * dw2 - phi1 / d1
        return slope


class Pendulum(Physics):
    """A rod swung up and held; u is mapped to its length, 0.5 to 1.5. A goal is the angle at which it is held."""

    gym_id, states, observations, actions, continuous = "Pendulum-v1", 2, 3, 1, True
    own_length, lowest, highest, limit = 1.0, -1600.0, 0.0, 200
    usual = (1.0, 1.0, 4.0)
    GRAVITY, STEP, TORQUE, FASTEST = 10.0, 0.05, 2.0, 8.0
    STEEPEST_GOAL = 0.3  # rad: the motor can hold the rod there

    def length(self, u: Floats) -> Floats:
        return 0.5 + u

    def start(self, draws: Floats) -> Floats:
        first: Floats = (2.0 * draws - 1.0) * np.array([math.pi, 1.0])
        return first

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        angle, speed = state[..., 0], state[..., 1]
        return np.stack([np.cos(angle), np.sin(angle), speed], -1).astype(np.float32)

    def step(
        self, state: Floats, action: npt.NDArray[Any], own: Bodies
    ) -> tuple[Floats, Floats, Flags]:
        angle, speed = state[..., 0], state[..., 1]
        torque = own.motor * (self.TORQUE * np.clip(action[..., 0].astype(np.float64), -1.0, 1.0))
        away = angle - self.STEEPEST_GOAL * own.goal if own.has_goals else angle
        off = (away + math.pi) % (2 * math.pi) - math.pi
        cost = np.square(off) + 0.1 * np.square(speed) + 0.001 * np.square(torque)
        gravity, length = self.GRAVITY * own.gravity, own.length
        push = (
            3 * gravity / (2 * length) * np.sin(angle)
            + 3.0 / (own.mass * np.square(length)) * torque
        )
        faster = np.clip(speed + push * self.STEP, -self.FASTEST, self.FASTEST)
        after = np.stack([angle + faster * self.STEP, faster], -1)
        return after, -cost, np.zeros(cost.shape, bool)
