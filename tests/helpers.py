"""Small federations that every test can afford.

Parity is checked in float64: float32 drifts through ties.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.core import Method, Task, TrainingConfig
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.data.federated_dataset import Federation
from equipoise.experiment.runner import Interrupted, resume_run, run
from equipoise.models import MODELS
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import pytree

SMALL = {
    "clients": 6,
    "features": 5,
    "classes": 4,
    "samples": 60,
    "size_sigma": 0.4,
    "val_share": 0.2,
}
TRAINING = TrainingConfig(epochs=2, lr=0.05, batch_size=8, weight_decay=1e-3)
WHOLE_BATCH = TrainingConfig(epochs=1, lr=0.5, batch_size=100)


def three_classes(
    labels: list[int], clients: int = 1, module: nn.Module | None = None
) -> ExamplesTask:
    """Clients with these labels each, two features, a model of two layers."""
    torch.manual_seed(3)
    rows = len(labels) * clients
    x, y = torch.randn(rows, 2, dtype=torch.float64), torch.tensor(labels * clients)
    data = Federation(
        {name: (x, y, np.full(clients, len(labels))) for name in ("train", "test")},
        {"test": (x, y), "public": (x, y)},
        3,
    )
    module = module or nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    return ExamplesTask("tiny", module, data, WHOLE_BATCH, torch.float64)


def small_task(
    model: str = "mlp",
    training: TrainingConfig = TRAINING,
    seed: int = 0,
    closed_form: bool = True,
    **options: Any,
) -> ExamplesTask:
    """Six clients of unequal size with Synthetic data, in float64."""
    config = SyntheticConfig(**{**SMALL, **options})
    module = MODELS[model]((config.features,), config.classes)
    return ExamplesTask(
        "synthetic", module, Synthetic(config, seed), training, torch.float64, closed_form
    )


def simulate(
    method: Method,
    task: Task,
    rounds: int = 3,
    executor: str = "stacked",
    participation: float = 1.0,
    seed: int = 0,
) -> FederatedSimulation:
    """A finished run; its logs are in ``.logs``."""
    method.check(task, task.info.training)
    schedule = RoundLoopConfig(rounds, seed, participation, executor, 1, True)
    simulation = FederatedSimulation(method, task, task.info.training, schedule)
    simulation.logs = [simulation.run_round() for _ in range(rounds)]  # type: ignore[attr-defined]
    return simulation


def largest_difference(a: Any, b: Any) -> float:
    """The largest difference between two trees of the same shape; infinite where only one has a
    number.
    """
    left, right = _tensors(a), _tensors(b)
    assert len(left) == len(right)
    return max(
        (_apart(x.double(), y.double()) for x, y in zip(left, right, strict=True)), default=0.0
    )


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in lists and messages too."""
    found: list[Tensor] = []
    for leaf in tree if isinstance(tree, list) else pytree.leaves(tree):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif leaf is not None:
            found += _tensors(list(leaf))
    return found


def _apart(x: Tensor, y: Tensor) -> float:
    same = (x == y) | (x.isnan() & y.isnan())
    return float((x - y).abs().masked_fill(same, 0).nan_to_num(nan=torch.inf).max())


Timed = TypeVar("Timed", RoundRecord, Summary)


def timeless(record: Timed) -> Timed:
    """All but the time that it took."""
    return replace(record, seconds=0.0)


def cut_and_resumed(
    settings: ExperimentConfig, folder: Path, at: int, checkpoint_every: int = 3
) -> Summary:
    """The summary of a run that is interrupted after this round and goes on."""

    def stop(log: RoundRecord) -> None:
        if log.round == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(
            ExperimentConfig.from_options(
                {**settings.to_dict, "checkpoint_every": checkpoint_every}
            ),
            folder,
            on_round_end=stop,
        )
    return resume_run(folder)
