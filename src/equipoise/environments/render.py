"""An episode as pictures: classic control drawn here, other environments by their own renderer."""

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
from equipoise.environments.deep_task import AgentTask
from equipoise.environments.gym_env import GymPlay, GymWorld
from equipoise.environments.heterogeneity import Bodies, Floats
from equipoise.environments.vec_env import PhysicsWorld, Play
from equipoise.utils.errors import UsageError

WIDTH, HEIGHT = 320, 200
PAPER, INK, MOVING, GOAL = (255, 255, 255), (40, 40, 40), (213, 94, 0), (0, 158, 115)
Picture = Any  # of Pillow


def episode(
    task: AgentTask, agent: int, model: Params, number: int, pictures: bool
) -> tuple[float, list[Picture], float]:
    """The return of one greedy episode that scores are made of, a picture before each step, and steps per second."""
    ids, own = torch.tensor([agent]), torch.zeros(1, dtype=torch.int64)
    draws = vec_env.starts(task.world, ids, "test", number + 1, task.seed)[:, number:]
    stack = {name: value.unsqueeze(0) for name, value in model.items()}
    world = _shown(task, agent) if pictures else task.world.subset(np.array([agent]))
    play, total, seen = world.begin(own, draws), 0.0, []
    for _ in range(world.limit):
        if pictures:
            seen.append(picture(play))
        action = task.net.greedy(stack, torch.from_numpy(play.seen).to(task.dtype))
        moved = play.step(action.numpy(), draws)
        total += float(moved.reward[0, 0])
        if moved.terminated.any() or moved.truncated.any():
            break
    return total, seen, _rate(world)


def _shown(task: AgentTask, agent: int) -> Any:
    """The agent's world, able to draw."""
    world = task.world.subset(np.array([agent]))
    if isinstance(world, GymWorld):
        world.make = [partial(world.make[0], render_mode="rgb_array")]
        with _able_to_draw():
            world.make[0]().close()
    return world


@contextlib.contextmanager
def _able_to_draw() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a renderer misses: a display, a library, the mode
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "; without a display set MUJOCO_GL=egl" if "OpenGL" in reason else ""
        raise UsageError(f"this environment cannot be drawn here: {reason}{advice}") from error


def _rate(world: Any) -> float:
    if isinstance(world, PhysicsWorld):
        return RATES[type(world.physics)]
    return float(
        world.envs(torch.zeros(1, dtype=torch.int64), 1, "scored")[0].metadata.get("render_fps")
        or 30
    )


def picture(play: Play) -> Picture:
    """Of the first copy of the first agent."""
    from PIL import Image, ImageDraw

    if isinstance(play, GymPlay):
        with _able_to_draw():
            return Image.fromarray(play.picture())
    shown = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    physics: Physics = play.physics  # type: ignore[attr-defined]
    DRAWN[type(physics)](ImageDraw.Draw(shown), play.state[0, 0], play.own)  # type: ignore[attr-defined]
    return shown


def _cartpole(pen: Any, state: Floats, own: Bodies) -> None:
    ground, scale = HEIGHT - 50, WIDTH / 2 / (CartPole.FURTHEST * 1.1)
    x, tip = WIDTH / 2 + scale * state[0], 2 * float(own.length[0, 0]) * scale
    pen.line((0, ground, WIDTH, ground), INK)
    if own.has_goals:
        place = WIDTH / 2 + scale * float(own.goal[0, 0])
        pen.line((place, ground, place, ground + 20), GOAL, 3)
    pen.rectangle((x - 20, ground - 12, x + 20, ground + 6), INK)
    pen.line(
        (x, ground - 12, x + tip * math.sin(state[2]), ground - 12 - tip * math.cos(state[2])),
        MOVING,
        6,
    )


def _acrobot(pen: Any, state: Floats, own: Bodies) -> None:
    length = float(own.length[0, 0])
    scale, x, y = 0.24 * HEIGHT / max(length, 1.0), WIDTH / 2, HEIGHT / 2
    height = (
        scale * length * (Acrobot.HEIGHT + (0.8 * float(own.goal[0, 0]) if own.has_goals else 0.0))
    )
    pen.line((0, y - height, WIDTH, y - height), GOAL, 2)
    for angle in (state[0], state[0] + state[1]):
        end = x + scale * length * math.sin(angle), y + scale * length * math.cos(angle)
        pen.line((x, y, *end), MOVING, 6)
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), INK)
        x, y = end


def _pendulum(pen: Any, state: Floats, own: Bodies) -> None:
    length = float(own.length[0, 0]) * HEIGHT / 3.4
    x, y, angles = WIDTH / 2, HEIGHT / 2, [(state[0], MOVING, 8)]
    if own.has_goals:
        angles.insert(0, (Pendulum.STEEPEST_GOAL * float(own.goal[0, 0]), GOAL, 2))
    for angle, colour, width in angles:
        pen.line((x, y, x - length * math.sin(angle), y - length * math.cos(angle)), colour, width)
    pen.ellipse((x - 4, y - 4, x + 4, y + 4), INK)


DRAWN: dict[type[Physics], Callable[[Any, Floats, Bodies], None]] = {
    CartPole: _cartpole,
    Acrobot: _acrobot,
    Pendulum: _pendulum,
}
RATES: dict[type[Physics], float] = {
    CartPole: 1 / CartPole.TAU,
    Acrobot: 1 / Acrobot.STEP * 3,
    Pendulum: 1 / Pendulum.STEP,
}
"""Steps per second of a film; Acrobot's own would be slow to watch."""


def write(pictures: Sequence[Picture], file: Path, rate: float) -> None:
    """As a GIF (every so many pictures, for its readers are slow), or as an MP4 where ffmpeg is there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".gif":
        every = max(1, round(rate / 25))
        chosen = [one.convert("P", palette=1, colors=64) for one in pictures[::every]]
        pause = max(
            20, round(1000 * every / rate / 10) * 10
        )  # GIFs count in hundredths of a second
        chosen[0].save(file, save_all=True, append_images=chosen[1:], duration=pause, loop=0)
        return
    size = f"{pictures[0].width}x{pictures[0].height}"
    command = [
        "ffmpeg",
        "-y",
        "-loglevel",
        "error",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        size,
    ]
    command += ["-r", f"{rate:g}", "-i", "-", "-pix_fmt", "yuv420p", str(file)]
    raw = b"".join(one.convert("RGB").tobytes() for one in pictures)
    done = subprocess.run(command, input=raw, capture_output=True, check=False)
    if done.returncode:
        raise UsageError(
            f"ffmpeg could not write '{file}': {done.stderr.decode().strip().splitlines()[-1]}"
        )


def check_file(file: Path) -> None:
    """Refuse what cannot be written, before any work."""
    if file.suffix not in (".gif", ".mp4"):
        raise UsageError(f"video is '{file}': must end in .gif or .mp4")
    if file.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise UsageError(
            f"video is '{file}': an MP4 needs ffmpeg, which is not installed; write a .gif"
        )
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise UsageError("a video needs Pillow: pip install 'equipoise[data]'") from error
