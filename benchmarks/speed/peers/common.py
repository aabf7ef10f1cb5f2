"""What every peer's client does: the plain PyTorch loop on one client's rows, of W1 or of W2."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH, LR, CLIENTS = {"w1": 30, "w2": 32}, {"w1": 0.1, "w2": 0.05}, {"w1": 100, "w2": 20}


def model(work: str) -> nn.Module:
    if work == "w1":
        linear = nn.Linear(30, 30)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return linear
    first = (nn.Conv2d(1, 16, 5, padding=2), nn.MaxPool2d(2), nn.ReLU())
    second = (nn.Conv2d(16, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(
        *first, *second, nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10)
    )


@cache
def load(path: str) -> dict[str, torch.Tensor]:
    """Once a process.

    What a peer ships to its workers must not hold it: it would be read anew for each message.
    """
    torch.set_num_threads(1)
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def train(model: nn.Module, work: str, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=LR[work])
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for first in range(0, len(y), BATCH[work]):
            rows = order[first : first + BATCH[work]]
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())
