"""MuJoCo's Hopper and HalfCheetah, each agent with legs of its own thickness: the model's XML with other sizes."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.contract import Training
from equipoise.core.errors import UsageError
from equipoise.frl.deep.gym_world import GymWorld
from equipoise.frl.deep.task import AgentConfig, AgentTask


@dataclass(frozen=True)
class Body:
    """A model of Gymnasium's, and which of its capsules are legs."""

    name: str
    env_id: str
    asset: str
    legs: tuple[str, ...]
    best: float
    """A good return, for FedPolicy."""


HOPPER = Body("hopper", "Hopper-v5", "hopper.xml", ("leg_geom",), 1000.0)
CHEETAH_LEGS = ("bthigh", "bshin", "fthigh", "fshin")
HALF_CHEETAH = Body("half-cheetah", "HalfCheetah-v5", "half_cheetah.xml", CHEETAH_LEGS, 3000.0)


def radius(own: float, u: float) -> float:
    """own + 0.02 (u - 1/2): Hopper's leg has 0.04, HalfCheetah's have 0.046."""
    return own + 0.02 * (u - 0.5)


def edited(xml: str, legs: tuple[str, ...], u: float) -> str:
    """The model with capsules of another radius; lengths stay."""
    for leg in legs:
        found = re.search(rf'(<geom [^>]*name="{leg}"[^>]*size=")([0-9.]+)( )', xml)
        if found is None:
            raise UsageError(f"the model of this Gymnasium has no geom '{leg}' with a size: use Gymnasium 1.x")
        xml = xml[: found.start()] + f"{found[1]}{radius(float(found[2]), u):.6g}{found[3]}" + xml[found.end() :]
    return xml


def make(body: Body, u: float, **more: Any) -> Any:
    """The environment of an agent. MuJoCo reads models from files, which it needs only while it starts."""
    import gymnasium
    from gymnasium.envs import mujoco as models

    xml = edited((Path(models.__file__).parent / "assets" / body.asset).read_text(), body.legs, u)
    # MuJoCo writes what it thinks of a model into the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        file = Path(folder) / body.asset
        file.write_text(xml)
        return gymnasium.make(body.env_id, xml_file=str(file), **more)


def mujoco_task(body: Body, config: AgentConfig, training: Training, seed: int) -> AgentTask:
    if importlib.util.find_spec("mujoco") is None or importlib.util.find_spec("gymnasium") is None:
        raise UsageError(f"task '{body.name}' needs MuJoCo: pip install 'equipoise[mujoco]'")
    world = GymWorld([partial(make, body, float(u)) for u in config.numbers], 0.0, body.best)
    return AgentTask(body.name, world, config, "mlp", training, seed)
