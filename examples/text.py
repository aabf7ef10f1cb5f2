"""Your own texts: the next character, by a GRU; every client has its own vocabulary of words.

python examples/text.py [folder of the result] [rounds]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import equipoise as eq

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
WINDOW = 12
WORDS = (
    "the sea was calm and all the ships came home from far away "
    "with salt and silk and stories to tell"
).split()


def samples(client: int, length: int = 1500) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Windows of characters as positions in the alphabet, and the character that follows each."""
    rng = np.random.default_rng(client)
    own = rng.choice(WORDS, 6, replace=False)
    text = " ".join(rng.choice(own, length // 4))[:length]
    codes = np.array([ALPHABET.index(character) for character in text])
    x = np.lib.stride_tricks.sliding_window_view(codes[:-1], WINDOW)
    return x[::5].copy(), codes[WINDOW:][::5].copy()


class NextCharacter(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 8)
        self.gru = nn.GRU(8, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.gru(self.embed(x))[0][:, -1])
        return logits


def main(out: str = "runs/example-text", rounds: str = "20") -> None:
    clients = [samples(client) for client in range(5)]
    task = eq.Task.from_datasets(
        clients, model=lambda shape, classes: NextCharacter(), classes=len(ALPHABET), name="stories"
    )
    for method in ("fedavg", "fedper"):
        run = eq.run(
            Path(out) / method, method=method, task=task, rounds=int(rounds), lr=0.5, overwrite=True
        )
        print(f"{method:8} personal models: {100 * run.final.personal.acc:.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
