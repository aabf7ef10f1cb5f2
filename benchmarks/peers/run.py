"""W1 by Equipoise, the plain loop, and the peers whose Python is given; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import engine  # noqa: E402

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}


def export(path: Path) -> None:
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


def peer(python: str, script: str, data: Path, epochs: int, rounds: int) -> float:
    """Median milliseconds a round, as the peer's script prints it on its last line."""
    command = [python, str(HERE / script), str(data), str(epochs), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **QUIET}, timeout=600)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", help="Python of an environment with requirements-flower.txt")
    parser.add_argument("--pfl", help="Python of an environment with requirements-pfl.txt")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w1.npz"
        export(path)
        for epochs in (1, 5):
            data = engine.data_of(100)
            ms = engine.take_turns(
                {
                    "plain loop": engine.plain_round(data, epochs),
                    "equipoise, general engine": engine.equipoise_round(data, epochs, closed_form=False),
                    "equipoise, closed form": engine.equipoise_round(data, epochs, closed_form=True),
                },
                10.0,
            )
            if chosen.flower:
                ms["Flower 1.41 simulation (Ray)"] = peer(chosen.flower, "flower_w1.py", path, epochs, 6)
            if chosen.pfl:
                ms["pfl-research 0.6"] = peer(chosen.pfl, "pfl_w1.py", path, epochs, 6)
            result[f"W1, {epochs} epoch(s)"] = {
                name: {"ms": round(value, 2), "times the plain loop": round(ms["plain loop"] / value, 2)}
                for name, value in ms.items()
            }
    target = HERE.parent / "results" / "peers.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
