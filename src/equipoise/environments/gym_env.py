"""Any Gymnasium environment, with each agent's own keyword arguments.

Episodes continue across rounds. If a simulator can export its state (MuJoCo, classic control, or a
class with `save_state` and `load_state`), the state is part of the client's state and a resumed run
is equal to the bit. If it cannot, episodes live in this process alone: after a resume they restart,
and the run warns about it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core import State
from equipoise.environments.heterogeneity import AgentInterface, Bools, Floats, Ints, Obs
from equipoise.environments.obs_encoding import ObsEncoder
from equipoise.environments.vec_env import StepResult, VecEnv, VecEnvState
from equipoise.utils.errors import UsageError, install_hint

DEFAULT_MAX_EPISODE_STEPS = 1000  # for environments that Gymnasium does not truncate
# Each purpose has its own environments, so that evaluation does not interrupt training episodes.
TRAINING = "training"
EVALUATION = "evaluation"
CLASSIC_CONTROL_MODULE = "gymnasium.envs.classic_control."


def parse_env_kwargs(text: str, agents: int) -> list[dict[str, Any]]:
    """Parse the option `env_kwargs`.

    Args:
        text: JSON or the path of a .json file: one object for all, or a list with one per agent.
        agents: Number of agents.

    Returns:
        Keyword arguments of each agent's environment.

    Raises:
        UsageError: If the text is not such JSON.
    """
    if not text:
        return [{} for _ in range(agents)]
    try:
        parsed = json.loads(Path(text).read_text() if text.endswith(".json") else text)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"env_kwargs is neither JSON nor a readable .json file: {error}"
        ) from error
    return kwargs_of_agents(parsed, agents)


def kwargs_of_agents(given: object, agents: int) -> list[dict[str, Any]]:
    """Return the keyword arguments of each agent's environment.

    Args:
        given: One mapping for all agents, or a list with one per agent.
        agents: Number of agents.

    Raises:
        UsageError: If they are not of this form.
    """
    per_agent = [given] * agents if isinstance(given, dict) else given
    if not isinstance(per_agent, list) or not all(isinstance(one, dict) for one in per_agent):
        raise UsageError(
            "env_kwargs must be a JSON object (in Python a dict), or a list with one for each agent"
        )
    if len(per_agent) != agents:
        raise UsageError(
            f"env_kwargs has {len(per_agent)} objects for {agents} agents: give one for each"
        )
    return per_agent


def env_factories(env_id: str, env_kwargs: Sequence[dict[str, Any]]) -> list[Callable[..., Any]]:
    """Return a factory of each agent's environment.

    Every environment is made once, so that mistakes are found before training.

    Args:
        env_id: Gymnasium's name of the environment, ``module:Class`` or ``file.py:Class``.
        env_kwargs: Keyword arguments of each agent's environment.

    Raises:
        UsageError: If Gymnasium is not installed or an environment cannot be made.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise UsageError(f"this task needs Gymnasium: {install_hint('rl')}")
    if not env_id:
        raise UsageError(
            "task gym needs --env-id, such as LunarLander-v3, or your own as file.py:Class"
        )
    return checked_factories(env_factory(env_id), env_id, env_kwargs)


def checked_factories(
    make: Callable[..., Any], name: str, env_kwargs: Sequence[dict[str, Any]]
) -> list[Callable[..., Any]]:
    """Return a factory of each agent's environment, each of which was tried once.

    Args:
        make: Makes an environment from keyword arguments.
        name: Name of the environment in errors.
        env_kwargs: Keyword arguments of each agent's environment.

    Raises:
        UsageError: If an environment cannot be made.
    """
    for agent, kwargs in enumerate(env_kwargs):
        try:
            make(**kwargs).close()
        except Exception as error:  # user code may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"environment '{name}' of agent {agent} cannot be made: {reason}"
            ) from error
    return [partial(make, **kwargs) for kwargs in env_kwargs]


def env_factory(env_id: str) -> Callable[..., Any]:
    """Return the factory of an environment: Gymnasium's, or a user's ``file.py:Class``.

    Raises:
        UsageError: If the user's file cannot be imported or has no such environment class.
    """
    import gymnasium

    where, colon, name = env_id.rpartition(":")
    if not colon or not (where.endswith(".py") or importlib.util.find_spec(where.split(".")[0])):
        return partial(gymnasium.make, env_id)
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except Exception as error:  # user code may raise anything
        raise UsageError(f"env_id is '{env_id}', and {where} cannot be read: {error}") from error
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Env)):
        raise UsageError(
            f"env_id is '{env_id}': {where} has no class '{name}' that extends gymnasium.Env"
        )
    return kind


@contextlib.contextmanager
def env_errors(agent: int) -> Iterator[None]:
    """Turn exceptions of an environment's own code into one-line errors.

    Args:
        agent: The agent whose environment runs.

    Returns:
        A context for calls of the environment.

    Raises:
        UsageError: With the message and its place in the environment's code.
    """
    try:
        yield
    except Exception as error:  # user code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = (str(error).strip() or "no reason is given").splitlines()[0]
        raise UsageError(
            f"the environment of agent {agent} failed: {type(error).__name__}: {reason} "
            f"({Path(place.filename).name}, line {place.lineno}, in {place.name}): mend it there"
        ) from error


class GymVecEnv(VecEnv):
    """One Gymnasium vector environment per agent and purpose."""

    reset_noise_dim = 1

    def __init__(
        self,
        factories: Sequence[Callable[..., Any]],
        min_return: float,
        max_return: float,
        interface: AgentInterface | None = None,
        frames: int = 1,
        obs_stats: Sequence[tuple[Floats, Floats]] | None = None,
        global_ids: Sequence[int] = (),
    ) -> None:
        """Create the environments.

        Args:
            factories: Factory of each agent's environment.
            min_return: A poor return.
            max_return: A good return.
            interface: Motors and sensors of the agents; identity if None.
            frames: Number of stacked observations.
            obs_stats: Mean and standard deviation of each agent's observations, for normalisation.
            global_ids: Ids of these agents in the federation, if they are a subset. For messages.

        Raises:
            UsageError: If observations or actions are of a kind that is not supported.
        """
        self.factories = factories
        self.min_return = min_return
        self.max_return = max_return
        self.global_ids = global_ids or range(len(factories))
        self.obs_stats = obs_stats
        env = factories[0]()
        action_space = env.action_space
        spec = env.spec
        self.encoder = ObsEncoder.from_space(env.observation_space, frames)
        with env_errors(self.global_ids[0]):
            shape = np.shape(env.reset(seed=0)[0])
        declared = env.observation_space.shape
        if shape != declared:
            raise UsageError(
                f"the environment shows an array {shape}, and its observation_space says {declared}"
            )
        self.state_size = state_size(env)
        self.not_checkpointable = not self.state_size
        env.close()
        self._set_action_space(action_space)
        self.obs_dim = self.encoder.obs_dim
        self.image_shape = self.encoder.image_shape
        limit = spec.max_episode_steps if spec else None
        self.max_episode_steps = limit or DEFAULT_MAX_EPISODE_STEPS
        self.interface = interface or AgentInterface.from_traits(
            (), np.full(len(factories), 0.5), self.obs_dim, 0
        )
        self.resume_marks: dict[int, tuple[int, bytes]] = {}
        """Where each agent's episodes stand in this process; see `_resume_mark`."""
        self._vector_envs: dict[tuple[int, int, str], Any] = {}

    def _set_action_space(self, space: Any) -> None:
        """Read the number and kind of actions."""
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            self.num_actions = int(space.n)
            return
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise UsageError(
                f"the environment takes actions {space}: "
                "only numbered ones or a vector can be chosen here"
            )
        self.continuous = True
        self.num_actions = int(space.shape[0])
        self.low = space.low
        self.high = space.high

    def encode(self, agent: int, obs: npt.NDArray[Any]) -> Obs:
        """Encode an agent's observations as normalised numbers ``[..., size]``."""
        encoded = self.encoder.encode(obs)
        if self.obs_stats is None:
            return encoded
        mean, std = self.obs_stats[agent]
        return ((encoded - mean) / std).astype(np.float32)

    def subset(self, ids: Ints) -> VecEnv:
        """Return the environments of these agents alone."""
        return GymVecEnv(
            [self.factories[agent] for agent in ids],
            self.min_return,
            self.max_return,
            self.interface.subset(ids),
            self.encoder.frames,
            None if self.obs_stats is None else [self.obs_stats[agent] for agent in ids],
            [self.global_ids[agent] for agent in ids],
        )

    def envs(self, ids: Tensor, num_envs: int, purpose: str) -> list[Any]:
        """Return vector environments of these agents; each is made once and kept.

        Args:
            ids: The agents `[K]`.
            num_envs: Environments of each agent.
            purpose: What they are used for, so that evaluation does not disturb training.
        """
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        for agent in ids.tolist():
            if (agent, num_envs, purpose) not in self._vector_envs:
                factories = [self.factories[agent]] * num_envs
                self._vector_envs[agent, num_envs, purpose] = SyncVectorEnv(
                    factories, autoreset_mode=AutoresetMode.DISABLED
                )
        return [self._vector_envs[agent, num_envs, purpose] for agent in ids.tolist()]

    def init_state(self, ids: Tensor, num_envs: int, seed: int) -> State:
        """Return the state of agents that have not acted: `resume` then resets them."""
        k = len(ids)
        return {
            "calls": torch.zeros(k, dtype=torch.int64),
            "clock": torch.zeros(k, num_envs, dtype=torch.int64),
            "obs": torch.zeros(k, num_envs, self.obs_dim),
            "state": torch.zeros(k, num_envs, self.state_size, dtype=torch.float64),
        }

    def resume(self, ids: Tensor, state: State, draws: Floats) -> VecEnvState:
        """Continue training episodes, or restart those that are lost."""
        return GymEnvState(self, ids, TRAINING, draws, state)

    def reset(self, ids: Tensor, draws: Floats) -> VecEnvState:
        """Start evaluation episodes."""
        return GymEnvState(self, ids, EVALUATION, draws, None)

    def env_actions(self, action: npt.NDArray[np.generic], motor: Floats) -> npt.NDArray[Any]:
        """Map agents' actions to the environment's action space.

        Args:
            action: ``[K, E]`` action numbers, or ``[K, E, num_actions]`` vectors in [-1, 1].
            motor: ``[K, 1]``, relative motor strengths. A negative one mirrors action numbers.

        Returns:
            Actions as the environments take them.
        """
        if self.continuous:
            scaled = np.clip(motor[..., None] * action.astype(np.float64), -1.0, 1.0)
            vector: npt.NDArray[Any] = self.low + (scaled + 1.0) / 2.0 * (self.high - self.low)
            return vector
        number = action.astype(np.int64)
        return np.where(motor < 0, self.num_actions - 1 - number, number)


class GymEnvState(VecEnvState):
    """Running episodes of Gymnasium environments."""

    def __init__(
        self, env: GymVecEnv, ids: Tensor, purpose: str, draws: Floats, state: State | None
    ) -> None:
        """Resume or start episodes.

        Args:
            env: All agents' environments.
            ids: ``[K]``, the agents.
            purpose: `TRAINING` or `EVALUATION`.
            draws: ``[K, E, 1]``, uniform numbers from which reset seeds are made.
            state: The last `state_dict`, or None to start new episodes.
        """
        self.env = env
        self.agents = ids.tolist()
        self.interface = env.interface.subset(ids.numpy())
        self.envs = env.envs(ids, draws.shape[1], purpose)
        if state is None:
            state = env.init_state(ids, draws.shape[1], 0)
        self.calls = state["calls"].numpy().copy()
        self.clock = state["clock"].numpy().copy()
        encoded = state["obs"].numpy().copy()
        for k, agent in enumerate(self.agents):
            mark = _resume_mark(self.calls[k], encoded[k])
            if purpose == TRAINING and env.resume_marks.get(agent) == mark:
                continue  # the episodes still stand where this agent left them
            with env_errors(env.global_ids[agent]):
                first = self.envs[k].reset(seed=_reset_seeds(draws[k]))[0]
            if self.calls[k] and env.state_size:
                saved = state["state"][k].numpy()
                for single_env, single_state in zip(self.envs[k].envs, saved, strict=True):
                    load_state(single_env, single_state)
            else:
                encoded[k] = env.encoder.first_stack(env.encode(agent, first))
                self.clock[k] = 0
        self.encoded: Obs = encoded
        self.obs = self.interface.observe(encoded)

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> StepResult:
        """Take one step in every copy and reset the copies whose episode ended."""
        actions = self.env.env_actions(action, self.interface.motor)
        steps = []
        for agent, env, own in zip(self.agents, self.envs, actions, strict=True):
            with env_errors(self.env.global_ids[agent]):
                steps.append(env.step(own))
        newest = [
            self.env.encode(agent, step[0]) for agent, step in zip(self.agents, steps, strict=True)
        ]
        next_encoded = self.env.encoder.push(self.encoded, np.stack(newest))
        reward, terminated, truncated = (
            np.stack([step[part] for step in steps]) for part in (1, 2, 3)
        )
        self.clock += 1
        truncated = ~terminated & (truncated | (self.clock >= self.env.max_episode_steps))
        self.encoded = self._auto_reset(next_encoded, terminated | truncated, draws)
        self.obs = self.interface.observe(self.encoded)
        return StepResult(self.interface.observe(next_encoded), reward, terminated, truncated)

    def _auto_reset(self, encoded: Obs, done: Bools, draws: Floats) -> Obs:
        """Reset the copies that are done; return the observations after the reset."""
        self.clock[done] = 0
        if not done.any():
            return encoded
        encoded = encoded.copy()
        encoder = self.env.encoder
        for k in np.flatnonzero(done.any(1)):
            agent = self.agents[k]
            with env_errors(self.env.global_ids[agent]):
                first, _ = self.envs[k].reset(
                    seed=_reset_seeds(draws[k]), options={"reset_mask": done[k]}
                )
            encoded[k, done[k]] = encoder.first_stack(self.env.encode(agent, first))[done[k]]
        return encoded

    def render(self) -> npt.NDArray[np.uint8]:
        """Render the first copy of the first agent."""
        return np.asarray(self.envs[0].render()[0], np.uint8)

    def state_dict(self) -> State:
        """Return what `GymVecEnv.resume` continues from."""
        calls = self.calls + 1
        state = np.zeros((*self.clock.shape, self.env.state_size))
        if self.env.state_size:
            state = np.stack([[save_state(one) for one in env.envs] for env in self.envs])
        for k, agent in enumerate(self.agents):
            self.env.resume_marks[agent] = _resume_mark(calls[k], self.encoded[k])
        return {
            "calls": torch.from_numpy(calls),
            "clock": torch.from_numpy(self.clock),
            "obs": torch.from_numpy(self.encoded),
            "state": torch.from_numpy(state),
        }


def _resume_mark(calls: int, encoded: Obs) -> tuple[int, bytes]:
    """Identify where episodes stand: the number of `state_dict` calls and the last observation."""
    return int(calls), encoded.tobytes()


def _reset_seeds(draws: Floats) -> list[int]:
    """Turn uniform numbers ``[E, 1]`` into seeds."""
    return [int(draw * 2**31) for draw in draws[:, 0]]


def state_size(env: Any) -> int:
    """Return the size of the simulator's state; 0 if it cannot be exported."""
    env.reset(seed=0)
    return len(save_state(env)) if _checkpoint_kind(env) else 0


def save_state(env: Any) -> Floats:
    """Export the simulator's whole state."""
    unwrapped = env.unwrapped
    kind = _checkpoint_kind(env)
    if kind == "own":
        return np.asarray(unwrapped.save_state(), np.float64)
    if kind == "classic":
        return np.asarray(unwrapped.state, np.float64)
    mujoco: Any = importlib.import_module("mujoco")
    what = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(unwrapped.model, what))
    mujoco.mj_getState(unwrapped.model, unwrapped.data, state, what)
    return state


def load_state(env: Any, state: Floats) -> None:
    """Import a state of `save_state` into an environment that was reset before."""
    unwrapped = env.unwrapped
    kind = _checkpoint_kind(env)
    if kind == "own":
        unwrapped.load_state(state)
    elif kind == "classic":
        unwrapped.state = np.asarray(state, np.asarray(unwrapped.state).dtype)
    else:
        mujoco: Any = importlib.import_module("mujoco")
        what = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(unwrapped.model, unwrapped.data, state, what)
        # mj_forward computes derived values such as contacts, but changes the solver's warm start,
        # which is part of the state: so it is set again.
        mujoco.mj_forward(unwrapped.model, unwrapped.data)
        mujoco.mj_setState(unwrapped.model, unwrapped.data, state, what)


def _checkpoint_kind(env: Any) -> str:
    """Return how to export the state: "own", "classic", "mujoco", or "" if it is impossible."""
    unwrapped = env.unwrapped
    if hasattr(unwrapped, "save_state") and hasattr(unwrapped, "load_state"):
        return "own"
    is_classic = type(unwrapped).__module__.startswith(CLASSIC_CONTROL_MODULE)
    if is_classic and getattr(unwrapped, "state", None) is not None:
        return "classic"
    has_model = hasattr(unwrapped, "model") and hasattr(unwrapped, "data")
    if has_model and hasattr(unwrapped.data, "qpos"):
        return "mujoco"
    return ""
