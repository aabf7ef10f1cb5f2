"""Trees on natural tables: pooled, federated with and without own trees, local; beside networks."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.families import DATA
from benchmarks.gathered import gathered_scores
from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import spread, table
from benchmarks.natural_tables import FOLDER as NATURAL
from equipoise.records.run_dir import RunFolder
from equipoise.utils.metrics import higher_is_better

NUM_SPLITS = 10
POOLED = "boosting, pooled"
NETWORKS = {"fedavg": "mlp", "autopilot": "mlp", "linear": "linear", "autopilot, linear": "linear"}
FAMILIES = ("autopilot, linear", "autopilot", "fedtrees")
"""What `--model auto` chooses from, the simplest first."""
METHODS = (POOLED, "fedtrees", "local", *NETWORKS)

FLIGHTS = "dep_time,dep_delay,arr_time,air_time"
PAID = (
    "rownames,emp_title,grade,sub_grade,installment,balance,paid_total,paid_principal,paid_interest,"
    "paid_late_fees,loan_status,issue_month"
)
FILES: dict[str, dict[str, Any]] = {
    "heart": {
        "data": DATA / "tables" / "heart_disease.csv",
        "client_column": "hospital",
        "target": "num > 0",
        "ignore_columns": "flamby_split",
        "categories": "cp,restecg,slope,thal",
        "metric": "auc",
    },
    "brca": {
        "data": DATA / "tables" / "tcga_brca.csv",
        "client_column": "region",
        "target": "T",
        "event": "E",
        "ignore_columns": "flamby_split",
        "small_clients": "keep",
        "metric": "concordance",
    },
    "happiness": {
        "data": NATURAL / "happiness.parquet",
        "client_column": "region",
        "target": "vhappy",
        "ignore_columns": "happy",
        "metric": "auc",
    },
    "villages": {
        "data": NATURAL / "thornton.parquet",
        "client_column": "villnum",
        "missing_site": "drop",
        "target": "got",
        "small_clients": "drop",
        "min_rows": 30,
        "metric": "auc",
    },
    "loans": {
        "data": NATURAL / "loans.parquet",
        "client_column": "state",
        "target": "interest_rate",
        "target_type": "regression",
        "ignore_columns": PAID,
        "small_clients": "drop",
        "min_rows": 100,
        "metric": "rmse",
    },
    "schools": {
        "data": NATURAL / "mathachieve.parquet",
        "client_column": "School",
        "target": "MathAch",
        "target_type": "regression",
        "ignore_columns": "rownames",
        "small_clients": "drop",
        "min_rows": 30,
        "metric": "rmse",
    },
    "airlines": {
        "data": DATA / "tables" / "nycflights13_sample.parquet",
        "client_column": "carrier",
        "target": "arr_delay > 15",
        "ignore_columns": FLIGHTS,
        "small_clients": "drop",
        "min_rows": 100,
        "metric": "auc",
    },
}
TREES = {"model": "trees", "eval_every": 1000}
SGD = {"epochs": 1, "batch_size": 32, "lr": 0.05, "rounds": 30, "eval_every": 30}


def options(data: str, method: str, seed: int) -> dict[str, Any]:
    given = {"task": "tables", **FILES[data], "data": str(FILES[data]["data"]), "seed": seed}
    if method == POOLED:
        return {**given, "model": "mlp", "method": "fedavg", "rounds": 1}
    if method == "fedtrees":
        return {**given, **TREES, "method": method}
    if method == "local":
        return {**given, **TREES, "method": method, "rounds": 1}
    name = "fedavg" if method == "linear" else method.split(",")[0]
    return {**given, **SGD, "method": name, "model": NETWORKS[method]}


def cells(results: Results) -> list[Cell]:
    """Split by split, so that whenever time is up all methods have the same splits."""
    found = []
    for seed in range(NUM_SPLITS):
        for data in FILES:
            for method in METHODS:
                if data == "brca" and method == POOLED:
                    continue  # scikit-learn has no model of survival
                axes = {"data": data, "method": method, "seed": seed}
                found.append(Cell(axes, options(data, method, seed)))
    return found


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Scores of each client, rounds, seconds and bytes."""
    head = FILES[cell.axes["data"]]["metric"]
    if cell.axes["method"] == POOLED:
        clients, scores = gathered_scores(POOLED, cell.options)
        values = [score[head] for score in scores]
        return {"personal": dict(zip(clients, map(_number, values), strict=True))}
    done = run(cell.options, folder)
    scored = RunFolder(folder).read_table(RunFolder(folder).clients)
    names = RunFolder(folder).read_names()
    found: dict[str, Any] = {}
    for side in ("received", "personal"):
        column = scored[f"{side}_{head}"]
        found[side] = {
            names.get(int(k), str(int(k))): _number(v)
            for k, v in zip(scored["client"], column, strict=True)
        }
    found["val"] = _validation(done.logs, head)
    num_bytes = done.summary["bytes"]
    found["rounds"] = len(done.logs)
    found["megabytes"] = round((num_bytes["up"] + num_bytes["down"]) / 1e6, 2)
    return found


def _validation(logs: list[dict[str, Any]], head: str) -> float | None:
    """Return the last score by which `--model auto` chooses: of the global and personal models."""
    last: float | None = None
    for log in logs:
        if log.get("val"):
            scores = [log["val"].get(side) or {} for side in ("global", "personal")]
            last = fmean(score[head] for score in scores if score.get(head) is not None)
    return last


def _number(value: float) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)


def _mean(scores: dict[str, float | None]) -> float:
    return fmean(value for value in scores.values() if value is not None)


ROWS = (
    ("boosting on all rows (scikit-learn)", POOLED, "personal"),
    ("fedtrees", "fedtrees", "received"),
    ("fedtrees + own trees", "fedtrees", "personal"),
    ("boosting at each client", "local", "personal"),
    ("autopilot (MLP)", "autopilot", "personal"),
    ("FedAvg (MLP)", "fedavg", "received"),
    ("FedAvg (linear)", "linear", "received"),
    ("autopilot (linear)", "autopilot, linear", "personal"),
)


def scores(data: str, results: Results) -> list[str]:
    """Mean over clients, then mean and deviation over splits; bytes and rounds of one client."""
    head = FILES[data]["metric"]
    rows = []
    for title, method, side in ROWS:
        found = results.where(data=data, method=method)
        if not found:
            continue
        more = "rounds" in found[0].result
        rows.append(
            [
                title,
                spread((_mean(r[side]) for r in found), 4 if head != "rmse" else 3),
                round(fmean(r["rounds"] for r in found)) if more else "",
                round(fmean(r["megabytes"] for r in found), 1) if more else "",
                len(found),
            ]
        )
    return table(["model", head, "trips", "MB, all clients", "splits"], rows)


def gains(results: Results) -> list[str]:
    """How many clients have at least what their own boosting gives, over all splits."""
    rows = []
    for data, file in FILES.items():
        own = _by_client(results.where(data=data, method="local"), "personal")
        if not own:
            continue
        sign = 1.0 if higher_is_better(file["metric"]) else -1.0
        row: list[Any] = [data, len(own)]
        for side in ("received", "personal"):
            found = _by_client(results.where(data=data, method="fedtrees"), side)
            level = [sign * (found[name] - own[name]) >= 0 for name in own if name in found]
            row.append(f"{100 * float(np.mean(level)):.0f} %" if level else "")
        rows.append(row)
    return table(["table", "clients", "fedtrees", "fedtrees + own trees"], rows)


def auto(results: Results) -> list[str]:
    """The family that `--model auto` takes, by validation, beside the best one on test rows."""
    rows = []
    for data, file in FILES.items():
        sign = 1.0 if higher_is_better(file["metric"]) else -1.0
        taken: list[str] = []
        test: dict[str, list[float]] = {family: [] for family in (*FAMILIES, "auto")}
        for seed in range(NUM_SPLITS):
            runs = {f: results.where(data=data, method=f, seed=seed) for f in FAMILIES}
            if not all(runs.values()):
                continue
            val = {family: sign * found[0]["val"] for family, found in runs.items()}
            taken.append(max(FAMILIES, key=lambda family: val[family]))
            for family, found in runs.items():
                test[family].append(_mean(found[0]["personal"]))
            test["auto"].append(test[taken[-1]][-1])
        if not taken:
            continue
        means = {family: fmean(values) for family, values in test.items()}
        best = max(FAMILIES, key=lambda family: sign * means[family])
        below = sign * (means[best] - means["auto"])
        shown = ", ".join(f"{f} {taken.count(f)}" for f in FAMILIES if f in taken)
        rows.append([data, shown, round(means["auto"], 4), best, round(means[best], 4)])
        rows[-1].append(f"{below:+.4f}")
    return table(
        ["table", "auto takes", "auto", "best family", "its score", "auto is below by"], rows
    )


def _by_client(found: list[Record], side: str) -> dict[str, float]:
    """Return the mean over splits of each client's score."""
    values: dict[str, list[float]] = {}
    for record in found:
        for name, value in record[side].items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: fmean(own) for name, own in values.items()}


STUDY = Study(
    name="trees",
    cells=cells,
    measure=measure,
    tables={**{data: partial(scores, data) for data in FILES}, "gains": gains, "auto": auto},
)
