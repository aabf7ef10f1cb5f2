"""Where agents act: E parallel copies of each agent's own environment, which start anew by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core import Params, State
from equipoise.environments.classic_control import Physics
from equipoise.environments.heterogeneity import Bodies, Flags, Floats, Ints, Seen, Senses
from equipoise.environments.q_network import Net
from equipoise.utils import rng


@dataclass
class Moved:
    """One step of K agents with E copies each: ``[K, E]``; ``following`` is seen before an episode starts anew."""

    following: Seen
    reward: Floats
    terminated: Flags
    truncated: Flags


class Play(ABC):
    """Episodes under way."""

    seen: Seen
    """What the agents see now, ``[K, E, observations]``."""

    @abstractmethod
    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> Moved:
        """``draws``: uniform numbers ``[K, E, resets]`` for the episodes that start anew."""

    @abstractmethod
    def kept(self) -> State:
        """What the next :meth:`World.open` goes on from."""


class World(ABC):
    """The environments of all agents."""

    observations: int
    actions: int
    continuous: bool = False
    image: tuple[int, int, int] | None = None
    """Channels, height and width, where observations are images."""
    forgets: bool = False
    """Whether episodes are lost with the process: their state cannot be kept."""
    resets: int
    """Uniform numbers that an episode starts from."""
    limit: int
    lowest: float
    highest: float

    @abstractmethod
    def subset(self, ids: Ints) -> World:
        """The environments of these agents alone."""

    @abstractmethod
    def fresh(self, ids: Tensor, copies: int, seed: int) -> State:
        """What agents that never acted go on from."""

    @abstractmethod
    def open(self, ids: Tensor, kept: State, draws: Floats) -> Play:
        """Go on; a world that cannot keep its episodes starts them from ``draws`` ``[K, E, resets]``."""

    @abstractmethod
    def begin(self, ids: Tensor, draws: Floats) -> Play:
        """Episodes from their beginning, ``[K, E]`` of them."""


class PhysicsWorld(World):
    """Classic control by its formulas: all agents and copies in one call."""

    def __init__(self, physics: Physics, bodies: Bodies, senses: Senses) -> None:
        self.physics, self.bodies, self.senses = physics, bodies, senses
        self.observations, self.actions, self.limit = (
            physics.observations,
            physics.actions,
            physics.limit,
        )
        self.continuous, self.resets = physics.continuous, physics.states
        self.lowest, self.highest = physics.lowest, physics.highest

    @classmethod
    def of(
        cls, physics: Physics, u: Floats, differ: Sequence[str] = ("length",), seed: int = 0
    ) -> PhysicsWorld:
        """Environments of agents with these numbers, which differ by these traits."""
        senses = Senses.of(differ, u, physics.observations, seed)
        return cls(
            physics,
            Bodies.of(differ, u, physics.length(u), physics.own_length, senses.motor),
            senses,
        )

    def subset(self, ids: Ints) -> World:
        return PhysicsWorld(self.physics, self.bodies.rows(ids), self.senses.rows(ids))

    def fresh(self, ids: Tensor, copies: int, seed: int) -> State:
        draws = rng.uniform(
            rng.keys(seed, ids.numpy(), 0, rng.FIRST_STATES[0]), copies * self.resets
        )
        state = self.physics.start(draws.reshape(len(ids), copies, self.resets))
        return {
            "state": torch.from_numpy(state),
            "clock": torch.zeros(len(ids), copies, dtype=torch.int64),
        }

    def open(self, ids: Tensor, kept: State, draws: Floats) -> Play:
        return _PhysicsPlay(self, ids, kept["state"].numpy(), kept["clock"].numpy().copy())

    def begin(self, ids: Tensor, draws: Floats) -> Play:
        return _PhysicsPlay(
            self, ids, self.physics.start(draws), np.zeros(draws.shape[:2], np.int64)
        )


class _PhysicsPlay(Play):
    def __init__(self, world: PhysicsWorld, ids: Tensor, state: Floats, clock: Ints) -> None:
        self.physics, rows = world.physics, ids.numpy()
        self.own, self.senses = world.bodies.rows(rows), world.senses.rows(rows)
        self.state, self.clock = state, clock
        self.unit = np.array(self.physics.usual, np.float32)
        self.seen = self._see()

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> Moved:
        self.state, reward, terminated = self.physics.step(self.state, action, self.own)
        self.clock += 1
        following = self.seen = self._see()
        truncated = ~terminated & (self.clock >= self.physics.limit)
        over = terminated | truncated
        if over.any():
            self.state[over] = self.physics.start(draws[over])
            self.clock[over] = 0
            self.seen = self._see()
        return Moved(following, reward, terminated, truncated)

    def _see(self) -> Seen:
        return self.senses.seen(self.physics.observe(self.state) / self.unit)

    def kept(self) -> State:
        return {"state": torch.from_numpy(self.state), "clock": torch.from_numpy(self.clock)}


SPLITS = ("test", "val", "public")


def starts(world: World, ids: Tensor, split: str, episodes: int, seed: int) -> Floats:
    """What a split's episodes start from, ``[K, episodes, resets]``: the first ones do not depend on their number."""
    keys = rng.keys(seed, ids.numpy(), 0, rng.EPISODES[SPLITS.index(split)])
    return rng.uniform(keys, episodes * world.resets).reshape(len(ids), episodes, world.resets)


def returns(
    world: World, net: Net, ids: Tensor, params: Params, split: str, episodes: int, seed: int
) -> Floats:
    """``[K, episodes]``: undiscounted returns of each agent's net in its own environment.

    A net with parameters that are no numbers has no policy, though its argmax has a place: its return is the worst.
    """
    draws = starts(world, ids, split, episodes, seed)
    play = world.begin(ids, draws)
    total, alive = np.zeros(draws.shape[:2]), np.ones(draws.shape[:2], bool)
    dtype = params["w1"].dtype
    for _ in range(world.limit):
        action = net.greedy(params, torch.from_numpy(play.seen).to(dtype))
        moved = play.step(action.numpy(), draws)
        total += moved.reward * alive
        alive &= ~(moved.terminated | moved.truncated)
        if not alive.any():
            break
    broken = torch.stack([~value.flatten(1).isfinite().all(1) for value in params.values()]).any(0)
    total[broken.numpy()] = -np.inf
    return total
