"""W1 and W2 by Equipoise, the plain loop, and the peers whose Python is given; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.lab.provenance import ROOT, measured
from benchmarks.speed import conv, engine
from equipoise.simulation.executor_selection import available_cores
from equipoise.simulation.executors import Loop

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}


def export_w1(path: Path) -> None:
    """The federation as plain arrays: train and test rows by client, the server's test rows."""
    data = engine.data_of(100)
    ids = np.arange(100)
    train, test = data.split(ids, "train"), data.split(ids, "test")
    server_x, server_y = data.server("test")
    np.savez(
        path,
        train_x=train.x.numpy().reshape(100, 210, -1),
        train_y=train.y.numpy().reshape(100, 210),
        test_x=test.x.numpy().reshape(100, 90, -1),
        test_y=test.y.numpy().reshape(100, 90),
        server_x=server_x.numpy(),
        server_y=server_y.numpy(),
    )


def export_w2(path: Path) -> None:
    data = conv.federation()
    split = data.split(np.arange(conv.CLIENTS), "train")
    x = (
        data.transform.prepare(split.x, torch.float32)
        .numpy()
        .reshape(conv.CLIENTS, conv.IMAGES, 1, 28, 28)
    )
    np.savez(path, train_x=x, train_y=split.y.numpy().reshape(conv.CLIENTS, conv.IMAGES))


def peer(python: str, script: str, data: Path, epochs: int, rounds: int) -> float:
    """Median milliseconds a round, as the peer's script prints it on its last line."""
    command = [
        python,
        "-m",
        f"benchmarks.speed.peers.{script}",
        str(data),
        data.stem,
        str(epochs),
        str(rounds),
    ]
    quiet = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=quiet, timeout=600
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1])["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", help="Python of an environment with requirements-flower.txt")
    parser.add_argument("--pfl", help="Python of an environment with requirements-pfl.txt")
    parser.add_argument(
        "--rounds", type=int, default=6, help="rounds of each peer; the first is not counted"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    peers = {"Flower 1.41 simulation (Ray)": (chosen.flower, "flower_peer")}
    peers["pfl-research 0.6"] = (chosen.pfl, "pfl_peer")
    result: dict[str, object] = {"load before": [round(x, 1) for x in os.getloadavg()]}
    with tempfile.TemporaryDirectory() as folder:
        for work, export in (("w1", export_w1), ("w2", export_w2)):
            path = Path(folder) / f"{work}.npz"
            export(path)
            for epochs in (1, 5) if work == "w1" else (1,):
                with contestants(work, epochs) as ours:
                    ms = engine.take_turns(ours, 10.0)
                for name, (python, script) in peers.items():
                    if python:
                        ms[name] = peer(python, script, path, epochs, chosen.rounds)
                result[f"{work.upper()}, {epochs} epoch(s)"] = {
                    name: {
                        "ms": round(value, 2),
                        "times the plain loop": round(ms["plain loop"] / value, 2),
                    }
                    for name, value in ms.items()
                }
    measured("peers", result)


@contextlib.contextmanager
def contestants(work: str, epochs: int) -> Iterator[dict[str, engine.Round]]:
    """Yield ours and the plain loop, each on one thread; our processes use all cores, as Flower's
    two workers do.
    """
    if work == "w2":
        images = conv.federation()
        with conv.round_of_processes(images, available_cores()) as shared:
            yield {
                "equipoise, processes": shared,
                "equipoise, loop": conv.equipoise_round(images, Loop),
                "plain loop": conv.plain_round(images),
            }
        return
    data = engine.data_of(100)
    yield {
        "plain loop": engine.plain_round(data, epochs),
        "equipoise, general engine": engine.equipoise_round(data, epochs, closed_form=False),
        "equipoise, closed form": engine.equipoise_round(data, epochs, closed_form=True),
    }


if __name__ == "__main__":
    main()
