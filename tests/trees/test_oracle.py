"""Boosting beside LightGBM and scikit-learn at equal settings, on real tables and a made one."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")
import lightgbm
from sklearn import ensemble
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score

from equipoise.data.transforms import MISSING_INPUT
from equipoise.trees import personal
from equipoise.trees.arrays import ClientSpans
from equipoise.trees.boosting import Rows, boost
from equipoise.trees.config import TreeOptions
from equipoise.trees.histograms import add_trees
from equipoise.trees.objectives import ClassificationBoosting, RegressionBoosting

TABLES = Path(__file__).parents[3] / "shared" / "data" / "tables"
MAX_DIFFERENCE = 0.003
OPTIONS = TreeOptions(trees=60, tree_bins=255)
SEEDS = 5
HEART_SEEDS = 12
"""The smallest table: 300 test rows move by more than 0.003 by chance."""


def ours(x, y, new, objective=None):
    """Grow on rows of three clients; return the margins of new rows."""
    objective = objective or ClassificationBoosting(2)
    x, new = (np.nan_to_num(part, nan=MISSING_INPUT).astype(np.float32) for part in (x, new))
    sizes = np.array([len(x) // 2, len(x) // 3, len(x) - len(x) // 2 - len(x) // 3])
    rows = Rows(x, y, np.cumsum(sizes) - sizes, sizes)
    numbers = np.zeros(x.shape[1], np.int64)
    edges = personal.common_edges(rows, OPTIONS.tree_bins)[None]
    base = objective.base_margins(objective.target_sums(y))
    margins = np.repeat(base[:, None], len(x), 1)
    grown = boost(
        objective, OPTIONS, OPTIONS.trees, numbers, edges, np.zeros(3, np.int64), rows, margins
    )
    outputs = np.repeat(base[:, None], len(new), 1)
    zero = np.zeros(1, np.int64)
    everything = ClientSpans.of_one_model(zero, np.array([len(new)]))
    add_trees(new, everything, zero, OPTIONS.trees, grown.trees, outputs)
    return outputs[0]


def of_lightgbm(x, y, new, objective="binary"):
    settings = {
        "objective": objective,
        "num_leaves": OPTIONS.tree_leaves,
        "max_depth": OPTIONS.tree_depth,
        "learning_rate": OPTIONS.shrinkage,
        "min_data_in_leaf": OPTIONS.leaf_rows,
        "min_sum_hessian_in_leaf": 1e-3,
        "lambda_l2": OPTIONS.leaf_l2,
        "max_bin": OPTIONS.tree_bins,
        "num_threads": 1,
        "verbose": -1,
    }
    return lightgbm.train(settings, lightgbm.Dataset(x, y), OPTIONS.trees).predict(new)


def of_scikit_learn(x, y, new):
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=OPTIONS.trees,
        max_depth=OPTIONS.tree_depth,
        max_leaf_nodes=OPTIONS.tree_leaves,
        learning_rate=OPTIONS.shrinkage,
        min_samples_leaf=OPTIONS.leaf_rows,
        l2_regularization=OPTIONS.leaf_l2,
        early_stopping=False,
    )
    return model.fit(x, y).decision_function(new)


def flights():
    if not TABLES.is_dir():
        pytest.skip("the tables of ../shared are not on this machine")
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(TABLES / "nycflights13_sample.parquet")
    table = table[table.arr_delay.notna()].iloc[:20_000]
    return table[["month", "day", "sched_dep_time", "sched_arr_time", "distance", "hour"]], (
        table.arr_delay > 15
    )


def heart():
    if not TABLES.is_dir():
        pytest.skip("the tables of ../shared are not on this machine")
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(TABLES / "heart_disease.csv")
    return table.drop(columns=["hospital", "num", "flamby_split"]), table.num > 0


def cancer():
    return load_breast_cancer(return_X_y=True)


def digits():
    x, y = load_digits(return_X_y=True)
    return x[:, x.std(0) > 0], y % 2


def made():
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 8))
    x[random.random(x.shape) < 0.1] = np.nan
    filled = np.nan_to_num(x, nan=-1.0)
    return x, filled[:, 0] * filled[:, 1] + filled[:, 2] + random.normal(size=4000) > 0


@pytest.mark.parametrize("table", [flights, heart, cancer, digits, made])
def test_auc_is_that_of_the_others(table):
    """Mean over splits: one split moves by more than 0.003 by chance."""
    x, y = (np.asarray(part) for part in table())
    x, y = x.astype(np.float64), y.astype(np.int64)
    scores = {"ours": [], "lightgbm": [], "scikit-learn": []}
    for seed in range(HEART_SEEDS if table is heart else SEEDS):
        order = np.random.default_rng(seed).permutation(len(x))
        train, test = order[: 2 * len(x) // 3], order[2 * len(x) // 3 :]
        standard = (x - np.nanmean(x, 0)) / np.nanstd(x, 0)
        arguments = (standard[train], y[train], standard[test])
        for name, grow in (
            ("ours", ours),
            ("lightgbm", of_lightgbm),
            ("scikit-learn", of_scikit_learn),
        ):
            scores[name].append(roc_auc_score(y[test], grow(*arguments)))
    means = {name: np.mean(values) for name, values in scores.items()}
    best = max(means["lightgbm"], means["scikit-learn"])
    assert means["ours"] > best - MAX_DIFFERENCE, means


def test_regression_error_is_that_of_lightgbm():
    x, _ = made()
    filled = np.nan_to_num(x, nan=-1.0)
    errors = {"ours": [], "lightgbm": []}
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        noise = random.normal(size=len(x))
        y = filled[:, 0] * filled[:, 1] + np.sin(3 * filled[:, 2]) + 0.3 * noise
        order = random.permutation(len(x))
        train, test = order[:3000], order[3000:]
        mine = ours(x[train], y[train], x[test], RegressionBoosting(0.0, 1.0))
        theirs = of_lightgbm(x[train], y[train], x[test], "regression")
        for name, found in (("ours", mine), ("lightgbm", theirs)):
            errors[name].append(np.sqrt(np.mean((found - y[test]) ** 2)))
    assert np.mean(errors["ours"]) == pytest.approx(np.mean(errors["lightgbm"]), rel=0.02)
