"""The first door on eight natural tables: what a user gets, beside scikit-learn on the same rows.

30 % of each site's rows are held out before anything sees them. On the others, `equipoise compare`
runs as it is typed first: the recommended methods, nothing set but the table, its target and the
metric. `equipoise choose` decides and trains the final model on all of these rows. scikit-learn has
the same rows, prepared alike. Scores are means over sites of the score on each site's own held-out
rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.families import DATA
from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import mean, spread, table
from benchmarks.natural_tables import FOLDER
from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.table import Table
from equipoise.experiment.choose import choose
from equipoise.experiment.compare import compare
from equipoise.experiment.row_outputs import USED
from equipoise.experiment.site_models import SiteModels, load_models
from equipoise.experiment.site_rows import (
    encoded_targets,
    feature_columns,
    labelled_mask,
    read_rows,
    split_by_site,
)
from equipoise.tasks.tables import SPEC
from equipoise.training.objectives import objective_of

SPLITS = (6, 7, 8, 9, 10)  # others had been looked at while the rule was chosen
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
        "data": FOLDER / "mathachieve.parquet",
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
SEEDS = 3  # of the comparison, as by default
HELD_OUT = 0.3
POOLED = "pooled linear"
SITES = "each site's linear"
NAMES = {
    POOLED: POOLED,
    SITES: SITES,
    USED: "**the decision**",
    "global": "its global model",
    "personal": "its personal models",
    "local": "own models beside it",
}
"""Columns of the page by their name in the results."""
SCORE_MARGIN = 0.005  # of AUC or concordance, below pooled
ERROR_MARGIN = 0.01  # of the pooled error
Floats = NDArray[np.float64]


def options(data: str, split: int) -> dict[str, Any]:
    """The options of a cell; what is not here is the default."""
    given = {"task": "tables", **TABLES[data], "small_clients": "pool", "seed": split}
    given["data"] = str(given["data"])
    return given


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Compare, choose, and score everything on the held-out rows."""
    given = dict(cell.options)
    column = given["client_column"]
    train, test = hold_out(Path(given["data"]), column, cell.axes["split"], folder)
    start = time.process_time()
    path = folder / "compare"
    cells = {method: {**given, "data": str(train)} for method in SPEC.first_methods}
    compare(cells, SEEDS, path, ["equipoise", "compare"], overwrite=True)
    choice, chosen = choose(path, overwrite=True)
    seconds = time.process_time() - start
    decision = choice.decision
    assert decision is not None
    models = load_models(chosen)
    linear = _fit_linear(models, _sites(models, read_rows(train, column), column))
    metric = METRICS.get(cell.axes["data"], "auc")
    scores: dict[str, list[float]] = {}
    for site in _sites(models, read_rows(test, column), column):
        outputs = {kind: models.outputs(kind, site.client, site.rows) for kind in site.models}
        outputs[USED] = outputs[models.model_of(site.client)]
        for name, fitted in linear.items():
            outputs[name] = fitted[site.client if name == SITES else None].outputs(site.x)
        for name in NAMES:
            score = objective_of(models.target).score(
                outputs[name].float()[None], site.y[None], None, (metric,)
            )
            scores.setdefault(name, []).append(float(score[metric]))
    known = np.all(np.isfinite(list(scores.values())), axis=0)
    return {
        **{name: float(np.array(values)[known].mean()) for name, values in scores.items()},
        "sites": len(known),
        "scored_sites": int(known.sum()),
        "chosen": next(one.label for one in decision.candidates if one.verdict == "chosen"),
        "headline": decision.headline,
        "rounds": decision.rounds,
        "cpu_seconds": seconds,
    }


def hold_out(path: Path, column: str, split: int, folder: Path) -> tuple[Path, Path]:
    """Write a table as two: the rows that the user has, and those held out at each site."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    else:
        frame = pd.read_parquet(path)
    frame = frame[frame[column].notna()].reset_index(drop=True)
    order = np.random.default_rng(split).permutation(len(frame))
    is_test = np.zeros(len(frame), np.bool_)
    for rows in frame.groupby(column, observed=True).indices.values():
        is_test[rows[order[rows].argsort()[: round(HELD_OUT * len(rows))]]] = True
    files = folder / f"train{path.suffix}", folder / f"test{path.suffix}"
    for part, file in zip((frame[~is_test], frame[is_test]), files, strict=True):
        if path.suffix == ".csv":
            part.to_csv(file, index=False)
        else:
            part.to_parquet(file, index=False)
    return files


class Site(NamedTuple):
    """Labelled rows of a site: raw, and prepared for a network."""

    client: int | None
    models: list[str]
    rows: Table
    x: Tensor
    y: Tensor


def _sites(models: SiteModels, rows: Table, column: str) -> list[Site]:
    """Return the labelled rows of each site."""
    labelled = labelled_mask(models, rows)
    assert labelled is not None
    known = rows.take(np.flatnonzero(labelled))
    found = []
    for site in split_by_site(models, known, None, column):
        own = known.take(site.rows)
        inputs = feature_columns(models, own, column)
        member = models.members[0]
        x = member.inputs(inputs, site.client)
        y = encoded_targets(models, own)
        found.append(Site(site.client, member.models_of(site.client), inputs, x, y))
    return found


# ------------------------------------------------------------------ scikit-learn, and Cox's model


class Linear(NamedTuple):
    """A linear model; with two classes it gives the logit of the second."""

    weights: Floats
    intercept: float
    kind: str

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs ``[n, outputs]`` as a network gives them."""
        found = torch.from_numpy(x.double().numpy() @ self.weights + self.intercept)[:, None]
        if self.kind != "classification":
            return found
        return torch.cat([torch.zeros_like(found), found], dim=1)


def _fit_linear(models: SiteModels, sites: list[Site]) -> dict[str, dict[int | None, Linear]]:
    """Fit one linear model on all rows (client None), and one on those of each client."""
    clients = sorted({site.client for site in sites if site.client is not None})
    own: dict[int | None, Linear] = {
        client: _fit(models.target, [site for site in sites if site.client == client])
        for client in clients
    }
    return {POOLED: {None: _fit(models.target, sites)}, SITES: own}


def _fit(target: Target, sites: list[Site]) -> Linear:
    """Fit scikit-learn's logistic or ridge regression at its defaults, or Cox's model."""
    from sklearn.linear_model import LogisticRegression, Ridge

    x = torch.cat([site.x for site in sites]).double().numpy()
    y = torch.cat([site.y for site in sites]).double().numpy()
    if target.kind == "survival":
        return Linear(fit_cox(x, y[:, 0], y[:, 1] > 0), 0.0, target.kind)
    if target.kind == "regression":
        ridge = Ridge().fit(x, (y - target.mean) / target.scale)
        return Linear(ridge.coef_, float(ridge.intercept_), target.kind)
    if len(np.unique(y)) == 1:
        return Linear(np.zeros(x.shape[1]), 5.0 if y[0] else -5.0, target.kind)
    logistic = LogisticRegression(max_iter=2000).fit(x, y)
    return Linear(logistic.coef_[0], float(logistic.intercept_[0]), target.kind)


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


def _metric(data: str) -> str:
    return METRICS.get(data, "auc")


def scores(results: Results) -> list[str]:
    """One line per table: means over sites, then over splits."""
    rows = []
    for data in TABLES:
        found = results.where(data=data)
        digits = 3 if _metric(data) == "rmse" else 4
        row: list[Any] = [data, _metric(data), len(found)]
        row += [spread((record.result.get(name) for record in found), digits) for name in NAMES]
        rows.append(row)
    return table(["table", "score", "splits", *NAMES.values()], rows)


def _gains(records: list[Record], reference: str, metric: str) -> list[float]:
    """The decision's gain in each split; of errors relative to the reference."""
    pairs = [(record.result[USED], record.result[reference]) for record in records]
    if metric == "rmse":
        return [(other - own) / other for own, other in pairs]
    return [own - other for own, other in pairs]


def _gain_text(gains: list[float], metric: str) -> str | None:
    if not gains:
        return None
    if metric == "rmse":
        return spread((100 * gain for gain in gains), 1) + " %"
    return spread(gains, 4)


def verdicts(results: Results) -> list[str]:
    """The decision beside scikit-learn, paired by split, and what was decided."""
    rows = []
    for data in TABLES:
        found = results.where(data=data)
        row: list[Any] = [data, _metric(data)]
        row += [
            _gain_text(_gains(found, reference, _metric(data)), _metric(data))
            for reference in (POOLED, SITES)
        ]
        chosen = [record.result["chosen"] for record in found]
        counts = {label: chosen.count(label) for label in sorted(set(chosen))}
        row.append("; ".join(f"{label} {count}" for label, count in counts.items()))
        row.append(spread((record.result["cpu_seconds"] for record in found), 0))
        rows.append(row)
    head = ["table", "score", "gain over pooled", "gain over each site's", "chosen (splits)"]
    return table([*head, "processor seconds"], rows)


def aims(results: Results) -> list[str]:
    """How many tables reach each aim, and which do not."""
    below: dict[str, list[str]] = {"each site's own": [], "pooled": []}
    done = [data for data in TABLES if results.where(data=data)]
    for data in done:
        found = results.where(data=data)
        margin = ERROR_MARGIN if _metric(data) == "rmse" else SCORE_MARGIN
        own = mean(_gains(found, SITES, _metric(data)))
        pooled = mean(_gains(found, POOLED, _metric(data)))
        if own is not None and own < 0:
            below["each site's own"].append(data)
        if pooled is not None and pooled < -margin:
            below["pooled"].append(data)
    rows = [
        [aim, f"{len(done) - len(names)} of {len(done)}", ", ".join(names) or "none"]
        for aim, names in below.items()
    ]
    return table(["aim beside", "tables that reach it", "below it"], rows)


STUDY = Study(
    name="first_door",
    cells=lambda results: grid(options, data=tuple(TABLES), split=SPLITS),
    measure=measure,
    tables={"scores": scores, "verdicts": verdicts, "aims": aims},
)
