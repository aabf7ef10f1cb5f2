"""Vectorised environments: E parallel copies of each agent's own environment, with auto-reset."""

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
from equipoise.environments.heterogeneity import (
    AgentInterface,
    BodyParams,
    Bools,
    Floats,
    Ints,
    Obs,
)
from equipoise.environments.q_network import Net
from equipoise.utils import rng

SPLITS = ("test", "val", "public")


@dataclass
class StepResult:
    """One step of K agents with E copies each; arrays are ``[K, E, ...]``."""

    next_obs: Obs
    """The observation before auto-reset, ``[K, E, obs_dim]``."""
    reward: Floats
    terminated: Bools
    truncated: Bools


class VecEnvState(ABC):
    """Running episodes of some agents."""

    obs: Obs
    """Current observations, ``[K, E, obs_dim]``; after auto-reset."""

    @abstractmethod
    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> StepResult:
        """Take one step in every copy and reset the copies whose episode ended.

        Args:
            action: ``[K, E]`` action numbers, or ``[K, E, num_actions]`` vectors in [-1, 1].
            draws: ``[K, E, reset_noise_dim]``, uniform numbers for the resets.

        Returns:
            Rewards, observations and ends of episodes.
        """

    @abstractmethod
    def state_dict(self) -> State:
        """Return the state from which `VecEnv.resume` continues."""


class VecEnv(ABC):
    """The environments of all agents."""

    obs_dim: int
    num_actions: int
    """Number of discrete actions, or the dimension of an action vector."""
    continuous: bool = False
    """Whether actions are vectors in [-1, 1]."""
    image_shape: tuple[int, int, int] | None = None
    """Channels, height and width if observations are images."""
    not_checkpointable: bool = False
    """Whether the simulator cannot export its state: episodes are lost with the process."""
    reset_noise_dim: int
    """Uniform numbers that one reset consumes."""
    max_episode_steps: int
    min_return: float
    max_return: float
    """Range of an episode's return, for methods that need a utility in [0, 1]."""

    @abstractmethod
    def subset(self, ids: Ints) -> VecEnv:
        """Return the environments of these agents alone."""

    @abstractmethod
    def init_state(self, ids: Tensor, num_envs: int, seed: int) -> State:
        """Return the state of agents that have not acted yet, ``[K, num_envs, ...]``.

        Args:
            ids: The agents `[K]`.
            num_envs: Environments of each agent.
            seed: Seed of the run.
        """

    @abstractmethod
    def resume(self, ids: Tensor, state: State, draws: Floats) -> VecEnvState:
        """Continue the episodes of a `state_dict`.

        Args:
            ids: ``[K]``, the agents.
            state: Their last `state_dict`, or `init_state`.
            draws: ``[K, E, reset_noise_dim]``, uniform numbers. Used only if the episodes are lost.

        Returns:
            The running environments.
        """

    @abstractmethod
    def reset(self, ids: Tensor, draws: Floats) -> VecEnvState:
        """Start E new episodes per agent from uniform `draws` ``[K, E, reset_noise_dim]``."""


def episode_noise(env: VecEnv, ids: Tensor, split: str, episodes: int, seed: int) -> Floats:
    """Return the uniform numbers from which a split's episodes start.

    The first episodes are the same for any number of episodes.

    Args:
        env: The environments.
        ids: The agents `[K]`.
        split: Name of the split.
        episodes: Number of episodes of each agent.
        seed: Seed of the run.

    Returns:
        ``[K, episodes, reset_noise_dim]``.
    """
    keys = rng.keys(seed, ids.numpy(), 0, rng.EPISODES[SPLITS.index(split)])
    draws = rng.uniform(keys, episodes * env.reset_noise_dim)
    return draws.reshape(len(ids), episodes, env.reset_noise_dim)


def episode_returns(
    env: VecEnv, net: Net, ids: Tensor, params: Params, split: str, episodes: int, seed: int
) -> Floats:
    """Compute undiscounted returns of greedy policies, each agent in its own environment.

    Args:
        env: The environments.
        net: The network architecture.
        ids: ``[K]``, the agents.
        params: Parameters ``[K, ...]``.
        split: One of `SPLITS`; each split has its own initial states.
        episodes: Episodes per agent.
        seed: Seed of the initial states.

    Returns:
        ``[K, episodes]``. Minus infinity for agents whose parameters are not finite.
    """
    draws = episode_noise(env, ids, split, episodes, seed)
    state = env.reset(ids, draws)
    total = np.zeros(draws.shape[:2])
    alive = np.ones(draws.shape[:2], bool)
    dtype = params["w1"].dtype
    for _ in range(env.max_episode_steps):
        action = net.greedy(params, torch.from_numpy(state.obs).to(dtype))
        result = state.step(action.numpy(), draws)
        total += result.reward * alive
        alive &= ~(result.terminated | result.truncated)
        if not alive.any():
            break
    broken = torch.stack([~value.flatten(1).isfinite().all(1) for value in params.values()]).any(0)
    total[broken.numpy()] = -np.inf
    return total


class PhysicsVecEnv(VecEnv):
    """Classic control as array formulas: all agents and copies in one call."""

    def __init__(self, physics: Physics, bodies: BodyParams, interface: AgentInterface) -> None:
        """Create the environments.

        Args:
            physics: Equations of motion.
            bodies: Physical parameters of each agent's environment.
            interface: Motors and sensors of each agent.
        """
        self.physics = physics
        self.bodies = bodies
        self.interface = interface
        self.obs_dim = physics.obs_dim
        self.num_actions = physics.num_actions
        self.max_episode_steps = physics.max_episode_steps
        self.continuous = physics.continuous
        self.reset_noise_dim = physics.state_dim
        self.min_return = physics.min_return
        self.max_return = physics.max_return

    @classmethod
    def from_traits(
        cls, physics: Physics, u: Floats, differ: Sequence[str] = ("length",), seed: int = 0
    ) -> PhysicsVecEnv:
        """Create environments of agents with heterogeneity `u` ``[K]`` and the traits `differ`.

        Args:
            physics: Physics of the environment.
            u: Heterogeneity of each agent `[K]`.
            differ: Traits that differ between agents.
            seed: Seed of the traits' directions.

        Returns:
            The environments.
        """
        interface = AgentInterface.from_traits(differ, u, physics.obs_dim, seed)
        bodies = BodyParams.from_traits(
            differ, u, physics.agent_length(u), physics.default_length, interface.motor
        )
        return cls(physics, bodies, interface)

    def subset(self, ids: Ints) -> VecEnv:
        """Return the environments of these agents alone."""
        return PhysicsVecEnv(self.physics, self.bodies.subset(ids), self.interface.subset(ids))

    def init_state(self, ids: Tensor, num_envs: int, seed: int) -> State:
        """Draw the first states of agents that have not acted yet."""
        keys = rng.keys(seed, ids.numpy(), 0, rng.FIRST_STATES[0])
        draws = rng.uniform(keys, num_envs * self.reset_noise_dim)
        state = self.physics.initial_state(draws.reshape(len(ids), num_envs, self.reset_noise_dim))
        return {
            "state": torch.from_numpy(state),
            "clock": torch.zeros(len(ids), num_envs, dtype=torch.int64),
        }

    def resume(self, ids: Tensor, state: State, draws: Floats) -> VecEnvState:
        """Continue the episodes of a `state_dict`."""
        clock = state["clock"].numpy().copy()
        return _PhysicsEnvState(self, ids, state["state"].numpy(), clock)

    def reset(self, ids: Tensor, draws: Floats) -> VecEnvState:
        """Start new episodes."""
        clock = np.zeros(draws.shape[:2], np.int64)
        return _PhysicsEnvState(self, ids, self.physics.initial_state(draws), clock)


class _PhysicsEnvState(VecEnvState):
    """Running episodes: physical states ``[K, E, state_dim]`` and steps so far ``[K, E]``."""

    def __init__(self, env: PhysicsVecEnv, ids: Tensor, state: Floats, clock: Ints) -> None:
        rows = ids.numpy()
        self.physics = env.physics
        self.bodies = env.bodies.subset(rows)
        self.interface = env.interface.subset(rows)
        self.state = state
        self.clock = clock
        self.unit = np.array(self.physics.obs_scale, np.float32)
        self.obs = self._observe()

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> StepResult:
        self.state, reward, terminated = self.physics.step(self.state, action, self.bodies)
        self.clock += 1
        next_obs = self._observe()
        self.obs = next_obs
        truncated = ~terminated & (self.clock >= self.physics.max_episode_steps)
        done = terminated | truncated
        if done.any():
            self.state[done] = self.physics.initial_state(draws[done])
            self.clock[done] = 0
            self.obs = self._observe()
        return StepResult(next_obs, reward, terminated, truncated)

    def state_dict(self) -> State:
        return {"state": torch.from_numpy(self.state), "clock": torch.from_numpy(self.clock)}

    def _observe(self) -> Obs:
        return self.interface.observe(self.physics.observe(self.state) / self.unit)
