"""Episodes as videos: classic control is drawn here, other environments by their own renderer."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.core import Params
from equipoise.environments import vec_env
from equipoise.environments.classic_control import Acrobot, CartPole, Pendulum, Physics
from equipoise.environments.deep_task import DeepRLTask
from equipoise.environments.gym_env import EVALUATION, GymEnvState, GymVecEnv
from equipoise.environments.heterogeneity import BodyParams, Floats
from equipoise.environments.vec_env import PhysicsVecEnv, VecEnvState
from equipoise.utils.errors import UsageError, install_hint

WIDTH = 320
HEIGHT = 200
BACKGROUND = (255, 255, 255)
INK = (40, 40, 40)
MOVING = (213, 94, 0)
GOAL = (0, 158, 115)
DEFAULT_FPS = 30
GIF_FPS = 25  # GIF viewers are slow: frames are dropped above this rate
Frame = Any  # a Pillow image


def run_episode(
    task: DeepRLTask, agent: int, model: Params, number: int, render: bool
) -> tuple[float, list[Frame], float]:
    """Run one of the greedy test episodes of an agent.

    Args:
        task: The task.
        agent: The agent's id.
        model: Its parameters, without the agent axis.
        number: Number of the episode.
        render: Whether to render the frame before each step.

    Returns:
        The return, the frames and the frames per second.
    """
    draws = vec_env.episode_noise(task.env, torch.tensor([agent]), "test", number + 1, task.seed)[
        :, number:
    ]
    stack = {name: value.unsqueeze(0) for name, value in model.items()}
    env = _renderable_env(task, agent) if render else task.env.subset(np.array([agent]))
    state = env.reset(torch.zeros(1, dtype=torch.int64), draws)
    total = 0.0
    frames = []
    for _ in range(env.max_episode_steps):
        if render:
            frames.append(render_frame(state))
        action = task.net.greedy(stack, torch.from_numpy(state.obs).to(task.dtype))
        result = state.step(action.numpy(), draws)
        total += float(result.reward[0, 0])
        if result.terminated.any() or result.truncated.any():
            break
    return total, frames, _frames_per_second(env)


def _renderable_env(task: DeepRLTask, agent: int) -> Any:
    """Return the agent's environment with rendering enabled."""
    env = task.env.subset(np.array([agent]))
    if isinstance(env, GymVecEnv):
        env.factories = [partial(env.factories[0], render_mode="rgb_array")]
        with _render_errors():
            env.factories[0]().close()
    return env


@contextlib.contextmanager
def _render_errors() -> Iterator[None]:
    """Turn a renderer's exceptions into one-line errors."""
    try:
        yield
    except Exception as error:  # a display, a library or the render mode may be missing
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "; without a display set MUJOCO_GL=egl" if "OpenGL" in reason else ""
        raise UsageError(f"this environment cannot be drawn here: {reason}{advice}") from error


def _frames_per_second(env: Any) -> float:
    if isinstance(env, PhysicsVecEnv):
        return FPS[type(env.physics)]
    gym_env = env.envs(torch.zeros(1, dtype=torch.int64), 1, EVALUATION)[0]
    return float(gym_env.metadata.get("render_fps") or DEFAULT_FPS)


def render_frame(state: VecEnvState) -> Frame:
    """Render the first copy of the first agent."""
    from PIL import Image, ImageDraw

    if isinstance(state, GymEnvState):
        with _render_errors():
            return Image.fromarray(state.render())
    frame = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
    physics: Physics = state.physics  # type: ignore[attr-defined]
    draw = DRAWERS[type(physics)]
    draw(ImageDraw.Draw(frame), state.state[0, 0], state.bodies)  # type: ignore[attr-defined]
    return frame


def _draw_cartpole(pen: Any, state: Floats, bodies: BodyParams) -> None:
    ground = HEIGHT - 50
    scale = WIDTH / 2 / (CartPole.MAX_POSITION * 1.1)
    x = WIDTH / 2 + scale * state[0]
    length = 2 * float(bodies.length[0, 0]) * scale
    pen.line((0, ground, WIDTH, ground), INK)
    if bodies.has_goals:
        goal = WIDTH / 2 + scale * float(bodies.goal[0, 0])
        pen.line((goal, ground, goal, ground + 20), GOAL, 3)
    pen.rectangle((x - 20, ground - 12, x + 20, ground + 6), INK)
    tip_x = x + length * math.sin(state[2])
    tip_y = ground - 12 - length * math.cos(state[2])
    pen.line((x, ground - 12, tip_x, tip_y), MOVING, 6)


def _draw_acrobot(pen: Any, state: Floats, bodies: BodyParams) -> None:
    length = float(bodies.length[0, 0])
    scale = 0.24 * HEIGHT / max(length, 1.0)
    x = WIDTH / 2
    y = HEIGHT / 2
    goal = 0.8 * float(bodies.goal[0, 0]) if bodies.has_goals else 0.0
    height = scale * length * (Acrobot.GOAL_HEIGHT + goal)
    pen.line((0, y - height, WIDTH, y - height), GOAL, 2)
    for angle in (state[0], state[0] + state[1]):
        end_x = x + scale * length * math.sin(angle)
        end_y = y + scale * length * math.cos(angle)
        pen.line((x, y, end_x, end_y), MOVING, 6)
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), INK)
        x = end_x
        y = end_y


def _draw_pendulum(pen: Any, state: Floats, bodies: BodyParams) -> None:
    length = float(bodies.length[0, 0]) * HEIGHT / 3.4
    x = WIDTH / 2
    y = HEIGHT / 2
    lines = [(state[0], MOVING, 8)]
    if bodies.has_goals:
        lines.insert(0, (Pendulum.MAX_GOAL_ANGLE * float(bodies.goal[0, 0]), GOAL, 2))
    for angle, colour, width in lines:
        pen.line((x, y, x - length * math.sin(angle), y - length * math.cos(angle)), colour, width)
    pen.ellipse((x - 4, y - 4, x + 4, y + 4), INK)


DRAWERS: dict[type[Physics], Callable[[Any, Floats, BodyParams], None]] = {
    CartPole: _draw_cartpole,
    Acrobot: _draw_acrobot,
    Pendulum: _draw_pendulum,
}
FPS: dict[type[Physics], float] = {
    CartPole: 1 / CartPole.DT,
    Acrobot: 1 / Acrobot.DT * 3,  # three times as fast as the simulation: 5 per second is slow
    Pendulum: 1 / Pendulum.DT,
}
"""Frames per second of a video."""


def write_video(frames: Sequence[Frame], file: Path, fps: float) -> None:
    """Write frames as a GIF, or as an MP4 with ffmpeg.

    Args:
        frames: The pictures.
        file: File to write; its suffix decides the format.
        fps: Frames per second.

    Raises:
        UsageError: If ffmpeg fails.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".gif":
        every = max(1, round(fps / GIF_FPS))
        images = [frame.convert("P", palette=1, colors=64) for frame in frames[::every]]
        # GIF durations are multiples of 10 ms.
        duration = max(20, round(1000 * every / fps / 10) * 10)
        images[0].save(file, save_all=True, append_images=images[1:], duration=duration, loop=0)
        return
    size = f"{frames[0].width}x{frames[0].height}"
    command = "ffmpeg -y -loglevel error -f rawvideo -pix_fmt rgb24".split()
    command += ["-s", size, "-r", f"{fps:g}", "-i", "-", "-pix_fmt", "yuv420p", str(file)]
    raw = b"".join(frame.convert("RGB").tobytes() for frame in frames)
    result = subprocess.run(command, input=raw, capture_output=True, check=False)
    if result.returncode:
        raise UsageError(
            f"ffmpeg could not write '{file}': {result.stderr.decode().strip().splitlines()[-1]}"
        )


def check_video_path(file: Path) -> None:
    """Check that a video can be written, before any work.

    Raises:
        UsageError: If the file type is unknown, or ffmpeg or Pillow is missing.
    """
    if file.suffix not in (".gif", ".mp4"):
        raise UsageError(f"video is '{file}': must end in .gif or .mp4")
    if file.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise UsageError(
            f"video is '{file}': an MP4 needs ffmpeg, which is not installed; write a .gif"
        )
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise UsageError(f"a video needs Pillow: {install_hint('data')}") from error
