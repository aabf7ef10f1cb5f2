"""Any Gymnasium environment, with keyword arguments of each agent's own.

A foreign environment's state cannot be kept, so its episodes end with the round: what was cut counts as cut, and the
next round starts from seeds that follow from (seed, agent, round). A resumed run is therefore the same to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from equipoise.contract import State
from equipoise.core.errors import UsageError
from equipoise.frl.deep.physics import Flags, Floats, Ints
from equipoise.frl.deep.worlds import Moved, Play, Seen, World

LONGEST = 1000  # steps of an episode that Gymnasium itself never cuts


def keyword_arguments(text: str, agents: int) -> list[dict[str, Any]]:
    """Of each agent, from JSON (or a .json file): one object for all, or a list with one object for each agent."""
    if not text:
        return [{} for _ in range(agents)]
    try:
        found = json.loads(Path(text).read_text() if text.endswith(".json") else text)
    except (OSError, ValueError) as error:
        raise UsageError(f"env_kwargs is neither JSON nor a readable .json file: {error}") from error
    each = [found] * agents if isinstance(found, dict) else found
    if not isinstance(each, list) or not all(isinstance(one, dict) for one in each):
        raise UsageError("env_kwargs must be a JSON object, or a list with one object for each agent")
    if len(each) != agents:
        raise UsageError(f"env_kwargs has {len(each)} objects for {agents} agents: give one for each")
    return each


def makers(env_id: str, arguments: Sequence[dict[str, Any]]) -> list[Callable[[], Any]]:
    """How to make each agent's environment; one is made at once, so that a mistake is seen before any work."""
    try:
        import gymnasium
    except ImportError as error:
        raise UsageError("this task needs Gymnasium: pip install 'equipoise[rl]'") from error
    if not env_id:
        raise UsageError("task gym needs --env-id, such as LunarLander-v3")
    for number, one in enumerate(arguments):
        try:
            gymnasium.make(env_id, **one).close()
        except (gymnasium.error.Error, TypeError, ValueError, OSError, ImportError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"environment '{env_id}' of agent {number} cannot be made: {reason}") from error
    return [partial(gymnasium.make, env_id, **one) for one in arguments]


class GymWorld(World):
    """One vector environment an agent."""

    resets = 1

    def __init__(self, make: Sequence[Callable[[], Any]], lowest: float, highest: float) -> None:
        from gymnasium import spaces

        self.make, self.lowest, self.highest = make, lowest, highest
        one = make[0]()
        seen, acts = one.observation_space, one.action_space
        one.close()
        if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
            raise UsageError(f"the environment shows {seen}: only vectors of numbers can be learned from here")
        if not isinstance(acts, spaces.Discrete) and not (isinstance(acts, spaces.Box) and len(acts.shape) == 1):
            raise UsageError(f"the environment takes actions {acts}: only numbered ones or a vector can be chosen here")
        self.observations = seen.shape[0]
        if isinstance(acts, spaces.Box):
            self.continuous, self.actions, self.low, self.high = True, int(acts.shape[0]), acts.low, acts.high
        else:
            self.actions = int(acts.n)
        self.limit = one.spec.max_episode_steps or LONGEST
        self._made: dict[tuple[int, int], Any] = {}

    def subset(self, ids: Ints) -> World:
        return GymWorld([self.make[agent] for agent in ids], self.lowest, self.highest)

    def envs(self, ids: Tensor, copies: int) -> list[Any]:
        """Vector environments of these agents; made once, for they hold nothing between calls."""
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        for agent in ids.tolist():
            if (agent, copies) not in self._made:
                made = [self.make[agent]] * copies
                self._made[agent, copies] = SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED)
        return [self._made[agent, copies] for agent in ids.tolist()]

    def fresh(self, ids: Tensor, copies: int, seed: int) -> State:
        return {}

    def open(self, ids: Tensor, kept: State, draws: Floats) -> Play:
        return _GymPlay(self, self.envs(ids, draws.shape[1]), draws)

    def begin(self, ids: Tensor, draws: Floats) -> Play:
        return _GymPlay(self, self.envs(ids, draws.shape[1]), draws)


class _GymPlay(Play):
    def __init__(self, world: GymWorld, envs: list[Any], draws: Floats) -> None:
        self.world, self.envs = world, envs
        self.clock = np.zeros(draws.shape[:2], np.int64)
        self.seen = np.stack([env.reset(seed=_seeds(row))[0] for env, row in zip(envs, draws, strict=True)])
        self.seen = self.seen.astype(np.float32)

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> Moved:
        if self.world.continuous:  # agents act in [-1, 1]
            low, high = self.world.low, self.world.high
            action = low + (action.astype(np.float64) + 1.0) / 2.0 * (high - low)
        steps = [env.step(own) for env, own in zip(self.envs, action, strict=True)]
        following, reward, terminated, truncated = (np.stack([step[part] for step in steps]) for part in range(4))
        following = following.astype(np.float32)
        self.clock += 1
        truncated = ~terminated & (truncated | (self.clock >= self.world.limit))
        self.seen = self._restart(following, terminated | truncated, draws)
        return Moved(following, reward, terminated, truncated)

    def _restart(self, seen: Seen, over: Flags, draws: Floats) -> Seen:
        self.clock[over] = 0
        if not over.any():
            return seen
        seen = seen.copy()
        for k in np.flatnonzero(over.any(1)):
            again, _ = self.envs[k].reset(seed=_seeds(draws[k]), options={"reset_mask": over[k]})
            seen[k, over[k]] = again[over[k]]
        return seen

    def kept(self) -> State:
        return {}


def _seeds(draws: Floats) -> list[int]:
    return [int(draw * 2**31) for draw in draws[:, 0]]
