"""Pictures of trained CartPole nets: the representation on two axes, and two policies side by side.

python -m benchmarks.cartpole_pictures FOLDER    # with the run folders that the study deep_rl left there (--keep)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.lab.plots import drawing
from benchmarks.lab.provenance import RESULTS
from equipoise.core.trees import Tree
from equipoise.frl.deep.net import Net
from equipoise.frl.deep.physics import CartPole
from equipoise.frl.deep.worlds import PhysicsWorld

U = (np.arange(10) + 0.5) / 10
NET = Net(4, 128, 2)
SHORTEST = 0
FRAMES, EVERY = 60, 4


def project(axes: Any, models: Tree) -> None:
    """Features over a grid of angles and angular speeds, on their two main axes."""
    angle, turn = np.meshgrid(np.linspace(-0.2, 0.2, 41), np.linspace(-2, 2, 41))
    states = np.zeros((1, angle.size, 4), np.float32)
    states[0, :, 2], states[0, :, 3] = angle.ravel() / CartPole.usual[2], turn.ravel()
    one = {name: value[:1] for name, value in models.items()}
    _, features = NET.features(one, torch.from_numpy(states))
    centred = features[0] - features[0].mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    x, y = (centred @ directions[:2].T).T.numpy()
    value = NET.head(one, features)[0].max(1).values.numpy()
    for axis, colour, words in zip(axes, (angle.ravel(), value), ("angle", "value of agent 0"), strict=True):
        dots = axis.scatter(x, y, c=colour, s=5, cmap="coolwarm" if words == "angle" else "viridis")
        axis.figure.colorbar(dots, ax=axis, label=words)
        axis.set_xlabel("first principal component")
    axes[0].set_ylabel("second")


def animate(out: Path, *models: Tree) -> None:
    """Greedy episodes of one agent from one start, the nets side by side."""
    from PIL import Image, ImageDraw

    paths = [_episode(one) for one in models]
    length = float(CartPole().length(U[SHORTEST : SHORTEST + 1])[0])
    frames = []
    for t in range(0, FRAMES * EVERY, EVERY):
        image = Image.new("P", (2 * 220, 120), 0)
        image.putpalette([255, 255, 255, 40, 40, 40, 213, 94, 0, 0, 114, 178, 200, 200, 200])
        pen = ImageDraw.Draw(image)
        for side, path in enumerate(paths):
            x, _, angle, _ = path[min(t, len(path) - 1)]
            left, ground = 220 * side, 100
            pen.line((left + 10, ground + 8, left + 210, ground + 8), 4)
            middle = left + 110 + x * 40
            pen.rectangle((middle - 14, ground - 8, middle + 14, ground + 8), 1)
            size = 300 * length
            tip = (middle + size * np.sin(angle), ground - 8 - size * np.cos(angle))
            pen.line((middle, ground - 8, *tip), 2 + side, 4)
            over = t >= len(path) - 1 and len(path) < 500
            pen.text((left + 8, 4), f"{('personal', 'averaged')[side]}  step {min(t, len(path) - 1)}{' off' * over}", 1)
        frames.append(image)
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=80, loop=0, optimize=True)


def _episode(models: Tree) -> list[np.ndarray]:
    one = {name: value[SHORTEST : SHORTEST + 1] for name, value in models.items()}
    world = PhysicsWorld(CartPole(), U[SHORTEST : SHORTEST + 1])
    play = world.begin(torch.arange(1), np.full((1, 1, 4), 0.5))
    play.state[0, 0] = (1.2, 0.3, 0.03, 0.0)  # type: ignore[attr-defined]
    play.seen = play._see()  # type: ignore[attr-defined]
    path = [play.state[0, 0].copy()]  # type: ignore[attr-defined]
    for _ in range(FRAMES * EVERY):
        action = NET.values(one, torch.from_numpy(play.seen)).argmax(-1).numpy()
        moved = play.step(action, np.full((1, 1, 4), 0.5))
        if moved.terminated.any():
            path.append((moved.following * np.array(CartPole.usual))[0, 0])
            break
        path.append(play.state[0, 0].copy())  # type: ignore[attr-defined]
    return path


def main() -> None:
    kept = Path(sys.argv[1])
    shared, averaged = (
        load_file(kept / f"cartpole-{name}-seed21" / "models" / "personal.safetensors")
        for name in ("pfeddqn-rep", "dqnavg")
    )
    with drawing(RESULTS / "deep_rl" / "representation.png", 2, (9.2, 3)) as axes:
        project(axes, shared)
    animate(RESULTS / "deep_rl" / "rollout.gif", shared, averaged)


if __name__ == "__main__":
    main()
