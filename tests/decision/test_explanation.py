"""Which inputs matter: against scikit-learn on pooled rows, by hand, from all doors."""

import csv
import json

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow")
pytest.importorskip("numba")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.inspection import partial_dependence, permutation_importance

import equipoise as eq
from equipoise.cli import main
from equipoise.data.federated_dataset import Target
from equipoise.data.tabular.io import table_from_values
from equipoise.data.tabular.preprocessing import Category, Number
from equipoise.experiment.explanation import (
    ExplanationOptions,
    SiteSample,
    category_grid,
    explain_rows,
    number_grid,
    prediction_sums,
    response,
    score_drops,
)
from equipoise.experiment.site_models import load_models
from equipoise.experiment.site_rows import RowSelection
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError

SITES = {"north": 120, "south": 70, "west": 45, "tiny": 6}
COLUMNS = ("age", "ward", "noise")


def rows_of(seed: int, sites: dict[str, int] = SITES) -> dict[str, list[object]]:
    """Illness follows from age and ward; both have missing cells, and noise says nothing."""
    random = np.random.default_rng(seed)
    table: dict[str, list[object]] = {name: [] for name in ("clinic", *COLUMNS, "ill")}
    for site, count in sites.items():
        for _ in range(count):
            age = float(random.integers(20, 80))
            ward = str(random.choice(list("abcd")))
            risk = (age - 50) / 12 + 2 * (ward in "bd") - 1 + random.normal() / 2
            table["clinic"].append(site)
            table["age"].append(None if random.random() < 0.1 else age)
            table["ward"].append(None if random.random() < 0.1 else ward)
            table["noise"].append(round(float(random.normal()), 3))
            table["ill"].append(int(risk > 0))
    return table


def write(path, table):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    write(folder / "train.csv", rows_of(0))
    write(folder / "held.csv", rows_of(1))
    common = f"run --data {folder / 'train.csv'} --client-column clinic --target ill --quiet"
    common += " --small-clients keep --seed 3"
    trees = "--method fedtrees --trees 8 --tree-depth 3 --leaf-rows 5"
    assert main([*f"{common} {trees}".split(), "--out", str(folder / "trees")]) == 0
    network = "--rounds 4 --epochs 2 --lr 0.2"
    for model in ("linear", "mlp"):
        words = f"{common} --model {model} {network}"
        assert main([*words.split(), "--out", str(folder / model)]) == 0
    return folder


class Pooled(ClassifierMixin, BaseEstimator):
    """A model of a run as scikit-learn sees it: inputs in, probabilities out."""

    def __init__(self, models=None, kind="global"):
        self.models = models
        self.kind = kind
        self.classes_ = np.array([0, 1])

    def fit(self, x, y):
        return self

    def outputs(self, x):
        inputs = [torch.from_numpy(x.astype(np.float32))]
        return self.models.outputs_of_inputs(self.kind, None, inputs)

    def predict_proba(self, x):
        return self.outputs(x).double().softmax(-1).numpy()

    def predict(self, x):
        return self.outputs(x).argmax(1).numpy()

    def __sklearn_is_fitted__(self):
        return True


def one_site(models, table):
    """All rows as those of one site, which uses the global model."""
    held = table_from_values({name: table[name] for name in COLUMNS})
    x = models.members[0].inputs(held, None).double().numpy()
    return SiteSample("all", None, "global", (x,), torch.tensor(table["ill"]))


def permutations_of_scikit_learn(seed, num_rows, repeats):
    """The orders that scikit-learn draws: it shuffles what is shuffled already."""
    drawn = np.random.RandomState(seed).randint(np.iinfo(np.int32).max + 1)
    random = np.random.RandomState(drawn)
    index = np.arange(num_rows)
    order = np.arange(num_rows)
    orders = []
    for _ in range(repeats):
        random.shuffle(index)
        order = order[index]
        orders.append(order.copy())
    return np.array(orders)


@pytest.mark.parametrize(("metric", "scoring"), [("acc", "accuracy"), ("auc", "roc_auc")])
def test_importances_are_those_of_scikit_learn_on_the_same_permutations(folder, metric, scoring):
    models = load_models(folder / "trees")
    sample = one_site(models, rows_of(1))
    orders = permutations_of_scikit_learn(7, len(sample.y), 4)
    objective = objective_of(models.target)
    _, drops = score_drops(models, sample, COLUMNS, objective, metric, orders)
    pooled = Pooled(models)
    found = permutation_importance(
        pooled, sample.x[0], sample.y.numpy(), scoring=scoring, n_repeats=4, random_state=7
    )
    # scikit-learn permutes inputs, and trees have one input for each column.
    np.testing.assert_allclose(drops, found.importances, atol=1e-9)
    assert drops[0].mean() > 0.05


@pytest.mark.parametrize("model", ["trees", "linear", "mlp"])
def test_partial_dependence_is_that_of_scikit_learn_on_pooled_rows(folder, model):
    """Sums of sites are the mean over all rows, if all use the global model."""
    models = load_models(folder / model)
    table = rows_of(1)
    pooled = one_site(models, table)
    clinic = np.array(table["clinic"])
    parts = [pooled.take(np.flatnonzero(clinic == name)) for name in SITES]
    preprocessor = models.members[0].predictor.preprocessor
    encoder = preprocessor.encoders[0]
    grid = np.array([25.0, 40.0, 61.0])
    sums = sum(prediction_sums(models, part, "age", grid) for part in parts)
    x = pooled.x[0]
    place = int(preprocessor.feature_places("age")[0])
    values = (grid - encoder.mean) / encoder.scale
    if encoder.marks_missing and model != "trees":
        x = x.copy()
        x[:, preprocessor.feature_places("age")[1]] = 0.0
    found = partial_dependence(
        Pooled(models), x, [place], custom_values={place: values}, kind="average"
    )
    np.testing.assert_allclose(sums[0] / len(x), found["average"][0], atol=1e-9)
    assert sums[0][0] < sums[0][2]


def test_overall_figures_are_weighted_sums_of_the_sites(folder):
    models = load_models(folder / "linear")
    options = ExplanationOptions(metric="acc", min_count=1, features=("ward",))
    found = explain_rows(models, RowSelection(rows_of(1), client_column="clinic"), options)
    rows = {site.site: site.rows for site in found.sites}
    assert rows == SITES
    for one in found.importances:
        own = {
            site.site: next(i for i in site.importances if i.column == one.column)
            for site in found.sites
        }
        mean = sum(rows[name] * own[name].importances_mean for name in rows) / sum(rows.values())
        assert one.importances_mean == pytest.approx(mean, abs=1e-12)
    (ward,) = found.partial_dependence
    assert ward.grid_values == ["a", "b", "c", "d"]
    mean = sum(rows[name] * np.array(ward.sites[name]) for name in rows) / sum(rows.values())
    np.testing.assert_allclose(ward.average, mean, atol=1e-12)
    assert found.importances[-1].column == "noise"
    assert ward.average[0][1] > ward.average[0][0]


def test_small_sites_are_hidden_with_the_next_smallest(folder):
    models = load_models(folder / "trees")
    found = explain_rows(models, RowSelection(rows_of(1)), ExplanationOptions(n_repeats=2))
    hidden = [site.site for site in found.sites if site.rows is None]
    assert sorted(hidden) == ["tiny", "west"]
    assert found.rows == sum(SITES.values())
    for one in found.partial_dependence:
        assert sorted(one.sites) == ["north", "south"]
    assert not any(site.importances for site in found.sites if site.site in hidden)
    assert "2 of 4 sites are not shown" in found.notes[-1]


def test_rows_are_bounded_and_the_seed_repeats_them(folder):
    models = load_models(folder / "trees")
    options = ExplanationOptions(max_samples=30, n_repeats=2)
    found = explain_rows(models, RowSelection(rows_of(1)), options)
    assert found.rows == 30 * 3 + 6
    assert "3 of 4 sites have more rows" in found.notes[0]
    assert explain_rows(models, RowSelection(rows_of(1)), options) == found
    other_seed = ExplanationOptions(max_samples=30, n_repeats=2, seed=1)
    other = explain_rows(models, RowSelection(rows_of(1)), other_seed)
    assert other.importances != found.importances


def test_a_column_without_a_frequent_value_has_no_partial_dependence(folder):
    models = load_models(folder / "trees")
    options = ExplanationOptions(n_repeats=1, min_count=200, features=("ward", "age"))
    found = explain_rows(models, RowSelection(rows_of(1)), options)
    assert [one.column for one in found.partial_dependence] == ["age"]
    assert "Partial dependence of 'ward' is not shown: no value of it has 200 rows." in found.notes


# --- grids


def test_grids_come_from_counts():
    few = [np.array([0.0, 0.0, 1.0]), np.array([1.0, np.nan, 2.0])]
    np.testing.assert_allclose(number_grid(few, 20, 1), [0, 1, 2])
    np.testing.assert_allclose(number_grid(few, 20, 2), [0, 1])
    many = np.random.default_rng(0).normal(size=4000)
    grid = number_grid([many[:100], many[100:]], 11, 10)
    assert len(grid) == 11
    np.testing.assert_allclose(np.diff(grid), np.diff(grid)[0])
    np.testing.assert_allclose(grid[[0, -1]], np.quantile(many, [0.05, 0.95]), atol=0.02)
    np.testing.assert_array_equal(number_grid([many[:100], many[100:]], 11, 10), grid)
    assert not len(number_grid([np.array([np.nan])], 5, 1))
    codes = [np.array([0.0, 2.0, 2.0]), np.array([2.0, 1.0, np.nan])]
    assert category_grid(codes, 4, 1).tolist() == [0, 1, 2]
    assert category_grid(codes, 4, 2).tolist() == [2]


def test_values_are_decoded_as_they_were_encoded(folder):
    rows = {"age": [33.0, None, 71.0], "ward": ["d", "a", None], "noise": [0.1, 0.2, 0.3]}
    for model in ("trees", "mlp"):
        preprocessor = load_models(folder / model).members[0].predictor.preprocessor
        x = preprocessor.transform(rows).astype(np.float64)
        age = preprocessor.decode_values("age", x)
        np.testing.assert_allclose(age, [33, np.nan, 71], rtol=1e-6)
        ward = preprocessor.decode_values("ward", x)
        values = preprocessor.encoders[1].values
        assert [values[int(code)] for code in ward[:2]] == ["d", "a"]
        assert np.isnan(ward[2])
        places = [preprocessor.feature_places(name) for name in rows]
        assert sorted(np.concatenate(places)) == list(range(x.shape[1]))
        for name, code in (("age", 71.0), ("ward", float(values.index("d")))):
            row = 2 if name == "age" else 0
            encoded = preprocessor.encode_values(name, np.array([code]))
            np.testing.assert_allclose(
                encoded[0], x[row, preprocessor.feature_places(name)], rtol=1e-6
            )


def test_two_values_have_one_feature():
    encoder = Category("sex", ("f", "m"), "f", False, False)
    features = encoder.encode_values(np.array([0.0, 1.0]))
    assert features.tolist() == [[0.0], [1.0]]
    assert encoder.decode(features).tolist() == [0.0, 1.0]
    number = Number("age", 50, 50, 10, False)
    assert number.decode(number.encode_values(np.array([35.0]))).tolist() == [35.0]


def test_responses_by_hand():
    classes = Target("classification", "ill", ("no", "yes"))
    outputs = torch.tensor([[0.0, np.log(3.0)]])
    np.testing.assert_allclose(response(classes, outputs), [[0.75]], rtol=1e-6)
    three = Target("classification", "ill", ("a", "b", "c"))
    np.testing.assert_allclose(response(three, torch.zeros(1, 3)), [[1 / 3] * 3])
    number = Target("regression", "cost", mean=100.0, scale=10.0)
    np.testing.assert_allclose(response(number, torch.tensor([[2.0]])), [[120.0]])


# --- the doors


def test_the_command_explains_test_rows_and_adds_them_to_the_report(folder, capsys):
    run = folder / "trees"
    assert "Which inputs matter" not in (run / "report.html").read_text()
    assert main(["explain", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "drop of" in shown
    assert shown.index("age") < shown.index("noise")
    assert "Which inputs matter" in (run / "report.html").read_text()
    assert main(["explain", str(run), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["report"] == str(run / "report.html")
    assert first["explanation"]["importances"][0]["column"] in ("age", "ward")
    again = eq.open(run).explain()
    assert [one.column for one in again.importances][-1] == "noise"


def test_the_command_explains_new_rows_and_writes_a_page(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["explain", str(folder / "mlp"), str(folder / "held.csv"), "--features", "noise"]
    assert main([*words, "--report", str(page), "--client-column", "clinic"]) == 0
    assert "matters most" in page.read_text()
    assert f"report: {page}" in capsys.readouterr().out
    assert main([*words, "--report", str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    frame = eq.open(folder / "mlp").explain(rows_of(1), features=["noise"], metric="acc")
    assert frame.metric == "acc"
    assert str(frame).count("\n") >= 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "agee"], "the model has no input 'agee' (did you mean 'age'?)"),
        (["--n-repeats", "0"], "--n-repeats is 0: must be at least 1"),
        (["--min-count", "0"], "--min-count is 0"),
        (["--client", "north"], "give ROWS"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, words, message):
    assert main(["explain", str(folder / "trees"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_rows_without_a_target_or_column_are_refused(folder, tmp_path):
    models = load_models(folder / "trees")
    table = rows_of(1)
    with pytest.raises(UsageError, match="no target 'ill'"):
        explain_rows(models, RowSelection({k: v for k, v in table.items() if k != "ill"}))
    with pytest.raises(UsageError, match="lack columns that the model needs: 'ward'"):
        explain_rows(models, RowSelection({k: v for k, v in table.items() if k != "ward"}))
    one_class = {name: values[:3] for name, values in table.items()} | {"ill": [1, 1, 1]}
    with pytest.raises(UsageError, match="no site has a value of auc"):
        explain_rows(models, RowSelection(one_class), ExplanationOptions(metric="auc"))
