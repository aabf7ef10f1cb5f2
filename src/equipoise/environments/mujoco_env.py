"""MuJoCo's Hopper and HalfCheetah, each agent with legs of its own thickness: the model's XML with other sizes.

MuJoCo is driven directly, by the rules of Gymnasium's Hopper-v5 and HalfCheetah-v5: from the same state the same action
leads to the same state to the bit and the same reward to 1e-12, without the time that a stack of wrappers takes.
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
from equipoise.environments.deep_task import AgentConfig, AgentTask
from equipoise.environments.heterogeneity import Flags, Floats, Ints, Seen
from equipoise.environments.sac_agent import normal
from equipoise.environments.vec_env import Moved, Play, World
from equipoise.utils import rng
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Body:
    """A model of Gymnasium's, which of its capsules are legs, and the rules of its environment."""

    name: str
    env_id: str
    asset: str
    legs: tuple[str, ...]
    best: float
    """A good return, for FedPolicy."""
    frames: int
    """Steps of the simulator under one action."""
    effort: float
    """What the square of an action costs."""
    noise: float
    """How far first positions and speeds may be off."""
    falls: bool
    """Whether a step upright pays 1 and a fall ends the episode (Hopper); its speeds are shown up to 10 then."""


HOPPER = Body("hopper", "Hopper-v5", "hopper.xml", ("leg_geom",), 1000.0, 4, 1e-3, 5e-3, True)
CHEETAH_LEGS = ("bthigh", "bshin", "fthigh", "fshin")
HALF_CHEETAH = Body(
    "half-cheetah", "HalfCheetah-v5", "half_cheetah.xml", CHEETAH_LEGS, 3000.0, 5, 0.1, 0.1, False
)
LIMIT = 1000  # steps of an episode
LOWEST, LEAN, WILDEST, FASTEST = (
    0.7,
    0.2,
    100.0,
    10.0,
)  # Hopper: height, angle, other numbers; speeds that are shown
WIDTH, HEIGHT = 320, 200  # of pictures


def radius(own: float, u: float) -> float:
    """own + 0.02 (u - 1/2): Hopper's leg has 0.04, HalfCheetah's have 0.046."""
    return own + 0.02 * (u - 0.5)


def edited(xml: str, legs: tuple[str, ...], u: float) -> str:
    """The model with capsules of another radius; lengths stay."""
    for leg in legs:
        found = re.search(rf'(<geom [^>]*name="{leg}"[^>]*size=")([0-9.]+)( )', xml)
        if found is None:
            raise UsageError(
                f"the model of this Gymnasium has no geom '{leg}' with a size: use Gymnasium 1.x"
            )
        xml = (
            xml[: found.start()]
            + f"{found[1]}{radius(float(found[2]), u):.6g}{found[3]}"
            + xml[found.end() :]
        )
    return xml


def simulator() -> Any:
    return importlib.import_module("mujoco")


def model(body: Body, u: float) -> Any:
    """The model of an agent."""
    import gymnasium

    xml = (Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / body.asset).read_text()
    # MuJoCo writes what it thinks of a model into the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return simulator().MjModel.from_xml_string(edited(xml, body.legs, u))


class MujocoWorld(World):
    """One model per agent; all that episodes go on from is in the state that is kept."""

    continuous, limit = True, LIMIT

    def __init__(self, body: Body, models: Sequence[Any]) -> None:
        self.body, self.models, one = body, models, models[0]
        self.places, self.actions = int(one.nq), int(one.nu)
        self.resets, self.observations = int(one.nq + one.nv), int(one.nq + one.nv - 1)
        self.lowest, self.highest = 0.0, body.best
        self.whole = simulator().mjtState.mjSTATE_INTEGRATION
        self.state_size = int(simulator().mj_stateSize(one, self.whole))
        self.rate = 1.0 / (float(one.opt.timestep) * body.frames)  # actions per second

    def subset(self, ids: Ints) -> World:
        return MujocoWorld(self.body, [self.models[agent] for agent in ids])

    def fresh(self, ids: Tensor, copies: int, seed: int) -> State:
        draws = rng.uniform(
            rng.keys(seed, ids.numpy(), 0, rng.FIRST_STATES[0]), copies * self.resets
        )
        return self.begin(ids, draws.reshape(len(ids), copies, self.resets)).kept()

    def open(self, ids: Tensor, kept: State, draws: Floats) -> Play:
        play = MujocoPlay(self, ids, kept["clock"].numpy().copy())
        play.load(kept["state"].numpy())
        return play

    def begin(self, ids: Tensor, draws: Floats) -> Play:
        play = MujocoPlay(self, ids, np.zeros(draws.shape[:2], np.int64))
        play.start(np.ones(draws.shape[:2], bool), draws)
        return play


class MujocoPlay(Play):
    def __init__(self, world: MujocoWorld, ids: Tensor, clock: Ints) -> None:
        self.world, self.body, self.clock, self.mujoco = world, world.body, clock, simulator()
        agents = [agent for agent in ids.tolist() for _ in range(clock.shape[1])]
        self.pairs = [
            (world.models[agent], self.mujoco.MjData(world.models[agent])) for agent in agents
        ]
        self.forces = [data.ctrl for _, data in self.pairs]  # these are the simulator's own memory
        self.parts = [part for _, data in self.pairs for part in (data.qpos, data.qvel)]

    def step(self, action: npt.NDArray[np.generic], draws: Floats) -> Moved:
        force = np.clip(action.astype(np.float64), -1.0, 1.0)
        before, step, frames = self.state[..., 0], self.mujoco.mj_step, self.body.frames
        for (model, data), own, given in zip(
            self.pairs, self.forces, force.reshape(len(self.pairs), -1), strict=True
        ):
            own[:] = given
            step(model, data, frames)
        self._read()
        following, fallen = self.seen, self._fallen()
        reward = (self.state[..., 0] - before) * self.world.rate - self.body.effort * np.square(
            force
        ).sum(-1)
        if self.body.falls:
            reward = reward + ~fallen
        self.clock += 1
        truncated = ~fallen & (self.clock >= self.world.limit)
        over = fallen | truncated
        if over.any():
            self.clock[over] = 0
            self.start(over, draws)
        return Moved(following, reward, fallen, truncated)

    def start(self, which: Flags, draws: Floats) -> None:
        """Anew, these copies: near the model's own pose, by uniform ``draws`` ``[K, E, resets]``."""
        noise, places = self.body.noise, self.world.places
        for number in np.flatnonzero(which):
            (model, data), drawn = self.pairs[number], draws.reshape(len(self.pairs), -1)[number]
            self.mujoco.mj_resetData(model, data)
            data.qpos[:] += noise * (2.0 * drawn[:places] - 1.0)
            speed = drawn[places:]
            data.qvel[:] += noise * (
                2.0 * speed - 1.0 if self.body.falls else normal(speed).numpy()
            )
            self.mujoco.mj_forward(model, data)
        self._read()

    def load(self, state: Floats) -> None:
        for (model, data), own in zip(self.pairs, state.reshape(len(self.pairs), -1), strict=True):
            self.mujoco.mj_setState(model, data, own, self.world.whole)
        self._read()

    def kept(self) -> State:
        state = np.empty((len(self.pairs), self.world.state_size))
        for (model, data), own in zip(self.pairs, state, strict=True):
            self.mujoco.mj_getState(model, data, own, self.world.whole)
        whole = torch.from_numpy(state.reshape(*self.clock.shape, -1))
        return {"state": whole, "clock": torch.from_numpy(self.clock)}

    def picture(self) -> npt.NDArray[np.uint8]:
        """Of the first copy of the first agent, from the model's own camera."""
        self._renderer.update_scene(self.pairs[0][1], "track")
        return np.asarray(self._renderer.render())

    @cached_property
    def _renderer(self) -> Any:
        return self.mujoco.Renderer(self.pairs[0][0], HEIGHT, WIDTH)

    def _read(self) -> None:
        """All positions and speeds, and what agents see of them: not how far they have come."""
        self.state: Floats = np.concatenate(self.parts).reshape(*self.clock.shape, -1)
        seen = self.state[..., 1:].astype(np.float32)
        if self.body.falls:
            speeds = seen[..., self.world.places - 1 :]
            np.clip(speeds, -FASTEST, FASTEST, out=speeds)
        self.seen: Seen = seen

    def _fallen(self) -> Flags:
        if not self.body.falls:
            return np.zeros(self.clock.shape, bool)
        upright = (self.state[..., 1] > LOWEST) & (np.abs(self.state[..., 2]) < LEAN)
        return ~(upright & (np.abs(self.state[..., 2:]) < WILDEST).all(-1))


def mujoco_task(body: Body, config: AgentConfig, training: TrainingConfig, seed: int) -> AgentTask:
    if importlib.util.find_spec("mujoco") is None or importlib.util.find_spec("gymnasium") is None:
        raise UsageError(f"task '{body.name}' needs MuJoCo: pip install 'equipoise[mujoco]'")
    world = MujocoWorld(body, [model(body, float(u)) for u in config.numbers])
    return AgentTask(body.name, world, config, "mlp", training, seed)
