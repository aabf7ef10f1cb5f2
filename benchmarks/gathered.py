"""What would be possible with all rows in one place, and with the models that everybody has at
hand.

On the same prepared rows and splits as a federated run, and scored as that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Federation
from equipoise.experiment.build import build_task
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import pytree

NETWORK = "pooled"
"""The federated runs' own network, rate and number of epochs, on everybody's rows at once."""
SCIKIT = ("linear, pooled", "boosting, pooled", "linear, local")
"""Of scikit-learn: on all clients' training rows in one place, and on each client's own."""

Scores = list[dict[str, float]]


def gathered_scores(method: str, options: Mapping[str, Any]) -> tuple[tuple[str, ...], Scores]:
    """Names of the clients, and the test scores of each."""
    settings = ExperimentConfig.from_options(dict(options))
    task = build_task(settings)
    assert isinstance(task, ExamplesTask)
    task = task.with_all_metrics()
    scores = _network(task, settings) if method == NETWORK else _scikit(task, method)
    return task.info.client_names, scores


def _network(task: ExamplesTask, settings: ExperimentConfig) -> Scores:
    data, run = task.data, settings.run
    splits = {}
    for name in ("train", "val", "test"):
        whole = data.split(np.arange(task.info.num_clients), name)
        splits[name] = (whole.x, whole.y, np.array([len(whole.y)]))
    server = {name: data.server(name) for name in ("public", "test")}
    one = Federation(splits, server, data.classes, data.transform, data.target)
    alone = ExamplesTask("pooled", task.module, one, settings.training, objective=task.objective)
    schedule = RoundLoopConfig(run.rounds, run.seed, 1.0, "loop", run.rounds, True)
    simulation = FederatedSimulation(find_method("fedavg")(), alone, settings.training, schedule)
    for _ in range(run.rounds):
        simulation.run_round()
    ids = torch.arange(task.info.num_clients)
    found = task.evaluate_stack(
        ids, pytree.stack([simulation.params] * task.info.num_clients), "test"
    )
    return [
        {name: float(values[k]) for name, values in found.items()}
        for k in range(task.info.num_clients)
    ]


def _scikit(task: ExamplesTask, method: str) -> Scores:
    make = _maker(task, boosting=method.startswith("boosting"))
    everybody = task.data.split(np.arange(task.info.num_clients), "train")
    pooled = None if method.endswith("local") else make(*_flat(everybody.x, everybody.y))
    scores = []
    for client in range(task.info.num_clients):
        outputs = (pooled or make(*_flat(*_rows(task, client, "train"))))(
            _flat(*_rows(task, client, "test"))[0]
        )
        found = task._score(
            torch.from_numpy(outputs)[None], _rows(task, client, "test")[1][None], None
        )
        scores.append({name: float(value) for name, value in found.items()})
    return scores


Predict = Callable[[NDArray[Any]], NDArray[Any]]


def _maker(task: ExamplesTask, boosting: bool) -> Callable[[NDArray[Any], NDArray[Any]], Predict]:
    """What fits a model to rows, and gives a function from rows to outputs
    as a network has them.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    target = task.data.target
    if target.kind == "regression":

        def fit(x: NDArray[Any], y: NDArray[Any]) -> Predict:
            model = (HistGradientBoostingRegressor() if boosting else Ridge()).fit(
                x, (y - target.mean) / target.scale
            )
            return lambda rows: np.asarray(model.predict(rows), np.float64)[:, None]
    else:

        def fit(x: NDArray[Any], y: NDArray[Any]) -> Predict:
            held = np.unique(y)
            if len(held) == 1:
                model = None
            else:
                model = (
                    HistGradientBoostingClassifier()
                    if boosting
                    else LogisticRegression(max_iter=1000)
                ).fit(x, y)

            def predict(rows: NDArray[Any]) -> NDArray[Any]:
                share = np.zeros(
                    (len(rows), len(target.classes))
                )  # a class that was not seen has none
                share[:, held] = 1.0 if model is None else model.predict_proba(rows)
                return np.log(np.clip(share, 1e-12, 1))

            return predict

    return fit


def _rows(task: ExamplesTask, client: int, split: str) -> tuple[Tensor, Tensor]:
    own = task.data.split(np.array([client]), split)
    here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
    return own.x[here], own.y[here]


def _flat(x: Tensor, y: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    return x.reshape(len(x), -1).numpy(), y.numpy()
