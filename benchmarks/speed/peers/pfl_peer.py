"""W1 or W2 on pfl-research: federated averaging with its simulated backend, every user each
iteration.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.speed.peers.common import BATCH, CLIENTS, LR, accuracy, load, model

PATH, WORK, EPOCHS, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


class Scored(torch.nn.Module):
    """The model with the loss and the score that pfl-research asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model(WORK)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        return {"acc": Weighted(float((self(x).argmax(1) == y).sum()), len(y))}


class Clock(TrainingProcessCallback):
    """Scores the global model on the server's rows and takes the time of each iteration."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        self.rows, self.last = rows, time.perf_counter()
        self.times: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        if WORK == "w1":
            accuracy(model.pytorch_model, self.rows["server_x"], self.rows["server_y"])
        now = time.perf_counter()
        self.times.append(1e3 * (now - self.last))
        self.last = now
        return False, Metrics()


def main() -> None:
    rows = load(PATH)
    users = list(range(CLIENTS[WORK]))

    def federated(part: str) -> FederatedDataset:
        shards = [
            Dataset((rows[f"{part}_x"][k], rows[f"{part}_y"][k]), user_id=str(k)) for k in users
        ]
        return FederatedDataset(shards.__getitem__, get_user_sampler("minimize_reuse", users))

    module = Scored()
    federated_model = PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
    )
    clock = Clock(rows)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=1 if WORK == "w1" else ROUNDS + 1,
            train_cohort_size=len(users),
            val_cohort_size=len(users),
        ),
        SimulatedBackend(
            training_data=federated("train"),
            val_data=federated("test" if WORK == "w1" else "train"),
        ),
        federated_model,
        NNTrainHyperParams(
            local_num_epochs=EPOCHS, local_learning_rate=LR[WORK], local_batch_size=BATCH[WORK]
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    print(json.dumps({"ms": statistics.median(clock.times[1:])}), flush=True)


if __name__ == "__main__":
    main()
