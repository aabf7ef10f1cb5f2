"""Simulators that others wrote: how to make one, and how to keep its state where it can be had.

The state can be had of MuJoCo's bodies (all that its integrator goes on from), of Gymnasium's classic control, and of
environments that offer ``save_state() -> numbers`` and ``load_state(numbers)``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.core.errors import UsageError
from equipoise.frl.deep.traits import Floats

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
        raise UsageError(f"env_id is '{env_id}': {where} has no class '{name}' that extends gymnasium.Env")
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
    return "mujoco" if hasattr(body, "model") and hasattr(body, "data") and hasattr(body.data, "qpos") else ""
