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
from equipoise.report.statistics import paired_difference
from equipoise.utils.metrics import higher_is_better

NUM_SPLITS = 10
MAX_BELOW_POOLED = 0.003
"""Largest loss against boosting on all rows that is aimed at; of errors, a share of the error."""
MIN_GAINERS = 0.9
"""Share of the clients that shall have at least what their own boosting gives."""
POOLED = "boosting, pooled"
NETWORKS = {"fedavg": "mlp", "autopilot": "mlp", "linear": "linear", "autopilot, linear": "linear"}
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
    num_bytes = done.summary["bytes"]
    found["rounds"] = len(done.logs)
    found["megabytes"] = round((num_bytes["up"] + num_bytes["down"]) / 1e6, 2)
    return found


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


def pooled(results: Results) -> list[str]:
    """Paired differences of fedtrees to boosting on all rows, and whether the aim is met."""
    rows = []
    for data, file in FILES.items():
        is_error = not higher_is_better(file["metric"])
        sides: dict[int, dict[str, float]] = {}
        for title, method, side in ROWS[:3]:
            for record in results.where(data=data, method=method):
                sides.setdefault(record["seed"], {})[title] = _mean(record[side])
        both = [one for one in sides.values() if len(one) == 3]
        if len(both) < 2:
            continue
        row: list[Any] = [data, file["metric"], len(both)]
        for title in ("fedtrees", "fedtrees + own trees"):
            gaps = [one[title] - one[ROWS[0][0]] for one in both]
            if is_error:
                gaps = [-100 * g / one[ROWS[0][0]] for g, one in zip(gaps, both, strict=True)]
            found = paired_difference(gaps, [0.0] * len(gaps))
            assert found is not None
            digits, unit = (1, " %") if is_error else (4, "")
            half = found.high - found.mean
            row.append(f"{found.mean:+.{digits}f} ± {half:.{digits}f}{unit}")
            is_met = found.mean >= (-100 * MAX_BELOW_POOLED if is_error else -MAX_BELOW_POOLED)
        row.append("yes" if is_met else "no")
        rows.append(row)
    head = ["table", "score", "splits", "fedtrees", "fedtrees + own trees", "aim met in the mean"]
    return table(head, rows)


def gains(results: Results) -> list[str]:
    """How many clients have at least what their own boosting gives, over all splits."""
    rows = []
    for data, file in FILES.items():
        alone = results.where(data=data, method="local")
        ours = results.where(data=data, method="fedtrees")
        seeds = {record["seed"] for record in alone} & {record["seed"] for record in ours}
        own = _by_client(alone, "personal", seeds)
        if not own:
            continue
        sign = 1.0 if higher_is_better(file["metric"]) else -1.0
        row: list[Any] = [data, len(seeds), len(own)]
        for side in ("received", "personal"):
            found = _by_client(ours, side, seeds)
            gaps = [_gaps(found.get(name, {}), scores, sign) for name, scores in own.items()]
            gaps = [gap for gap in gaps if gap]
            share = float(np.mean([fmean(gap) >= 0 for gap in gaps]))
            row.append(f"{100 * share:.0f} %")
        row.append(sum(fmean(gap) < 0 for gap in gaps))
        row.append(sum(_is_clearly_below(gap) for gap in gaps))
        row.append("yes" if share >= MIN_GAINERS else "no")
        rows.append(row)
    head = ["table", "splits", "clients", "fedtrees", "fedtrees + own trees", "clients below"]
    return table([*head, "below beyond the interval", "aim met"], rows)


def _by_client(found: list[Record], side: str, seeds: set[int]) -> dict[str, dict[int, float]]:
    """Return each client's scores by split."""
    values: dict[str, dict[int, float]] = {}
    for record in found:
        for name, value in record[side].items():
            if value is not None and record["seed"] in seeds:
                values.setdefault(name, {})[record["seed"]] = value
    return values


def _gaps(ours: dict[int, float], own: dict[int, float], sign: float) -> list[float]:
    """Return a client's gains in the splits in which both models have a score."""
    return [sign * (ours[seed] - own[seed]) for seed in sorted(ours.keys() & own.keys())]


def _is_clearly_below(gaps: list[float]) -> bool:
    """Return whether the 95 % interval of a client's mean gain lies below 0."""
    found = paired_difference(gaps, [0.0] * len(gaps))
    return found is not None and found.high < 0


STUDY = Study(
    name="trees",
    cells=cells,
    measure=measure,
    tables={
        **{data: partial(scores, data) for data in FILES},
        "pooled": pooled,
        "gains": gains,
    },
)
