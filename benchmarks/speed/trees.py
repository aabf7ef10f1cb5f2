"""CPU time of federated boosting in simulation beside LightGBM on one thread, by turns.

`python -m benchmarks.speed.trees`: 19 columns, 16 clients, 100 trees of 31 leaves in 8 levels, 127
bins. The smallest of several times counts, because other work on the machine adds to some of them.
"""

from __future__ import annotations

import time

import lightgbm
import numpy as np
import torch

from benchmarks.lab.provenance import measured
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import Federation, unnamed_classes
from equipoise.methods.fedtrees import FedTrees
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.trees import TreesTask
from equipoise.trees.config import TreeOptions

TURNS = {50_000: 1, 100_000: 1, 200_000: 3, 400_000: 1}
"""Numbers of rows, and how often each is measured."""
COLUMNS = 19
CLIENTS = 16
OPTIONS = TreeOptions(leaf_l2=0.0, tree_patience=0)


def make_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows whose class follows from four of the columns."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, COLUMNS)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] + random.normal(size=rows)
    return x, (score > 0).astype(np.int64)


def simulation(rows: int, trees: int) -> FederatedSimulation:
    """Return a simulation of clients with equal numbers of rows."""
    x, y = make_rows(rows, 0)
    few = make_rows(CLIENTS, 1)
    sizes = np.full(CLIENTS, rows // CLIENTS)
    used = int(sizes.sum())
    splits = {
        "train": (torch.from_numpy(x[:used]), torch.from_numpy(y[:used]), sizes),
        "test": (torch.from_numpy(few[0]), torch.from_numpy(few[1]), np.ones(CLIENTS, np.int64)),
    }
    server = dict.fromkeys(("public", "test"), splits["test"][:2])
    data = Federation(splits, server, 2, target=unnamed_classes(2))
    options = TreeOptions(**{**vars(OPTIONS), "trees": trees})
    task = TreesTask("speed", data, TrainingConfig(), options)
    method = FedTrees(personal_trees="0")
    rounds = method.num_rounds(1, options)
    schedule = RoundLoopConfig(rounds, 0, 1.0, "stacked", rounds, False)
    return FederatedSimulation(method, task, task.info.training, schedule)


def seconds_of_simulation(rows: int, trees: int) -> float:
    """Return the CPU time of all rounds."""
    simulated = simulation(rows, trees)
    started = time.process_time()
    for _ in range(simulated.schedule.num_rounds):
        simulated.run_round()
    return time.process_time() - started


def seconds_of_lightgbm(rows: int) -> float:
    """Return the CPU time of LightGBM with the same settings, bins included."""
    x, y = make_rows(rows, 0)
    settings = {
        "objective": "binary",
        "num_leaves": OPTIONS.tree_leaves,
        "max_depth": OPTIONS.tree_depth,
        "max_bin": OPTIONS.tree_bins,
        "min_data_in_leaf": OPTIONS.leaf_rows,
        "num_threads": 1,
        "verbose": -1,
    }
    started = time.process_time()
    lightgbm.train(settings, lightgbm.Dataset(x, y), OPTIONS.trees)
    return time.process_time() - started


def main() -> None:
    """Write the times of both and their ratio, by number of rows."""
    torch.set_num_threads(1)
    seconds_of_simulation(2000, 1)  # compiles the kernels
    found = {}
    for rows, turns in TURNS.items():
        both = [
            (seconds_of_simulation(rows, OPTIONS.trees), seconds_of_lightgbm(rows))
            for _ in range(turns)
        ]
        ours, theirs = (min(times) for times in zip(*both, strict=True))
        found[f"{rows} rows"] = {
            "fedtrees_seconds": round(ours, 2),
            "lightgbm_seconds": round(theirs, 2),
            "ratio": round(ours / theirs, 2),
            "turns": turns,
        }
    measured("trees_speed", found)


if __name__ == "__main__":
    main()
