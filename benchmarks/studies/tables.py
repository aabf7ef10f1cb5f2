"""Natural federations: hospitals, regions, airlines, people; repeated splits, every client by name, pooled training.

On the split that FLamby published, its own figures stand beside ours.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.families import DATA
from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import built, run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import mean, paired, spread, table
from benchmarks.published import FLAMBY, published_split
from equipoise.records.tables import read_names, read_table
from equipoise.tasks.from_examples import FromExamples

SPLITS = 20
METHODS = (
    "fedavg",
    "local",
    "finetune",
    "fedprox",
    "scaffold",
    "fedadam",
    "ditto",
    "fedper",
    "equilibrium",
    "autopilot",
)
OUTSIDE = ("logistic, pooled", "boosting, pooled", "logistic, local")
"""Of scikit-learn: on all clients' training rows in one place, and on each client's own."""

FILES: dict[str, dict[str, Any]] = {
    "heart": {
        **{"data": "heart_disease.csv", "client_column": "hospital", "target": "num > 0", "headline": "auc"},
        **{"categories": "cp,restecg,slope,thal", "ignore_columns": "flamby_split"},
        **{"model": "linear", "rounds": 20, "epochs": 2, "batch_size": 16, "lr": 0.05, "standardise": "client"},
    },
    "brca": {
        **{"data": "tcga_brca.csv", "client_column": "region", "target": "T", "event": "E"},
        **{"ignore_columns": "flamby_split", "small": "keep"},
        **{"model": "linear", "rounds": 20, "epochs": 2, "batch_size": 32, "lr": 0.05},
    },
    "late": {
        **{"data": "nycflights13_sample.parquet", "client_column": "carrier", "target": "arr_delay > 15"},
        **{"headline": "auc", "small": "drop", "min_rows": 100},
        **{"model": "mlp", "rounds": 10, "epochs": 1, "batch_size": 64, "lr": 0.1},
    },
    "delay": {
        **{"data": "nycflights13_sample.parquet", "client_column": "carrier", "target": "arr_delay"},
        **{"kind": "regression", "small": "drop", "min_rows": 100},
        **{"model": "mlp", "rounds": 10, "epochs": 1, "batch_size": 64, "lr": 0.02},
    },
    "watch": {
        **{"data": "watch.npz", "client_column": "subject", "target": "exercise"},
        **{"model": "cnn1d", "rounds": 10, "epochs": 1, "batch_size": 32, "lr": 0.1},
    },
}
KNOWN_AFTERWARDS = "dep_time,dep_delay,arr_time,air_time,dest,time_hour"
"""Columns of flights that say how late it was, or that are names."""
HEADLINES = {"heart": "auc", "brca": "concordance", "late": "auc", "delay": "rmse", "watch": "acc"}
SHOWN = {
    "heart": ("acc", "auc", "ece"),
    "brca": ("concordance",),
    "late": ("auc", "balanced_acc"),
    "watch": ("acc", "f1"),
}
SHOWN["delay"] = ("rmse", "mae", "r2")


def options(data: str, seed: int) -> dict[str, Any]:
    file = FILES[data]
    if data in ("late", "delay"):
        file = {**file, "ignore_columns": KNOWN_AFTERWARDS}
    return {
        "task": "own",
        **file,
        "data": str(DATA / "tables" / file["data"]),
        "seed": seed,
        "eval_every": file["rounds"],
    }


def suited(data: str) -> list[str]:
    """A linear model has no head to keep."""
    return [method for method in METHODS if method != "fedper" or FILES[data]["model"] != "linear"]


def cells(results: Results) -> list[Cell]:
    """Split by split, so that whenever time is up all methods have the same splits."""
    found = [
        Cell({"data": data, "method": method, "seed": seed}, {**options(data, seed), "method": method})
        for data, splits in (("heart", SPLITS), ("brca", SPLITS), ("late", 5), ("delay", 5), ("watch", 3))
        for seed in range(splits)
        for method in suited(data)
    ]
    found += [
        Cell({"data": data, "method": method, "seed": seed}, options(data, seed))
        for data in ("heart", "late")
        for seed in range(SPLITS if data == "heart" else 5)
        for method in OUTSIDE
    ]
    return [
        *(Cell({"data": data, "method": method, "split": "flamby"}) for data in FLAMBY for method in suited(data)),
        *found,
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Scores of the personal models by name, each client's headline, steps and bytes."""
    axes = cell.axes
    if "split" in axes:
        return published_split(axes["data"], axes["method"])
    if axes["method"] in OUTSIDE:
        return _outside(axes["method"], cell.options)
    done, head = run(cell.options, folder), HEADLINES[axes["data"]]
    summary, clients = done.summary, read_table(folder / "clients.csv")
    names = read_names(folder / "clients.csv")
    column = clients[f"personal_{head}"]
    return {
        "personal": _rounded(summary["personal"]),
        "global": _rounded(summary["global"]) if summary.get("global") else None,
        "constant": _number(fmean(clients[f"constant_{head}"])),
        "clients": {names.get(int(k), str(int(k))): _number(v) for k, v in zip(clients["client"], column, strict=True)},
        "score": _number(summary["personal"][head]),
        "steps": summary["steps"],
        "megabytes": round((summary["bytes"]["up"] + summary["bytes"]["down"]) / 1e6, 3),
    }


def _outside(method: str, given: Any) -> dict[str, Any]:
    """A model of scikit-learn on the same prepared rows and splits, scored as ours are."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    _, task = built(given)
    assert isinstance(task, FromExamples)
    who = np.arange(task.clients)
    scores: list[dict[str, float]] = []
    make = (
        HistGradientBoostingClassifier if method.startswith("boosting") else lambda: LogisticRegression(max_iter=1000)
    )
    everything = task.data.split(who, "train")
    pooled = None if method.endswith("local") else make().fit(everything.x.numpy(), everything.y.numpy())
    for client in who:
        x, y = (part.numpy() for part in _rows(task, int(client), "train"))
        model = pooled or (make().fit(x, y) if len(np.unique(y)) > 1 else None)
        tx, ty = _rows(task, int(client), "test")
        share = np.full((len(tx), 2), 0.5) if model is None else model.predict_proba(tx.numpy())
        logits = np.log(np.clip(share, 1e-12, 1))[None]
        found = task.complete()._score(torch.from_numpy(logits), ty[None], None)
        scores.append({name: float(value) for name, value in found.items()})
    means = {name: float(np.nanmean([score[name] for score in scores])) for name in scores[0]}
    named = dict(zip(task.client_names, (_number(score["auc"]) for score in scores), strict=True))
    return {"personal": _rounded(means), "clients": named, "score": _number(means["auc"])}


def _rows(task: FromExamples, client: int, split: str) -> Any:
    own = task.data.split(np.array([client]), split)
    here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
    return own.x[here], own.y[here]


def _number(value: float) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)


def _rounded(scores: dict[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in scores.items()}


def repeated(data: str, results: Results) -> list[str]:
    """Every method: scores over splits, paired difference to FedAvg and to local training, steps and bytes."""
    head, rows = HEADLINES[data], []
    kept: dict[str, list[Record]] = {m: results.where(data=data, method=m) for m in (*METHODS, *OUTSIDE)}
    kept = {m: [r for r in found if "seed" in r.axes] for m, found in kept.items()}
    for method, found in kept.items():
        if not found:
            continue
        more = "steps" in found[0].result
        rows.append(
            [
                method,
                len(found),
                *(spread((r["personal"].get(name) for r in found), 3) for name in SHOWN[data]),
                None if method == "fedavg" else paired(found, kept["fedavg"], "score", 3),
                None if method == "local" else paired(found, kept["local"], "score", 3),
                f"{fmean(r['steps'] for r in found) / 1000:.1f}" if more else None,
                f"{fmean(r['megabytes'] for r in found):.2f}" if more else None,
            ]
        )
    if not rows:
        return ["No cells yet."]
    titles = ["method", "splits", *SHOWN[data], f"{head} - fedavg", f"{head} - local", "steps, thousands", "MB"]
    return table(titles, rows)


def by_client(data: str, results: Results) -> list[str]:
    """The headline of every client, mean over splits."""
    kept = {m: [r for r in results.where(data=data, method=m) if "seed" in r.axes] for m in (*METHODS, *OUTSIDE)}
    names = list(dict.fromkeys(name for found in kept.values() for r in found for name in r["clients"]))
    rows = [
        [m, *(spread((r["clients"].get(n) for r in found), 3) for n in names)] for m, found in kept.items() if found
    ]
    return table([f"{HEADLINES[data]}", *names], rows) if rows else ["No cells yet."]


def on_published(data: str, results: Results) -> list[str]:
    """The published split: five first models, means; FLamby's figures below."""
    about = FLAMBY[data]
    rows: list[list[Any]] = []
    for method in METHODS:
        for record in results.where(data=data, method=method, split="flamby"):
            figures = (*(record["clients"][client] for client in about.clients), record["pooled"])
            rows.append([method, *(None if figure is None else f"{figure:.3f}" for figure in figures)])
    rows += [[f"*{name}*", *figures] for name, figures in about.figures.items()]
    average = "mean of clients"
    shown = [[*row, _mean_of(row[1 : 1 + len(about.clients)])] for row in rows]
    return table(["method", *about.clients, "pooled test", average], shown)


def _mean_of(cells: list[Any]) -> str | None:
    value = mean([float(cell) for cell in cells if cell not in (None, "-")])
    return None if value is None else f"{value:.3f}"


STUDY = Study(
    name="tables",
    cells=cells,
    measure=measure,
    tables={
        **{data: partial(repeated, data) for data in FILES},
        **{f"{data}_clients": partial(by_client, data) for data in FILES},
        **{f"{data}_published": partial(on_published, data) for data in FLAMBY},
    },
)
