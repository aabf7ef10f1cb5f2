"""Your own images, torch data set and module: shapes drawn by clients with different pens.

python examples/images.py [folder of the result] [rounds]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import equipoise as eq

SIZE, CLASSES = 16, 3


class Drawings(Dataset[tuple[torch.Tensor, int]]):
    """Bytes [H, W, C] and a label: a horizontal bar, a vertical bar or a square, in the client's
    own grey.
    """

    def __init__(self, client: int, count: int = 90) -> None:
        rng = np.random.default_rng(client)
        self.labels = rng.integers(0, CLASSES, count)
        self.images = rng.integers(0, 60, (count, SIZE, SIZE, 1)).astype(np.uint8)
        grey = 110 + 20 * client
        for image, label in zip(self.images, self.labels, strict=True):
            top, left = rng.integers(1, SIZE - 9, 2)
            height, width = ((3, 8), (8, 3), (7, 7))[label]
            image[top : top + height, left : left + width] = grey

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[index]), int(self.labels[index])


class SmallNet(nn.Module):
    """Any module will do; its last layer is the head that personal methods keep at the client."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
        )
        self.classifier = nn.Linear(8 * (SIZE // 4) ** 2, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.classifier(self.features(x)))


def main(out: str = "runs/example-images", rounds: str = "20") -> None:
    torch.manual_seed(0)  # the weights that the module has are where training starts
    task = eq.Task.from_datasets(
        [Drawings(client) for client in range(6)], model=SmallNet(), name="drawings"
    )
    for method in ("fedavg", "fedrep"):
        run = eq.run(
            Path(out) / method, method=method, task=task, rounds=int(rounds), overwrite=True
        )
        print(f"{method:8} personal models: {100 * run.final.personal.acc:.1f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
