"""The federations on which controllers are compared: simulated and natural, small enough for one
core.

Every family has the task's own defaults of training; only sizes are reduced. ``scale`` multiplies
all inputs, as for a user who forgets to normalise.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import equipoise
from equipoise.core import Task
from equipoise.data.federated_dataset import ClientData, Ints, Split
from equipoise.data.transforms import PixelTransform
from equipoise.experiment.build import build_task
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.supervised import ExamplesTask

DATA = Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).parents[2] / "shared" / "data"))
CHEAP, DEAR = (
    tuple(range(100, 108)),
    (100, 101, 102),
)  # what had been seen on them: studies/autopilot.md
FEW_ROWS = tuple(
    range(100, 200)
)  # a hospital's test set has some dozens of rows: fewer seeds tell little
Clients = list[tuple[NDArray[np.float32], NDArray[np.int64]]]


@dataclass(frozen=True)
class Family:
    """One kind of federation: options of its task, rounds, and a factor on the inputs."""

    options: dict[str, Any]
    rounds: int
    seeds: tuple[int, ...] = CHEAP
    scale: float = 1.0
    executor: str = "stacked"
    clients: Callable[[], Clients] | None = field(default=None, repr=False)
    """The clients' samples, where the task does not ship; the model is then among the options."""


class Scaled(ClientData):
    """The same data with every input multiplied."""

    def __init__(self, whole: ClientData, scale: float) -> None:
        self.whole, self.scale, self.transform = whole, scale, whole.transform
        self.clients, self.classes, self.shape = whole.clients, whole.classes, whole.shape
        self._kept: dict[tuple[str, bytes], Split] = {}

    def split(self, ids: Ints, name: str) -> Split:
        key = name, ids.tobytes()
        if key not in self._kept:
            own = self.whole.split(ids, name)
            self._kept[key] = Split(own.x * self.scale, own.y, own.start, own.size)
        return self._kept[key]

    def server(self, name: str) -> Any:
        x, y = self.whole.server(name)
        return x * self.scale, y

    def has_split(self, name: str) -> bool:
        return self.whole.has_split(name)


# --- natural tables: every client is a hospital, an airline or a person ---------------------------


def standard(columns: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as deviations from the mean; what is missing becomes the mean, with a column that
    says so.
    """
    gap = np.isnan(columns)
    filled = np.where(gap, np.nanmean(columns, 0), columns)
    spread = filled.std(0)
    wide = (filled - filled.mean(0)) / np.where(spread > 0, spread, 1.0)
    wide_and_gaps: NDArray[np.float32] = np.concatenate([wide, gap[:, gap.any(0)]], 1).astype(
        np.float32
    )
    return wide_and_gaps


def codes(values: NDArray[Any]) -> NDArray[np.float32]:
    """One column per value of a text column."""
    columns: NDArray[np.float32] = (values[:, None] == np.unique(values)).astype(np.float32)
    return columns


def by_owner(
    x: NDArray[np.float32], y: NDArray[np.int64], owner: NDArray[Any], least: int = 30
) -> Clients:
    names, counts = np.unique(owner, return_counts=True)
    return [
        (x[owner == name], y[owner == name])
        for name, count in zip(names, counts, strict=True)
        if count >= least
    ]


@cache
def heart() -> Clients:
    """Four hospitals, 920 patients: disease or not."""
    with (DATA / "tables" / "heart_disease.csv").open() as file:
        rows = list(csv.DictReader(file))
    numbers = [
        name
        for name in rows[0]
        if name not in ("hospital", "num", "flamby_split", "cp", "restecg", "thal")
    ]
    x = standard(np.array([[float(row[name] or "nan") for name in numbers] for row in rows]))
    texts = [codes(np.array([row[name] for row in rows])) for name in ("cp", "restecg", "thal")]
    y = np.array([int(row["num"]) > 0 for row in rows]).astype(np.int64)
    return by_owner(np.concatenate([x, *texts], 1), y, np.array([row["hospital"] for row in rows]))


@cache
def flights() -> Clients:
    """Airlines of very different size: is the flight more than 15 minutes late?"""
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / "tables" / "nycflights13_sample.parquet").to_pydict()
    late = np.array(table["arr_delay"], float)
    there = np.flatnonzero(~np.isnan(late))
    there = np.sort(np.random.default_rng(0).permutation(there)[:20_000])
    numbers = ("month", "day", "sched_dep_time", "sched_arr_time", "distance", "hour")
    x = standard(np.array([table[name] for name in numbers if name in table], float).T[there])
    origin = codes(np.array(table["origin"])[there])
    y = (late[there] > 15).astype(np.int64)
    return by_owner(np.concatenate([x, origin], 1), y, np.array(table["carrier"])[there])


@cache
def watch(arms: bool = False) -> Clients:
    """Ten people with a wrist-watch, seven exercises: mean, deviation and ends of windows of 100
    steps.

    ``arms``: a client is one arm of a person.
    """
    with np.load(DATA / "tables" / "watch.npz", allow_pickle=False) as file:
        channels, length, exercises, subjects = (
            file[name] for name in ("x", "length", "exercise", "subject")
        )
        subjects = 2 * subjects + (file["side"] > file["side"].mean()) if arms else subjects
    x, y, owner = [], [], []
    for start, steps, exercise, subject in zip(
        np.cumsum(length) - length, length, exercises, subjects, strict=True
    ):
        for low in range(start, start + steps - 99, 50):
            window = channels[low : low + 100]
            x.append(np.concatenate([window.mean(0), window.std(0), window.min(0), window.max(0)]))
            y.append(exercise)
            owner.append(subject)
    labels = np.unique(np.array(y), return_inverse=True)[1].astype(np.int64)
    return by_owner(standard(np.array(x, float)), labels, np.array(owner))


FMNIST: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "train_rows": 6000,
    "server_rows": 3000,
}
CNN: dict[str, Any] = {
    "model": "cnn",
    "pool": 2,
    "train_rows": 3000,
    "server_rows": 1500,
    "clients": 10,
}
PLAYS: dict[str, Any] = {
    "task": "shakespeare",
    "clients": 6,
    "role_samples": 150,
    "server_rows": 600,
}
SYNTHETIC: dict[str, Any] = {"task": "synthetic"}
FAMILIES = {
    "synthetic-10": Family(SYNTHETIC, 10),
    "synthetic-30": Family(SYNTHETIC, 30),
    "synthetic-100": Family(SYNTHETIC, 100, CHEAP[:5]),
    "synthetic-300": Family(SYNTHETIC, 300, CHEAP[:5]),
    "synthetic-30-tenth": Family(SYNTHETIC, 30, scale=0.1),
    "synthetic-30-tenfold": Family(SYNTHETIC, 30, scale=10.0),
    "synthetic-30-sizes": Family(SYNTHETIC | {"size_sigma": 1.0, "samples": 120}, 30),
    "fmnist-skew-mlp": Family(FMNIST, 30),
    "fmnist-turned-mlp": Family(FMNIST | {"scenario": "F"}, 30),
    "fmnist-skew-mlp-tenth": Family(FMNIST, 30, scale=0.1),
    "fmnist-skew-mlp-tenfold": Family(FMNIST, 30, scale=10.0),
    "heart-linear": Family({"model": "linear"}, 20, FEW_ROWS, clients=heart),
    "heart-mlp": Family({"model": "mlp"}, 20, FEW_ROWS, clients=heart),
    "flights": Family({"model": "mlp"}, 10, clients=flights),
    "watch": Family({"model": "mlp"}, 20, clients=watch),
    "fmnist-skew-cnn": Family(FMNIST | CNN, 15, DEAR, executor="loop"),
    "fmnist-turned-cnn": Family(FMNIST | CNN | {"scenario": "F"}, 15, DEAR, executor="loop"),
    "cifar10": Family({"task": "cifar10"} | CNN, 15, DEAR, executor="loop"),
    "cifar100": Family({"task": "cifar100"} | CNN, 15, DEAR, executor="loop"),
    "shakespeare": Family(PLAYS, 8, DEAR, executor="loop"),
}


def build(family: Family, more: dict[str, Any], seed: int) -> tuple[ExperimentConfig, Task]:
    """Settings and task of a cell."""
    options = dict(family.options)
    if family.clients is not None:
        options["task"] = equipoise.Task.from_datasets(
            family.clients(), model=options.pop("model")
        ).spec
    elif options["task"] != "synthetic":
        options["data"] = str(DATA)
    settings = ExperimentConfig.from_options(
        {**options, **more, "seed": seed, "rounds": family.rounds}
    )
    task = build_task(settings)
    if family.scale != 1.0:
        assert isinstance(task, ExamplesTask)
        form = task.data.transform
        if isinstance(
            form, PixelTransform
        ):  # bytes become numbers in the form: the factor belongs there
            task.data.transform = PixelTransform(
                form.mean, tuple(value / family.scale for value in form.std)
            )
        else:
            task.data = Scaled(task.data, family.scale)
    return settings, task
