"""MuJoCo's Hopper and HalfCheetah, each agent with its own leg thickness.

The agent's model is Gymnasium's XML file with other capsule radii. MuJoCo is called directly, with
the rules of Gymnasium's Hopper-v5 and HalfCheetah-v5: the same action in the same state leads to
the same state to the bit and to the same reward to 1e-12, without the overhead of wrappers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.core import State, TrainingConfig
from equipoise.environments.deep_task import DeepRLConfig, DeepRLTask
from equipoise.environments.heterogeneity import Bools, Floats, Ints, Obs
from equipoise.environments.sac_agent import standard_normal
from equipoise.environments.vec_env import StepResult, VecEnv, VecEnvState
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

MAX_EPISODE_STEPS = 1000
# Hopper's healthy range, and the bound of its observed speeds.
MIN_HEIGHT = 0.7
MAX_TILT = 0.2
MAX_STATE = 100.0
MAX_OBS_SPEED = 10.0
FRAME_WIDTH = 320
FRAME_HEIGHT = 200


@dataclass(frozen=True)
class Robot:
    """One of Gymnasium's MuJoCo models and the rules of its environment."""

    name: str
    env_id: str
    asset: str
    """File name of the model."""
    legs: tuple[str, ...]
    """Names of the capsules whose radius differs between agents."""
    good_return: float
    """Upper end of the range of returns, for utilities in [0, 1]."""
    frame_skip: int
    """Simulator steps per action."""
    control_cost: float
    """Cost of the squared action."""
    reset_noise: float
    """Scale of the noise on initial positions and speeds."""
    can_fall: bool
    """Whether a healthy step pays 1 and a fall terminates; observed speeds are clipped then."""


HOPPER = Robot(
    name="hopper",
    env_id="Hopper-v5",
    asset="hopper.xml",
    legs=("leg_geom",),
    good_return=1000.0,
    frame_skip=4,
    control_cost=1e-3,
    reset_noise=5e-3,
    can_fall=True,
)
HALF_CHEETAH = Robot(
    name="half-cheetah",
    env_id="HalfCheetah-v5",
    asset="half_cheetah.xml",
    legs=("bthigh", "bshin", "fthigh", "fshin"),
    good_return=3000.0,
    frame_skip=5,
    control_cost=0.1,
    reset_noise=0.1,
    can_fall=False,
)


def leg_radius(default: float, u: float) -> float:
    """Return default + 0.02 (u - 1/2). Defaults: Hopper 0.04, HalfCheetah 0.046."""
    return default + 0.02 * (u - 0.5)


def with_leg_radius(xml: str, legs: tuple[str, ...], u: float) -> str:
    """Return the model's XML with other capsule radii; lengths stay.

    Raises:
        UsageError: If the model has no such capsules.
    """
    for leg in legs:
        match = re.search(rf'(<geom [^>]*name="{leg}"[^>]*size=")([0-9.]+)( )', xml)
        if match is None:
            raise UsageError(
                f"the model of this Gymnasium has no geom '{leg}' with a size: use Gymnasium 1.x"
            )
        geom = f"{match[1]}{leg_radius(float(match[2]), u):.6g}{match[3]}"
        xml = xml[: match.start()] + geom + xml[match.end() :]
    return xml


def import_mujoco() -> Any:
    """Return the module `mujoco`, which is an optional dependency."""
    return importlib.import_module("mujoco")


def load_model(robot: Robot, u: float) -> Any:
    """Return the MuJoCo model of an agent with heterogeneity u."""
    import gymnasium

    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    xml = (assets / robot.asset).read_text()
    # MuJoCo writes its log file into the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return import_mujoco().MjModel.from_xml_string(with_leg_radius(xml, robot.legs, u))


class MujocoVecEnv(VecEnv):
    """One MuJoCo model per agent; the state is fully exported."""

    continuous = True
    max_episode_steps = MAX_EPISODE_STEPS

    def __init__(self, robot: Robot, models: Sequence[Any]) -> None:
        """Create the environments.

        Args:
            robot: The rules of the environment.
            models: The MuJoCo model of each agent.
        """
        self.robot = robot
        self.models = models
        model = models[0]
        self.num_positions = int(model.nq)
        self.num_actions = int(model.nu)
        self.reset_noise_dim = int(model.nq + model.nv)
        self.obs_dim = int(model.nq + model.nv - 1)
        self.min_return = 0.0
        self.max_return = robot.good_return
        self.state_spec = import_mujoco().mjtState.mjSTATE_INTEGRATION
        self.state_size = int(import_mujoco().mj_stateSize(model, self.state_spec))
        self.fps = 1.0 / (float(model.opt.timestep) * robot.frame_skip)  # actions per second

    def subset(self, ids: Ints) -> VecEnv:
        """Return the environments of these agents alone."""
        return MujocoVecEnv(self.robot, [self.models[agent] for agent in ids])

    def init_state(self, ids: Tensor, num_envs: int, seed: int) -> State:
        """Draw the first states of agents that have not acted yet."""
        keys = rng.keys(seed, ids.numpy(), 0, rng.FIRST_STATES[0])
        draws = rng.uniform(keys, num_envs * self.reset_noise_dim)
        return self.reset(ids, draws.reshape(len(ids), num_envs, self.reset_noise_dim)).state_dict()

    def resume(self, ids: Tensor, state: State, draws: Floats) -> VecEnvState:
        """Continue the episodes of a `state_dict`."""
        env_state = MujocoEnvState(self, ids, state["clock"].numpy().copy())
        env_state.load(state["state"].numpy())
        return env_state

    def reset(self, ids: Tensor, draws: Floats) -> VecEnvState:
        """Start new episodes."""
        env_state = MujocoEnvState(self, ids, np.zeros(draws.shape[:2], np.int64))
        env_state.start(np.ones(draws.shape[:2], bool), draws)
        return env_state


class MujocoEnvState(VecEnvState):
    """Running episodes in MuJoCo."""

    def __init__(self, env: MujocoVecEnv, ids: Tensor, clock: Ints) -> None:
        """Allocate the simulators; call `load` or `start` next.

        Args:
            env: All agents' environments.
            ids: ``[K]``, the agents.
            clock: ``[K, E]``, steps taken in each running episode.
        """
        self.env = env
        self.robot = env.robot
        self.clock = clock
        self.mujoco = import_mujoco()
        agents = [agent for agent in ids.tolist() for _ in range(clock.shape[1])]
        self.simulators = [
            (env.models[agent], self.mujoco.MjData(env.models[agent])) for agent in agents
        ]
        # These arrays are views of the simulators' own memory.
        self.controls = [data.ctrl for _, data in self.simulators]
        self.coordinates = [part for _, data in self.simulators for part in (data.qpos, data.qvel)]

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> StepResult:
        """Take one step in every copy and reset the copies whose episode ended."""
        control = np.clip(action.astype(np.float64), -1.0, 1.0)
        before = self.state[..., 0]
        mj_step = self.mujoco.mj_step
        frame_skip = self.robot.frame_skip
        flat_control = control.reshape(len(self.simulators), -1)
        for (model, data), target, source in zip(
            self.simulators, self.controls, flat_control, strict=True
        ):
            target[:] = source
            mj_step(model, data, frame_skip)
        self._observe()
        next_obs = self.obs
        fallen = self._fallen()
        progress = (self.state[..., 0] - before) * self.env.fps
        reward = progress - self.robot.control_cost * np.square(control).sum(-1)
        if self.robot.can_fall:
            reward = reward + ~fallen
        self.clock += 1
        truncated = ~fallen & (self.clock >= self.env.max_episode_steps)
        done = fallen | truncated
        if done.any():
            self.clock[done] = 0
            self.start(done, draws)
        return StepResult(next_obs, reward, fallen, truncated)

    def start(self, which: Bools, draws: Floats) -> None:
        """Start new episodes near the model's default pose.

        Args:
            which: ``[K, E]``, the copies to reset.
            draws: ``[K, E, reset_noise_dim]``, uniform numbers.
        """
        noise = self.robot.reset_noise
        flat_draws = draws.reshape(len(self.simulators), -1)
        for number in np.flatnonzero(which):
            model, data = self.simulators[number]
            position_draws = flat_draws[number][: self.env.num_positions]
            speed_draws = flat_draws[number][self.env.num_positions :]
            self.mujoco.mj_resetData(model, data)
            data.qpos[:] += noise * (2.0 * position_draws - 1.0)
            if self.robot.can_fall:
                data.qvel[:] += noise * (2.0 * speed_draws - 1.0)
            else:
                data.qvel[:] += noise * standard_normal(speed_draws).numpy()
            self.mujoco.mj_forward(model, data)
        self._observe()

    def load(self, state: Floats) -> None:
        """Load exported states ``[K, E, state_size]``."""
        flat = state.reshape(len(self.simulators), -1)
        for (model, data), own in zip(self.simulators, flat, strict=True):
            self.mujoco.mj_setState(model, data, own, self.env.state_spec)
        self._observe()

    def state_dict(self) -> State:
        """Return what `MujocoVecEnv.resume` continues from."""
        state = np.empty((len(self.simulators), self.env.state_size))
        for (model, data), own in zip(self.simulators, state, strict=True):
            self.mujoco.mj_getState(model, data, own, self.env.state_spec)
        return {
            "state": torch.from_numpy(state.reshape(*self.clock.shape, -1)),
            "clock": torch.from_numpy(self.clock),
        }

    def render(self) -> npt.NDArray[np.uint8]:
        """Render the first copy of the first agent with the model's own camera."""
        self._renderer.update_scene(self.simulators[0][1], "track")
        return np.asarray(self._renderer.render())

    @cached_property
    def _renderer(self) -> Any:
        return self.mujoco.Renderer(self.simulators[0][0], FRAME_HEIGHT, FRAME_WIDTH)

    def _observe(self) -> None:
        """Read all coordinates; agents observe all but the horizontal position."""
        self.state: Floats = np.concatenate(self.coordinates).reshape(*self.clock.shape, -1)
        obs = self.state[..., 1:].astype(np.float32)
        if self.robot.can_fall:
            speeds = obs[..., self.env.num_positions - 1 :]
            np.clip(speeds, -MAX_OBS_SPEED, MAX_OBS_SPEED, out=speeds)
        self.obs: Obs = obs

    def _fallen(self) -> Bools:
        """Return which copies left the healthy range, ``[K, E]``."""
        if not self.robot.can_fall:
            return np.zeros(self.clock.shape, bool)
        upright = (self.state[..., 1] > MIN_HEIGHT) & (np.abs(self.state[..., 2]) < MAX_TILT)
        return ~(upright & (np.abs(self.state[..., 2:]) < MAX_STATE).all(-1))


def build_mujoco(
    robot: Robot, config: DeepRLConfig, training: TrainingConfig, seed: int
) -> DeepRLTask:
    """Build the task of agents with this robot.

    Raises:
        UsageError: If MuJoCo or Gymnasium is not installed.
    """
    if importlib.util.find_spec("mujoco") is None or importlib.util.find_spec("gymnasium") is None:
        raise UsageError(f"task '{robot.name}' needs MuJoCo: pip install 'equipoise[mujoco]'")
    models = [load_model(robot, float(u)) for u in config.heterogeneity_values]
    return DeepRLTask(robot.name, MujocoVecEnv(robot, models), config, "mlp", training, seed)
