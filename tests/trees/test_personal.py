"""Own trees of clients are never clearly below the common model; what trees share with networks."""

import csv

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("pyarrow")

import equipoise as eq
from equipoise.cli import main
from equipoise.core import TrainingConfig
from equipoise.data.tabular import tables_from_values
from equipoise.data.tabular.io import align_tables
from equipoise.experiment.evaluation import personal_model_batches
from equipoise.tasks.tables import TableLearningConfig, task_from_tables
from equipoise.trees.ensemble import OWN
from equipoise.utils import pytree
from trees.test_fedtrees import run, simulation

OPTIONS = {"trees": 15, "shrinkage": 0.3, "tree_depth": 3, "leaf_rows": 10}
SHARES = {"val_share": 0.25, "test_share": 0.4}
"""Fast shrinkage: an incomplete ensemble would be improved by more trees of any client."""


def federation(kind, difference, seed, sites=4, rows=400):
    """The effect of `b` has another sign at odd sites; `difference` is its size."""
    random = np.random.default_rng(seed)
    tables = {}
    for site in range(sites):
        a, b, c = random.normal(size=(3, rows))
        score = a + difference * (-1) ** site * b + random.normal(size=rows)
        target = np.where(score > 0, "yes", "no") if kind == "binary" else score
        tables[f"site {site}"] = {"a": a, "b": b, "c": c, "y": target}
    more = {"target_type": "regression"} if kind == "regression" else {}
    options = TableLearningConfig(**OPTIONS, **SHARES, **more, target="y")
    aligned = align_tables(tables_from_values(tables), options)
    return task_from_tables("tables", aligned, options, "trees", TrainingConfig(), seed)


def losses_of_clients(task):
    """Losses on test rows by client, under the common model and with own trees; own trees too."""
    simulated = simulation(task)
    run(simulated)
    found = []
    for ids, models in personal_model_batches(simulated):
        for place, client in enumerate(ids):
            model = pytree.index(models, place)
            x, y = task.client_rows(int(client), "test")
            common = task.objective.losses(task.logits(simulated.params, x)[None], y[None])[0]
            own = task.objective.losses(task.logits(model, x)[None], y[None])[0]
            count = int(model[f"{OWN}count"][0])
            found.append((common.double().numpy(), own.double().numpy(), count))
    return found


@pytest.mark.parametrize(
    ("kind", "difference", "seed"),
    [
        ("binary", 0.0, 101),
        ("binary", 0.3, 102),
        ("binary", 1.5, 101),
        ("regression", 0.0, 102),
        ("regression", 0.3, 101),
        ("regression", 1.5, 102),
    ],
)
def test_personal_is_never_below_common_by_more_than_its_interval(kind, difference, seed):
    found = losses_of_clients(federation(kind, difference, seed))
    for common, own, count in found:
        change = own - common
        interval = 1.96 * change.std() / np.sqrt(len(change))
        assert change.mean() <= interval
        if count == 0:
            assert (change == 0).all()
    counts = [count for _, _, count in found]
    gain = np.mean([(common - own).mean() for common, own, _ in found])
    if difference == 0.0:
        assert counts == [0, 0, 0, 0]  # nothing is a client's own: the common model stays
    if difference == 1.5:
        assert sum(count > 0 for count in counts) >= 2
        assert gain > 0.02


# --- what trees share with the networks of tables


def write_clinics(folder, seed=0, rows=150, flip=False):
    """Rare illness; `result` is a leak, because it is known only of the ill."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    for site in ("north", "south", "west"):
        age = random.normal(50, 10, rows)
        risk = (50 - age if flip else age - 50) / 5 - 2.5 + random.logistic(size=rows)
        ill = (risk > 0).astype(int)
        result = np.where(ill == 1, random.uniform(20, 40, rows), 45.0)
        with open(folder / f"{site}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "weight", "result", "ill"])
            weight = random.normal(70, 9, rows)
            writer.writerows(zip(age.round(1), weight.round(1), result.round(1), ill, strict=True))


@pytest.fixture(scope="module")
def clinics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("personal") / "clinics"
    write_clinics(folder)
    return folder


def train(clinics, out, *more):
    words = f"run --data {clinics} --target ill --method fedtrees --trees 15 --shrinkage 0.3"
    words += " --tree-depth 3"
    assert main([*words.split(), "--eval-every", "50", "--out", str(out), *more]) == 0
    return eq.open(out)


def test_a_leak_is_named_before_trees_grow(clinics, tmp_path, capsys):
    train(clinics, tmp_path / "run")
    error = capsys.readouterr().err
    assert "note: column 'result': alone nearly decides" in error


def test_class_weights_and_calibration(clinics, tmp_path):
    """Weights move predictions to the rare class, as the rows' weights say; without, calibrated."""
    options = ("--ignore-columns", "result", "--quiet", "--test-share", "0.3")
    plain = train(clinics, tmp_path / "plain", *options)
    weighted = train(clinics, tmp_path / "weighted", *options, "--class-weights", "balanced")
    write_clinics(tmp_path / "new", seed=1, rows=400)
    rows = {name: [] for name in ("age", "weight", "ill")}
    with open(tmp_path / "new" / "north.csv") as file:
        for row in csv.DictReader(file):
            for name, column in rows.items():
                column.append(float(row[name]))
    shares = [run.predict(rows, probabilities=True)[:, 1] for run in (plain, weighted)]
    truth = np.array(rows["ill"])
    assert abs(shares[0].mean() - truth.mean()) < 0.06
    assert shares[1].mean() > truth.mean() + 0.1
    curves = {one.model: one for one in plain.evaluate(rows).details.calibration}
    assert 0.5 < curves["global"].slope < 2
    assert curves["global"].mean_predicted == pytest.approx(shares[0].mean(), abs=1e-6)
    assert sum(one.rows for one in curves["global"].bins) == len(truth)
    recall = [np.mean(part[truth == 1] > 0.5) for part in shares]
    assert recall[1] > recall[0]


def test_a_newcomer_gets_the_common_model_and_may_add_trees(clinics, tmp_path):
    run = train(clinics, tmp_path / "run", "--ignore-columns", "result", "--quiet")
    for name, flip in (("alike", False), ("opposite", True)):
        write_clinics(tmp_path / name, seed=7, rows=300, flip=flip)
        with open(tmp_path / name / "north.csv") as file:
            table = list(csv.DictReader(file))
        rows = {column: [row[column] for row in table] for column in ("age", "weight", "ill")}
        common = run.predict(rows, probabilities=True)
        served = run.predict(
            {**rows, "site": [name] * len(table)}, client_column="site", probabilities=True
        )
        np.testing.assert_array_equal(served, common)
        newcomer = run.adapt(rows, name, out=tmp_path / f"run-{name}")
        scores = {one.model: one.weighted for one in newcomer.decision.candidates}
        assert scores["personal"].high >= scores["global"].value
        if flip:
            assert scores["personal"].value > scores["global"].value + 0.05
            assert "own trees" in str(newcomer)
