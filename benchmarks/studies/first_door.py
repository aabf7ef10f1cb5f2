"""The first door on eight natural tables: defaults beside what scikit-learn gives on the same rows.

A third of each site's rows is held out. `defaults` are the recommended methods with nothing set but
the table, its target and the metric; the same with `--model linear` stands beside them.
scikit-learn has the rows that Equipoise trains and validates on, prepared alike. Scores are means
over sites of the score on each site's own held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.families import DATA
from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import mean, spread, table
from benchmarks.natural_tables import FOLDER
from equipoise.experiment.runner import build_task
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import pytree

SPLITS = (1, 2, 3, 4, 5)
TABLES: dict[str, dict[str, Any]] = {
    "heart": {
        "data": DATA / "tables" / "heart_disease.csv",
        "client_column": "hospital",
        "target": "num > 0",
        "ignore_columns": "flamby_split",
        "metric": "auc",
    },
    "flights": {
        "data": DATA / "tables" / "nycflights13_sample.parquet",
        "client_column": "carrier",
        "target": "arr_delay > 15",
        "ignore_columns": "dep_time,dep_delay,arr_time,air_time,dest,time_hour",
        "metric": "auc",
    },
    "brca": {
        "data": DATA / "tables" / "tcga_brca.csv",
        "client_column": "region",
        "target": "T",
        "event": "E",
        "ignore_columns": "flamby_split",
    },
    "dialysis": {
        "data": FOLDER / "dialysis.parquet",
        "client_column": "fac_center",
        "target": "time",
        "event": "event",
    },
    "math": {
        "data": FOLDER / "math.parquet",
        "client_column": "School",
        "target": "MathAch",
        "target_type": "regression",
    },
    "loans": {
        "data": FOLDER / "loans.parquet",
        "client_column": "state",
        "target": "interest_rate",
        "target_type": "regression",
        "ignore_columns": "grade,sub_grade,installment",
    },
    "happiness": {
        "data": FOLDER / "happiness.parquet",
        "client_column": "region",
        "target": "vhappy",
        "ignore_columns": "happy",
        "metric": "auc",
    },
    "hiv": {
        "data": FOLDER / "thornton.parquet",
        "client_column": "villnum",
        "target": "got",
        "missing_site": "drop",
        "metric": "auc",
    },
}
METRICS = {"brca": "concordance", "dialysis": "concordance", "math": "rmse", "loans": "rmse"}
METHODS = ("autopilot", "fedavg", "local")
POOLED = "pooled linear"
SITES = "each site's linear"
WAYS = (POOLED, SITES, *METHODS, *(f"{method}, linear" for method in METHODS))
SIDES = ("global", "personal")
SCORE_MARGIN = 0.005  # of AUC or concordance, below pooled
ERROR_MARGIN = 0.01  # of the pooled error
Floats = NDArray[np.float64]


def options(data: str, split: int, way: str) -> dict[str, Any]:
    """The options of a cell; what is not here is the default."""
    given = {"task": "tables", **TABLES[data], "small_clients": "pool", "seed": split}
    given["data"] = str(given["data"])
    method, _, model = way.partition(", ")
    if method in METHODS:
        given["method"] = method
    if model:
        given["model"] = model
    return given


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Mean scores over sites on validation and held-out rows."""
    way = cell.axes["way"]
    metric = METRICS.get(cell.axes["data"], "auc")
    if way in (POOLED, SITES):
        return {"test": _scikit(_task(cell.options), metric, pooled=way == POOLED)}
    summary = run(cell.options, folder).summary
    task = _task(cell.options)
    found: dict[str, Any] = {"rounds": summary["rounds"], "seconds_run": summary["seconds"]}
    models = {name: RunFolder(folder).model(name) for name in SIDES}
    for side, file in models.items():
        if not file.exists():
            continue
        params = file.read_tensors()
        if side == "global":
            params = pytree.stack([params] * task.data.clients)
        else:
            params.pop("client_ids")
        for split in ("val", "test"):
            scores = task.evaluate_stack(torch.arange(task.data.clients), params, split)
            found[f"{side}_{split}"] = _mean(scores[metric].numpy())
            found[f"{side}_{split}_loss"] = _mean(scores["loss"].numpy())
    return found


def _task(given: Mapping[str, Any]) -> ExamplesTask:
    task = build_task(ExperimentConfig.from_options(dict(given)))
    assert isinstance(task, ExamplesTask)
    return task.with_all_metrics()


def _mean(scores: NDArray[Any]) -> float | None:
    """Mean over the sites where a score is defined."""
    defined = scores[np.isfinite(scores)]
    return float(defined.mean()) if len(defined) else None


# ------------------------------------------------------------------ scikit-learn, and Cox's model


def _rows(task: ExamplesTask, site: int, *splits: str) -> tuple[Floats, Floats]:
    parts = [task.data.split(np.array([site]), split) for split in splits]
    ranges = [slice(int(own.start[0]), int(own.start[0] + own.size[0])) for own in parts]
    x = torch.cat([own.x[rows] for own, rows in zip(parts, ranges, strict=True)])
    y = torch.cat([own.y[rows] for own, rows in zip(parts, ranges, strict=True)])
    return x.double().numpy(), y.double().numpy()


def _scikit(task: ExamplesTask, metric: str, pooled: bool) -> float | None:
    sites = [_rows(task, site, "train", "val") for site in range(task.data.clients)]
    x = np.concatenate([rows for rows, _ in sites])
    y = np.concatenate([targets for _, targets in sites])
    scores = []
    weights = _fit(task, x, y) if pooled else None
    for site, rows in enumerate(sites):
        coefficients, intercept = weights or _fit(task, *rows)
        test_x, test_y = _rows(task, site, "test")
        outputs = torch.from_numpy(test_x @ coefficients + intercept)[:, None]
        if task.data.target.kind == "classification":
            outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
            targets = torch.from_numpy(test_y).long()
        else:
            targets = torch.from_numpy(test_y)
        found = task._score(outputs[None].float(), targets[None], None)
        scores.append(float(found[metric]))
    return _mean(np.array(scores))


def _fit(task: ExamplesTask, x: Floats, y: Floats) -> tuple[Floats, float]:
    """Fit scikit-learn's logistic or ridge regression at its defaults, or Cox's model."""
    from sklearn.linear_model import LogisticRegression, Ridge

    target = task.data.target
    if target.kind == "survival":
        return fit_cox(x, y[:, 0], y[:, 1] > 0), 0.0
    if target.kind == "regression":
        ridge = Ridge().fit(x, (y - target.mean) / target.scale)
        return ridge.coef_, float(ridge.intercept_)
    if len(np.unique(y)) == 1:
        return np.zeros(x.shape[1]), 5.0 if y[0] else -5.0
    logistic = LogisticRegression(max_iter=2000).fit(x, y)
    return logistic.coef_[0], float(logistic.intercept_[0])


def fit_cox(x: Floats, time: Floats, event: NDArray[np.bool_], penalty: float = 1.0) -> Floats:
    """Fit Cox's model by Newton steps: partial likelihood of Breslow minus penalty / 2 |w|^2."""
    order = np.argsort(-time, kind="stable")
    x = x[order]
    time = time[order]
    events = np.flatnonzero(event[order])
    last = np.searchsorted(-time, -time, side="right") - 1  # ties are in the risk set
    w = np.zeros(x.shape[1])
    for _ in range(50):
        risk = np.exp(x @ w - (x @ w).max())
        total = np.cumsum(risk)[last]
        mean_x = np.cumsum(risk[:, None] * x, axis=0)[last] / total[:, None]
        gradient = (x[events] - mean_x[events]).sum(0) - penalty * w
        at = np.bincount(last[events], weights=1 / total[events], minlength=len(time))
        weight = risk * np.cumsum(at[::-1])[::-1]
        hessian = (x * weight[:, None]).T @ x - mean_x[events].T @ mean_x[events]
        step = np.linalg.solve(hessian + penalty * np.eye(len(w)), gradient)
        length = float(np.linalg.norm(step))
        w = w + step * min(1.0, 2.0 / max(length, 1e-12))
        if length < 1e-8:
            break
    return w


# ------------------------------------------------------------------ tables


def _best(record: Record) -> float | None:
    """The held-out score of the side whose validation loss is lower."""
    losses = {side: record.result.get(f"{side}_val_loss") for side in SIDES}
    known = {side: loss for side, loss in losses.items() if loss is not None}
    if not known:
        return record.result.get("test")
    side = min(known, key=lambda name: known[name])
    value: float | None = record.result.get(f"{side}_test")
    return value


def _decided(records: list[Record]) -> float | None:
    """The held-out score of the way and side with the lowest validation loss."""
    found = [
        (record.result.get(f"{side}_val_loss"), record.result.get(f"{side}_test"))
        for record in records
        for side in SIDES
        if record.result.get(f"{side}_val_loss") is not None
    ]
    return min(found)[1] if found else None


def _complete(results: Results, data: str) -> list[int]:
    """The splits of a table on which every way has run."""
    done = {(record["split"], record["way"]) for record in results.where(data=data)}
    return [split for split in SPLITS if all((split, way) in done for way in WAYS)]


def scores(results: Results) -> list[str]:
    """One line per table: means over sites, then over splits."""
    rows = []
    for data in TABLES:
        splits = _complete(results, data)
        digits = 4 if METRICS.get(data, "auc") != "rmse" else 3
        row: list[Any] = [data, METRICS.get(data, "auc"), len(splits)]
        for way in WAYS:
            found = [r for r in results.where(data=data, way=way) if r["split"] in splits]
            row.append(spread((_best(record) for record in found), digits))
        rows.append(row)
    return table(["table", "score", "splits", *WAYS], rows)


def _means(results: Results, data: str, ways: Sequence[str]) -> list[float | None]:
    """Mean scores over complete splits: the decision among ways, pooled, each site's own."""
    splits = _complete(results, data)
    decided = mean(
        _decided([r for way in ways for r in results.where(data=data, split=split, way=way)])
        for split in splits
    )
    references = [
        mean(
            record.result.get("test")
            for record in results.where(data=data, way=way)
            if record["split"] in splits
        )
        for way in (POOLED, SITES)
    ]
    return [decided, *references]


def verdicts(results: Results) -> list[str]:
    """The decision by validation loss beside scikit-learn, in means over splits."""
    rows = []
    for data in TABLES:
        metric = METRICS.get(data, "auc")
        row: list[Any] = [data, metric]
        for ways in (METHODS, WAYS[2:]):
            value, *references = _means(results, data, ways)
            row.append(None if value is None else f"{value:.4f}")
            row += [_gain(value, reference, metric) for reference in references]
        rows.append(row)
    head = ["table", "score"]
    for name in ("defaults", "with linear"):
        head += [name, f"{name} - pooled", f"{name} - each site's"]
    return table(head, rows)


def aims(results: Results) -> list[str]:
    """How many tables reach each aim with the defaults, and which do not."""
    below: dict[str, list[str]] = {"each site's own": [], "pooled": []}
    for data in TABLES:
        value, pooled, own = _means(results, data, METHODS)
        if value is None or pooled is None or own is None:
            continue
        is_error = METRICS.get(data) == "rmse"
        sign = -1 if is_error else 1
        if sign * (value - own) < 0:
            below["each site's own"].append(data)
        margin = ERROR_MARGIN * pooled if is_error else SCORE_MARGIN
        if sign * (value - pooled) < -margin:
            below["pooled"].append(data)
    rows = [
        [aim, f"{len(TABLES) - len(names)} of {len(TABLES)}", ", ".join(names) or "none"]
        for aim, names in below.items()
    ]
    return table(["aim beside", "tables that reach it", "below it"], rows)


def _gain(value: float | None, reference: float | None, metric: str) -> str | None:
    """A difference where more is better; of errors in percent of the reference."""
    if value is None or reference is None:
        return None
    if metric == "rmse":
        return f"{100 * (reference - value) / reference:+.1f} %"
    return f"{value - reference:+.4f}"


STUDY = Study(
    name="first_door",
    cells=lambda results: grid(options, data=tuple(TABLES), split=SPLITS, way=WAYS),
    measure=measure,
    tables={"scores": scores, "verdicts": verdicts, "aims": aims},
)
