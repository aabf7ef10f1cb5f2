"""The splits that FLamby published, and its figures on them (means over its seeds 42 to 46).

J. Ogier du Terrail et al., FLamby: datasets and benchmarks for cross-silo federated learning,
NeurIPS 2022; from the result files of its repository.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.families import DATA
from equipoise.core import TrainingConfig
from equipoise.data.federated_dataset import Federation, Target
from equipoise.methods import find_method
from equipoise.models import MODELS
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import pytree

SEEDS, ROUNDS = 5, 25


@dataclass(frozen=True)
class Published:
    """One data set of FLamby's: whose rows, and what was reported on their test sets."""

    file: str
    owner: str
    clients: tuple[str, ...]
    training: TrainingConfig
    figures: Mapping[str, tuple[str, ...]]
    """By method: each client's test set, then all of them together."""


FLAMBY = {
    "heart": Published(
        "heart_disease.csv",
        "hospital",
        ("cleveland", "hungarian", "switzerland", "va"),
        TrainingConfig(epochs=2, lr=0.01, batch_size=4),
        {
            "FLamby: pooled training": (".783", ".764", ".750", ".644", ".795"),
            "FLamby: local": (".746", ".746", ".725", ".702", "-"),
            "FLamby: FedAvg, FedProx, SCAFFOLD": (".731", ".719", ".650", ".640", ".748"),
            "FLamby: FedAdam": (".752", ".746", ".738", ".667", ".779"),
            "FLamby: FedYogi, FedAdagrad": (".760", ".753", ".738", ".676", ".779"),
        },
    ),
    "brca": Published(
        "tcga_brca.csv",
        "region",
        ("Northeast", "South", "West", "Midwest", "Europe", "Canada"),
        TrainingConfig(epochs=4, lr=0.02, batch_size=8),
        {
            "FLamby: pooled training": (".773", ".582", ".706", ".629", ".766", ".600", ".704"),
            "FLamby: local": (".644", ".527", ".850", ".596", ".851", ".667", "-"),
            "FLamby: FedAvg": (".745", ".627", ".691", ".675", ".787", ".867", ".735"),
            "FLamby: FedAdam, FedYogi": (".849", ".655", ".881", ".604", ".902", "1.00", ".842"),
        },
    ),
}


def published_split(data: str, method: str) -> dict[str, Any]:
    """Each client's score on its published test set, and the global model's on all of them: means
    over first models.
    """
    about = FLAMBY[data]
    found, pooled = [], []
    for seed in range(SEEDS):
        task = _task(data, seed)
        policy = find_method(method)()
        policy.check(task, task.info.training)
        schedule = RoundLoopConfig(ROUNDS, seed, 1.0, "stacked", ROUNDS, True)
        simulation = FederatedSimulation(policy, task, task.info.training, schedule)
        for _ in range(ROUNDS):
            record = simulation.run_round()
        ids, models = simulation.personal_models()
        scores = task.evaluate_stack(
            torch.from_numpy(ids), pytree.index(models, torch.arange(len(ids))), "test"
        )
        found.append(scores[task.info.metric].double().numpy())
        pooled.append(record.global_.get(task.info.metric))
    means = np.mean(found, 0)
    known = [value for value in pooled if value is not None]
    return {
        "clients": {
            name: round(float(value), 5) for name, value in zip(about.clients, means, strict=True)
        },
        "pooled": round(float(np.mean(known)), 5) if known else None,
    }


def _task(data: str, seed: int) -> ExamplesTask:
    """A linear model on the rows and inputs that FLamby has; a fifth of the training rows is for
    validation.
    """
    about = FLAMBY[data]
    with (DATA / "tables" / about.file).open() as file:
        rows = [row for row in csv.DictReader(file) if row["flamby_split"]]
    read = _heart if data == "heart" else _brca
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {"train": [], "val": [], "test": []}
    for client in about.clients:
        own = {
            part: [r for r in rows if r[about.owner] == client and r["flamby_split"] == part]
            for part in ("train", "test")
        }
        x, y = read(own["train"])
        tx, ty = read(own["test"])
        if data == "heart":  # each hospital is standardised by its own training rows
            centre, scale = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
            x, tx = (x - centre) / scale, (tx - centre) / scale
        kept = np.random.default_rng([seed, len(x)]).permutation(len(x)) < len(x) // 5
        for part, (px, py) in {
            "train": (x[~kept], y[~kept]),
            "val": (x[kept], y[kept]),
            "test": (tx, ty),
        }.items():
            parts[part].append((torch.from_numpy(px.astype(np.float32)), torch.from_numpy(py)))
    target = (
        Target(classes=("0", "1"), name="num > 0")
        if data == "heart"
        else Target("survival", "T", event="E")
    )
    whole = {
        part: (torch.cat([x for x, _ in each]), torch.cat([y for _, y in each]))
        for part, each in parts.items()
    }
    splits = {
        part: (*whole[part], np.array([len(y) for _, y in each])) for part, each in parts.items()
    }
    server = {"public": whole["val"], "test": whole["test"]}
    federation = Federation(splits, server, target.outputs, target=target)
    module = MODELS["linear"](federation.shape, target.outputs)
    return ExamplesTask(f"flamby-{data}", module, federation, about.training)


def _heart(rows: list[dict[str, str]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Thirteen inputs: ten columns, of which cp and restecg are categories,
    first value left out.
    """
    plain = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
    hot = [("cp", value) for value in (2, 3, 4)] + [("restecg", value) for value in (1, 2)]
    columns = [[float(row[name]) for row in rows] for name in plain]
    columns += [[float(float(row[name]) == value) for row in rows] for name, value in hot]
    return np.array(columns).T, np.array([int(float(row["num"]) > 0) for row in rows])


def _brca(rows: list[dict[str, str]]) -> tuple[NDArray[Any], NDArray[Any]]:
    names = [name for name in rows[0] if name not in ("E", "T", "flamby_split", "region")]
    x = np.array([[float(row[name]) for name in names] for row in rows])
    x[:, names.index("age_at_index")] /= 100  # years, beside columns of zeros and ones
    return x, np.array([[float(row["T"]), float(row["E"])] for row in rows], np.float32)
