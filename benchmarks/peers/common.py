"""What every peer's client does: the plain PyTorch loop on one client's rows."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

BATCH, LR = 30, 0.1


def load(path: str) -> dict[str, torch.Tensor]:
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def train(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for first in range(0, len(y), BATCH):
            rows = order[first : first + BATCH]
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())
