"""CPU time of federated boosting in simulation beside LightGBM on one thread.

`python -m benchmarks.speed.trees [rows]`: 19 columns, 16 clients, 100 trees of 31 leaves in 8
levels, 127 bins.
"""

from __future__ import annotations

import sys
import time

import lightgbm
import numpy as np
import torch

from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import Federation, unnamed_classes
from equipoise.methods.fedtrees import FedTrees
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.trees import TreesTask
from equipoise.trees.config import TreeOptions

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
    """Print both times and their ratio."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    torch.set_num_threads(1)
    seconds_of_simulation(2000, 1)  # compiles the kernels
    ours = seconds_of_simulation(rows, OPTIONS.trees)
    theirs = seconds_of_lightgbm(rows)
    print(f"{rows} rows: fedtrees {ours:.2f} s, LightGBM {theirs:.2f} s, {ours / theirs:.2f} times")


if __name__ == "__main__":
    main()
