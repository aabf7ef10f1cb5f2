"""CartPole and Acrobot over any number of agents and parallel copies at once.

Formulas, constants and order of operations are Gymnasium's, so that from the same state the same action leads to the
same state. Agents differ by one number u in (0, 1): the length of the pole, the length of the links.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Physics(ABC):
    """States are ``[K, E, 4]``: K agents, E copies of each one's environment; lengths are ``[K, 1]``."""

    gym_id: ClassVar[str]
    observations: ClassVar[int]
    actions: ClassVar[int]
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
        """First states from uniform numbers ``[..., 4]``."""

    @abstractmethod
    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        """Gymnasium's observation of them."""

    @abstractmethod
    def step(self, state: Floats, action: Ints, length: Floats) -> tuple[Floats, Floats, Flags]:
        """Next states, rewards, and which episodes ended by themselves."""

    @abstractmethod
    def twin(self, length: float) -> Any:
        """Gymnasium's own environment of this length."""


class CartPole(Physics):
    """A pole on a cart; u is mapped to half its length, 0.1 to 0.9 (Gymnasium's own: 0.5)."""

    gym_id, observations, actions = "CartPole-v1", 4, 2
    lowest, highest = 0.0, 500.0
    usual = (1.0, 1.0, 0.1, 1.0)
    GRAVITY, CART, POLE, FORCE, TAU = 9.8, 1.0, 0.1, 10.0, 0.02
    TOTAL = POLE + CART
    FURTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360

    def length(self, u: Floats) -> Floats:
        return 0.1 + 0.8 * u

    def start(self, draws: Floats) -> Floats:
        return -0.05 + 0.1 * draws

    def observe(self, state: Floats) -> npt.NDArray[np.float32]:
        return state.astype(np.float32)

    def step(self, state: Floats, action: Ints, length: Floats) -> tuple[Floats, Floats, Flags]:
        _, speed, angle, turn = (state[..., i] for i in range(4))
        force = self.FORCE * (2 * action - 1)
        cos, sin = np.cos(angle), np.sin(angle)
        pole = self.POLE * length
        push = (force + pole * np.square(turn) * sin) / self.TOTAL
        bend = (self.GRAVITY * sin - cos * push) / (length * (4.0 / 3.0 - self.POLE * np.square(cos) / self.TOTAL))
        pull = push - pole * bend * cos / self.TOTAL
        after = np.stack([speed, pull, turn, bend], -1)
        after *= self.TAU
        after += state
        over = (np.abs(after[..., 0]) > self.FURTHEST) | (np.abs(after[..., 2]) > self.STEEPEST)
        return after, np.ones(over.shape), over

    def twin(self, length: float) -> Any:
        import gymnasium

        env = gymnasium.make(self.gym_id)
        body: Any = env.unwrapped
        body.length, body.polemass_length = length, body.masspole * length
        return env


class Acrobot(Physics):
    """Two links swung up; u is mapped to the length of both, 0.5 to 1.5 (Gymnasium's own: 1), centres halfway."""

    gym_id, observations, actions = "Acrobot-v1", 6, 3
    lowest, highest = -500.0, 0.0
    usual = (1.0, 1.0, 1.0, 1.0, 3.0, 3.0)
    STEP, GRAVITY, INERTIA = 0.2, 9.8, 1.0
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

    def step(self, state: Floats, action: Ints, length: Floats) -> tuple[Floats, Floats, Flags]:
        """One step of Runge and Kutta's fourth order."""
        y, torque, dt = np.ascontiguousarray(np.moveaxis(state, -1, 0)), action.astype(np.float64) - 1.0, self.STEP
        k1 = self._slope(y, torque, length)
        k2 = self._slope(y + dt / 2.0 * k1, torque, length)
        k3 = self._slope(y + dt / 2.0 * k2, torque, length)
        k4 = self._slope(y + dt * k3, torque, length)
        after = np.stack(list(y + dt / 6.0 * (k1 + 2 * (k2 + k3) + k4)), -1)
        angles = after[..., :2]
        while (far := np.abs(angles) > math.pi).any():
            angles[far] -= np.copysign(2 * math.pi, angles[far])
        after[..., 2:] = np.clip(after[..., 2:], -self.FASTEST, self.FASTEST)
        over = -np.cos(angles[..., 0]) - np.cos(angles[..., 1] + angles[..., 0]) > 1.0
        return after, np.where(over, 0.0, -1.0), over

    def _slope(self, y: Floats, torque: Floats, length: Floats) -> Floats:
        """Gymnasium's formulas with masses and moments of inertia 1, centres halfway, and what is common taken out."""
        t1, t2, w1, w2 = y
        square, weight = 0.5 * length * length, 0.5 * length * self.GRAVITY  # l lc, lc g
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

    def twin(self, length: float) -> Any:
        import gymnasium

        env = gymnasium.make(self.gym_id)
        body: Any = env.unwrapped
        body.LINK_LENGTH_1 = body.LINK_LENGTH_2 = length
        body.LINK_COM_POS_1 = body.LINK_COM_POS_2 = length / 2
        return env
