"""FedPolicy on Fashion-MNIST: a learned choice, client by client, of which part of the global model
to take.

    python examples/fedpolicy_fmnist.py [folder of the result] [rounds] [folder of the data]

Without a data folder it draws pictures in the same format, to show the mechanics; their figures
mean nothing.
"""

import gzip
import os
import struct
import sys
from pathlib import Path

import numpy as np

import equipoise as eq


def draw_pictures(folder: Path) -> None:
    """Ten kinds of blurred blots, as gzipped IDX files."""
    rng = np.random.default_rng(0)
    kinds = np.kron(rng.integers(0, 200, (10, 7, 7)), np.ones((4, 4))).astype(int)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 4000), ("t10k", 1000)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = np.clip(kinds[labels] + rng.normal(0, 250, (count, 28, 28)), 0, 255).astype(
            np.uint8
        )
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(
                gzip.compress(head + array.tobytes(), 1)
            )


def main(
    out: str = "runs/example-fedpolicy",
    rounds: str = "15",
    data: str = os.environ.get("EQUIPOISE_DATA", ""),
) -> None:
    if not data:
        data = str(Path(out) / "drawn")
        draw_pictures(Path(data) / "fashion-mnist")
        print("no data folder: pictures drawn here take the place of Fashion-MNIST")
    task = eq.Task.from_name(
        "fmnist", data=data, clients=8, delta=0.3, train_rows=4000, server_rows=1000
    )
    for method in ("fedavg", "fedper", "fedpolicy"):
        run = eq.run(
            Path(out) / method,
            method=method,
            task=task,
            model="mlp",
            epochs=2,
            rounds=int(rounds),
            overwrite=True,
        )
        sent = (run.final.bytes.up + run.final.bytes.down) / 1e6
        print(f"{method:10} personal models: {100 * run.final.personal.acc:.1f} %, {sent:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
