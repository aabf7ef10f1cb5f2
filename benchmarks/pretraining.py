"""Bases of the study `adapters`: models that were trained before, on rows that none of its clients has.

    python -m benchmarks.pretraining

They are made where they are missing, once per machine, and lie in the cache of data (``$EQUIPOISE_CACHE``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.lab.cell import built
from equipoise.data.cache import cache_folder
from equipoise.data.shakespeare import ALPHABET, SOURCE, WINDOW
from equipoise.data.source import load
from equipoise.models.transformer import CharacterTransformer
from equipoise.tasks.from_examples import FromExamples

SMALL_ROLES = 8000  # characters: roles with fewer are no clients of the study
BATCH, LR, SEED = 32, 1e-3, 0
PLAYS_EPOCHS, PIXELS_EPOCHS = 4, 10
PIXELS: dict[str, Any] = {"task": "fmnist", "model": "mlp", "pool": 2}


def file_of(name: str) -> Path:
    """Where a base lies, or will."""
    return cache_folder() / f"base-{name}.safetensors"


def base(name: str) -> Path:
    """The file of a base, which is made first if it is missing."""
    file = file_of(name)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        {"plays": _plays, "pixels": _pixels}[name](file)
    return file


def digest(name: str) -> str:
    """What tells one base from another."""
    return hashlib.sha256(base(name).read_bytes()).hexdigest()[:16]


def _plays(file: Path) -> None:
    """The transformer on what small roles say, all places of a window at once."""
    torch.manual_seed(SEED)
    model, text = CharacterTransformer(WINDOW, len(ALPHABET)), torch.from_numpy(_said_by_small_roles())

    def loss() -> Tensor:
        at = torch.randint(len(text) - WINDOW - 1, (BATCH,))
        rows = text[at[:, None] + torch.arange(WINDOW + 1)]
        return F.cross_entropy(model.each(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    _train(model, loss, PLAYS_EPOCHS * len(text) // (BATCH * WINDOW), file)


def _said_by_small_roles() -> np.ndarray[Any, np.dtype[np.int64]]:
    arrays = load(SOURCE, "")
    small = np.repeat(arrays["sizes"] < SMALL_ROLES, arrays["sizes"])
    return arrays["codes"][small].astype(np.int64)


def _pixels(file: Path) -> None:
    """The perceptron on the original test images of Fashion-MNIST, upright; clients have training images."""
    torch.manual_seed(SEED)
    _, task = built(PIXELS)
    assert isinstance(task, FromExamples)
    parts = [task.data.server(name) for name in ("public", "test")]
    x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    model = task.module
    model.load_state_dict(task.init_params(SEED))

    def loss() -> Tensor:
        at = torch.randint(len(x), (BATCH,))
        return F.cross_entropy(model(task.prepare(x[at])), y[at])

    _train(model, loss, PIXELS_EPOCHS * len(x) // BATCH, file)


def _train(model: nn.Module, loss: Callable[[], Tensor], steps: int, file: Path) -> None:
    """Adam, with a rate that goes to zero."""
    optimiser = torch.optim.Adam(model.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        now = loss()
        optimiser.zero_grad()
        now.backward()
        optimiser.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step} of {steps}: loss {now.item():.3f}", flush=True)
    save_file(model.state_dict(), file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("pixels", "plays"):
        print(f"{base(name)}: {digest(name)}")
