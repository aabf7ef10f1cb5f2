"""Any Gymnasium environment, with keyword arguments of each agent's own.

Episodes go on across rounds. Where a simulator can hand over its state (see :mod:`simulators`), that lies in the
client's state like everything else, so a resumed run is the same to the bit. Where it cannot, episodes live in this
process alone: after a resume they start anew, and the run says so.
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
from equipoise.environments.heterogeneity import Flags, Floats, Ints, Seen, Senses
from equipoise.environments.obs_encoding import Sight
from equipoise.environments.vec_env import Moved, Play, World
from equipoise.utils.errors import UsageError

LONGEST = 1000  # steps of an episode that Gymnasium itself never cuts
GOING_ON, SCORED = "going on", "scored"  # what environments are for: each purpose has its own


def keyword_arguments(text: str, agents: int) -> list[dict[str, Any]]:
    """Of each agent, from JSON (or a .json file): one object for all, or a list with one object for each agent."""
    if not text:
        return [{} for _ in range(agents)]
    try:
        found = json.loads(Path(text).read_text() if text.endswith(".json") else text)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"env_kwargs is neither JSON nor a readable .json file: {error}"
        ) from error
    each = [found] * agents if isinstance(found, dict) else found
    if not isinstance(each, list) or not all(isinstance(one, dict) for one in each):
        raise UsageError(
            "env_kwargs must be a JSON object, or a list with one object for each agent"
        )
    if len(each) != agents:
        raise UsageError(
            f"env_kwargs has {len(each)} objects for {agents} agents: give one for each"
        )
    return each


def makers(env_id: str, arguments: Sequence[dict[str, Any]]) -> list[Callable[..., Any]]:
    """How to make each agent's environment; each is made at once, so that a mistake is seen before any work."""
    if importlib.util.find_spec("gymnasium") is None:
        raise UsageError("this task needs Gymnasium: pip install 'equipoise[rl]'")
    if not env_id:
        raise UsageError(
            "task gym needs --env-id, such as LunarLander-v3, or your own as file.py:Class"
        )
    make = maker(env_id)
    for number, one in enumerate(arguments):
        try:
            make(**one).close()
        except Exception as error:  # whatever an environment's own code says of its arguments
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"environment '{env_id}' of agent {number} cannot be made: {reason}"
            ) from error
    return [partial(make, **one) for one in arguments]


@contextlib.contextmanager
def told_of(agent: int) -> Iterator[None]:
    """What an environment's own code raises, in one line with its place there."""
    try:
        yield
    except Exception as error:  # whatever code that others wrote may raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = (str(error).strip() or "no reason is given").splitlines()[0]
        raise UsageError(
            f"the environment of agent {agent} failed: {type(error).__name__}: {reason} "
            f"({Path(place.filename).name}, line {place.lineno}, in {place.name}): mend it there"
        ) from error


class GymWorld(World):
    """One vector environment per agent and purpose."""

    resets = 1

    def __init__(
        self,
        make: Sequence[Callable[..., Any]],
        lowest: float,
        highest: float,
        senses: Senses | None = None,
        frames: int = 1,
        usual: Sequence[tuple[Floats, Floats]] | None = None,
        known_as: Sequence[int] = (),
    ) -> None:
        """``usual``: mean and spread of what each agent is shown, which are then taken out of it. ``known_as``: their
        numbers in the federation, where these are some of its agents."""
        from gymnasium import spaces

        self.make, self.lowest, self.highest, self.known_as = (
            make,
            lowest,
            highest,
            known_as or range(len(make)),
        )
        one = make[0]()
        acts, spec = one.action_space, one.spec
        self.sight = Sight.of(one.observation_space, frames)
        with told_of(self.known_as[0]):
            shown, said = np.shape(one.reset(seed=0)[0]), one.observation_space.shape
        if shown != said:
            raise UsageError(
                f"the environment shows an array {shown}, and its observation_space says {said}"
            )
        self.state_size = state_size(one)
        self.forgets = not self.state_size
        one.close()
        if not isinstance(acts, spaces.Discrete) and not (
            isinstance(acts, spaces.Box) and len(acts.shape) == 1
        ):
            raise UsageError(
                f"the environment takes actions {acts}: only numbered ones or a vector can be chosen here"
            )
        self.observations, self.image = self.sight.observations, self.sight.image
        self.usual = usual
        if isinstance(acts, spaces.Box):
            self.continuous, self.actions, self.low, self.high = (
                True,
                int(acts.shape[0]),
                acts.low,
                acts.high,
            )
        else:
            self.actions = int(acts.n)
        self.limit = (spec.max_episode_steps if spec else None) or LONGEST
        self.senses = senses or Senses.of((), np.full(len(make), 0.5), self.observations, 0)
        self._made: dict[tuple[int, int, str], Any] = {}
        self.left: dict[int, tuple[int, bytes]] = {}
        """Where each agent's episodes were left in this process: by which call, and what was seen last."""

    def numbers(self, agent: int, shown: npt.NDArray[Any]) -> Seen:
        """What nets are given of what an agent's environments show."""
        seen = self.sight.numbers(shown)
        if self.usual is None:
            return seen
        middle, spread = self.usual[agent]
        return ((seen - middle) / spread).astype(np.float32)

    def subset(self, ids: Ints) -> World:
        usual = None if self.usual is None else [self.usual[agent] for agent in ids]
        makers, numbers = ([of[agent] for agent in ids] for of in (self.make, self.known_as))
        return GymWorld(
            makers,
            self.lowest,
            self.highest,
            self.senses.rows(ids),
            self.sight.frames,
            usual,
            numbers,
        )

    def envs(self, ids: Tensor, copies: int, purpose: str) -> list[Any]:
        """Vector environments of these agents, made once."""
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        for agent in ids.tolist():
            if (agent, copies, purpose) not in self._made:
                made = [self.make[agent]] * copies
                self._made[agent, copies, purpose] = SyncVectorEnv(
                    made, autoreset_mode=AutoresetMode.DISABLED
                )
        return [self._made[agent, copies, purpose] for agent in ids.tolist()]

    def fresh(self, ids: Tensor, copies: int, seed: int) -> State:
        k = len(ids)
        return {
            "calls": torch.zeros(k, dtype=torch.int64),
            "clock": torch.zeros(k, copies, dtype=torch.int64),
            "seen": torch.zeros(k, copies, self.observations),
            "state": torch.zeros(k, copies, self.state_size, dtype=torch.float64),
        }

    def open(self, ids: Tensor, kept: State, draws: Floats) -> Play:
        return GymPlay(self, ids, GOING_ON, draws, kept)

    def begin(self, ids: Tensor, draws: Floats) -> Play:
        return GymPlay(self, ids, SCORED, draws, None)

    def command(self, action: npt.NDArray[np.generic], motor: Floats) -> npt.NDArray[np.generic]:
        """What environments get of actions ``[K, E, ...]``: agents act in [-1, 1], or number their actions."""
        if self.continuous:
            chosen = np.clip(motor[..., None] * action.astype(np.float64), -1.0, 1.0)
            command: npt.NDArray[np.generic] = self.low + (chosen + 1.0) / 2.0 * (
                self.high - self.low
            )
            return command
        return np.where(
            motor < 0, self.actions - 1 - action.astype(np.int64), action.astype(np.int64)
        )


class GymPlay(Play):
    def __init__(
        self, world: GymWorld, ids: Tensor, purpose: str, draws: Floats, kept: State | None
    ) -> None:
        self.world, self.agents, self.senses = world, ids.tolist(), world.senses.rows(ids.numpy())
        self.envs = world.envs(ids, draws.shape[1], purpose)
        if kept is None:
            kept = world.fresh(ids, draws.shape[1], 0)
        self.calls, self.clock, raw = (
            kept[name].numpy().copy() for name in ("calls", "clock", "seen")
        )
        for k, agent in enumerate(self.agents):
            if purpose == GOING_ON and world.left.get(agent) == _mark(self.calls[k], raw[k]):
                continue  # its episodes stand where it left them
            with told_of(world.known_as[agent]):
                first = self.envs[k].reset(seed=_seeds(draws[k]))[0]
            if self.calls[k] and world.state_size:
                for env, state in zip(self.envs[k].envs, kept["state"][k].numpy(), strict=True):
                    load(env, state)
            else:
                raw[k], self.clock[k] = world.sight.begin(world.numbers(agent, first)), 0
        self.raw: Seen = raw
        self.seen = self.senses.seen(raw)

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> Moved:
        orders = self.world.command(action, self.senses.motor)
        steps = []
        for agent, env, own in zip(self.agents, self.envs, orders, strict=True):
            with told_of(self.world.known_as[agent]):
                steps.append(env.step(own))
        shown = [
            self.world.numbers(agent, step[0])
            for agent, step in zip(self.agents, steps, strict=True)
        ]
        following = self.world.sight.go_on(self.raw, np.stack(shown))
        reward, terminated, truncated = (
            np.stack([step[part] for step in steps]) for part in (1, 2, 3)
        )
        self.clock += 1
        truncated = ~terminated & (truncated | (self.clock >= self.world.limit))
        self.raw = self._restart(following, terminated | truncated, draws)
        self.seen = self.senses.seen(self.raw)
        return Moved(self.senses.seen(following), reward, terminated, truncated)

    def _restart(self, seen: Seen, over: Flags, draws: Floats) -> Seen:
        self.clock[over] = 0
        if not over.any():
            return seen
        seen = seen.copy()
        for k in np.flatnonzero(over.any(1)):
            with told_of(self.world.known_as[self.agents[k]]):
                again, _ = self.envs[k].reset(
                    seed=_seeds(draws[k]), options={"reset_mask": over[k]}
                )
            seen[k, over[k]] = self.world.sight.begin(self.world.numbers(self.agents[k], again))[
                over[k]
            ]
        return seen

    def picture(self) -> npt.NDArray[np.uint8]:
        """Of the first copy of the first agent, by its own renderer."""
        return np.asarray(self.envs[0].render()[0], np.uint8)

    def kept(self) -> State:
        calls, state = self.calls + 1, np.zeros((*self.clock.shape, self.world.state_size))
        if self.world.state_size:
            state = np.stack([[save(one) for one in env.envs] for env in self.envs])
        self.world.left.update(
            {agent: _mark(calls[k], self.raw[k]) for k, agent in enumerate(self.agents)}
        )
        return {
            "calls": torch.from_numpy(calls),
            "clock": torch.from_numpy(self.clock),
            "seen": torch.from_numpy(self.raw),
            "state": torch.from_numpy(state),
        }


def _mark(call: int, seen: Seen) -> tuple[int, bytes]:
    return int(call), seen.tobytes()


def _seeds(draws: Floats) -> list[int]:
    return [int(draw * 2**31) for draw in draws[:, 0]]


CLASSIC = "gymnasium.envs.classic_control."


def maker(env_id: str) -> Callable[..., Any]:
    """What makes the environment of this name: Gymnasium's, or one's own as ``module:Class`` or ``file.py:Class``."""
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
    except Exception as error:  # whatever the user's own file raises
        raise UsageError(f"env_id is '{env_id}', and {where} cannot be read: {error}") from error
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Env)):
        raise UsageError(
            f"env_id is '{env_id}': {where} has no class '{name}' that extends gymnasium.Env"
        )
    return kind


def state_size(env: Any) -> int:
    """Numbers of a state; 0 where the simulator does not hand it over."""
    env.reset(seed=0)
    return len(save(env)) if _kind(env) else 0


def save(env: Any) -> Floats:
    """All that the simulator goes on from."""
    body, kind = env.unwrapped, _kind(env)
    if kind == "own":
        return np.asarray(body.save_state(), np.float64)
    if kind == "classic":
        return np.asarray(body.state, np.float64)
    mujoco: Any = importlib.import_module("mujoco")
    state = np.empty(mujoco.mj_stateSize(body.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(body.model, body.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def load(env: Any, state: Floats) -> None:
    """Go on from there; the environment was reset before."""
    body, kind = env.unwrapped, _kind(env)
    if kind == "own":
        body.load_state(state)
    elif kind == "classic":
        body.state = np.asarray(state, np.asarray(body.state).dtype)
    else:
        mujoco: Any = importlib.import_module("mujoco")
        what = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(body.model, body.data, state, what)
        mujoco.mj_forward(body.model, body.data)  # what follows from it, such as contacts
        mujoco.mj_setState(body.model, body.data, state, what)  # the solver's start is part of it


def _kind(env: Any) -> str:
    body = env.unwrapped
    if hasattr(body, "save_state") and hasattr(body, "load_state"):
        return "own"
    if type(body).__module__.startswith(CLASSIC) and getattr(body, "state", None) is not None:
        return "classic"
    return (
        "mujoco"
        if hasattr(body, "model") and hasattr(body, "data") and hasattr(body.data, "qpos")
        else ""
    )
