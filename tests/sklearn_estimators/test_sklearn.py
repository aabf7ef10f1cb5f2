"""Estimators: scikit-learn's own checks, clients, frames, pickling, model selection."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the extra sklearn is not installed")
pytest.importorskip("pyarrow", reason="the extra data is not installed")
pytest.importorskip("pandas", reason="the extra sklearn is not installed")

import pandas
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import equipoise as eq
from equipoise.sklearn import FederatedClassifier, FederatedRegressor, FederatedSurvival

SMALL = {"rounds": 3, "random_state": 0}
FAST = {"method": "fedavg", "rounds": 20, "random_state": 0, "options": {"lr": 0.1, "epochs": 5}}
EXPECTED_FAILURES: dict[str, str] = {}
"""Checks that fail, with the reason."""


@parametrize_with_checks(
    [FederatedClassifier(**FAST), FederatedRegressor(**FAST)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def clinics():
    """Rows of three clinics whose labels follow opposite rules at one of them."""
    x, y = make_classification(240, 5, n_informative=3, random_state=0)
    clinic = np.array(["north", "south", "west"])[np.arange(240) % 3]
    y = np.where(clinic == "west", 1 - y, y)
    return x, np.array(["healthy", "ill"])[y], clinic


@pytest.fixture(scope="module")
def fitted(clinics):
    x, y, clinic = clinics
    return FederatedClassifier(**{**FAST, "method": eq.methods.Ditto(lam=0.01)}).fit(
        x, y, clients=clinic
    )


def test_personal_models_serve_their_clients(fitted, clinics):
    x, y, clinic = clinics
    assert list(fitted.clients_) == ["north", "south", "west"]
    assert fitted.classes_.tolist() == ["healthy", "ill"]
    assert fitted.score(x, y, clinic) > fitted.score(x, y) + 0.1
    west = clinic == "west"
    alone = fitted.personal_["west"].predict(x[west])
    assert (alone == fitted.predict(x, clinic)[west]).all()
    assert (fitted.global_.predict(x) == fitted.predict(x)).all()
    assert np.allclose(fitted.predict_proba(x, clinic).sum(1), 1)
    assert fitted.run_.is_finished


def test_an_unknown_client_gets_the_global_model_and_a_warning(fitted, clinics):
    x, _, _ = clinics
    with pytest.warns(UserWarning, match="client 'wst' was not in the training rows"):
        predicted = fitted.predict(x[:4], ["wst"] * 4)
    assert (predicted == fitted.global_.predict(x[:4])).all()


def test_labels_come_back_in_their_own_type(clinics):
    x, y, clinic = clinics
    for labels in ((y == "ill").astype(int), y == "ill", (y == "ill") * 1.0):
        model = FederatedClassifier("fedavg", **SMALL).fit(x, labels, clients=clinic)
        assert model.predict(x).dtype == labels.dtype
        assert set(model.predict(x)) <= set(labels)


def frame(count=120):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, count)
    return pandas.DataFrame(
        {
            "age": np.where(rng.random(count) < 0.1, np.nan, age),
            "sex": rng.choice(["f", "m"], count),
            "seen": pandas.date_range("2024-01-01", periods=count, freq="D").astype(str),
            "hospital": rng.choice(["a", "b", "c"], count),
            "ill": age > 55,
        },
        index=np.arange(1000, 1000 + count),
    )


def test_raw_frames_go_in_and_keep_their_index():
    rows = frame()
    x = rows[["age", "sex", "seen"]]
    model = FederatedClassifier(**FAST)
    model.fit(x, rows["ill"], clients=rows["hospital"])
    assert list(model.feature_names_in_) == ["age", "sex", "seen"]
    assert model.score(x, rows["ill"], rows["hospital"]) > 0.8
    model.set_output(transform="pandas")
    predicted = model.predict(x, rows["hospital"])
    assert predicted.index.equals(rows.index)
    assert list(model.predict_proba(x).columns) == [False, True]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename(columns={"age": "years"}))


def test_predictions_come_in_the_container_that_was_asked_for():
    polars = pytest.importorskip("polars")
    rows = frame()
    x = rows[["age", "sex"]]
    model = FederatedClassifier("fedavg", **SMALL).fit(x, rows["ill"], clients=rows["hospital"])
    expected = model.predict(x).tolist()
    other = polars.from_pandas(x)
    model.set_output(transform="input")
    assert model.predict(x).index.equals(rows.index)
    assert isinstance(model.predict(other), polars.Series)
    assert model.predict(other).to_list() == expected
    assert model.predict_proba(other.to_arrow()).column_names == ["False", "True"]
    model.set_output(transform="polars")
    assert model.predict(x).to_list() == expected
    model.set_output(transform="default")
    assert isinstance(model.predict(other), np.ndarray)
    with pytest.raises(ValueError, match="must be one of default, input, pandas"):
        model.set_output(transform="panda")


def test_frames_of_other_kinds_are_the_same_rows():
    polars = pytest.importorskip("polars")
    rows = frame()
    x = rows[["age", "sex"]]
    one = FederatedClassifier("fedavg", **SMALL).fit(x, rows["ill"], clients=rows["hospital"])
    other = polars.from_pandas(x.reset_index(drop=True))
    two = FederatedClassifier("fedavg", **SMALL)
    two.fit(other, rows["ill"].to_numpy(), clients=rows["hospital"].to_numpy())
    assert np.array_equal(one.predict_proba(x), two.predict_proba(other))


def test_pickled_models_predict_alike_without_their_folder(fitted, clinics):
    x, _, clinic = clinics
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(x, clinic), fitted.predict_proba(x, clinic))
    with pytest.raises(ValueError, match="fit it again"):
        again.leaderboard()


def test_the_same_seed_is_the_same_model(clinics):
    x, y, clinic = clinics
    models = [FederatedClassifier("fedavg", **SMALL).fit(x, y, clinic) for _ in range(2)]
    assert np.array_equal(models[0].predict_proba(x), models[1].predict_proba(x))
    assert clone(models[0]).get_params() == models[0].get_params()


def test_regression_and_survival():
    x, y = make_regression(150, 4, noise=1.0, random_state=0)
    clients = np.arange(150) % 3
    model = FederatedRegressor(**FAST).fit(x, y + 100 * clients, clients)
    assert model.score(x, y + 100 * clients, clients) > 0.7
    time = np.exp(-x[:, 0]) * 100 + 1
    event = np.arange(150) % 4 > 0
    target = np.array(list(zip(event, time, strict=True)), [("event", bool), ("time", float)])
    survival = FederatedSurvival(**FAST).fit(x, target, clients)
    assert survival.score(x, target, clients) > 0.8
    with pytest.raises(ValueError, match="event and time"):
        FederatedSurvival().fit(x, time)


def test_model_selection_of_scikit_learn(clinics):
    x, y, clinic = clinics
    model = FederatedClassifier("fedavg", **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        scores = cross_val_score(
            model, x, y, groups=clinic, cv=GroupKFold(3), params={"clients": clinic}
        )
    assert len(scores) == 3
    search = GridSearchCV(model, {"rounds": [1, 2]}, cv=2).fit(x, y)
    assert search.best_params_["rounds"] in (1, 2)
    pipeline = make_pipeline(FunctionTransformer(np.abs), FederatedClassifier("fedavg", **SMALL))
    pipeline.fit(x, y, federatedclassifier__clients=clinic)
    assert pipeline.predict(x).shape == y.shape


def test_a_leaderboard_has_intervals(clinics):
    x, y, clinic = clinics
    model = FederatedClassifier("fedavg", **SMALL).fit(x, y, clinic)
    board = model.leaderboard(["local"], seeds=2)
    assert list(board.index)[:2] == ["fedavg", "local"]
    assert np.isfinite(board.loc["local", "personal - fedavg, low"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "fedavgg"}, "did you mean 'fedavg'"),
        ({"options": {"learning_rate": 1}}, "did you mean 'lr'"),
        ({"rounds": 0}, "rounds is 0"),
    ],
)
def test_wrong_parameters_are_told_when_fitting(clinics, change, message):
    x, y, clinic = clinics
    with pytest.raises(ValueError, match=message):
        FederatedClassifier(**{**SMALL, "method": "fedavg", **change}).fit(x, y, clinic)


def test_wrong_clients_are_told(clinics):
    x, y, clinic = clinics
    with pytest.raises(ValueError, match="one name for each of the 240 rows"):
        FederatedClassifier(**SMALL).fit(x, y, clinic[:10])


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sklearn.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})


SIX_LINES = """
import pandas as pd
from equipoise.sklearn import FederatedClassifier
df = pd.read_csv("heart.csv")
X, y, hospital = df.drop(columns=["num", "hospital"]), df["num"] > 0, df["hospital"]
model = FederatedClassifier(rounds=5).fit(X, y, clients=hospital)
df["ill"] = model.predict(X, clients=hospital)
"""
FIVE_LINES = """
import pandas as pd, equipoise as eq
df = pd.read_csv("heart.csv")
task = eq.Task.from_tables(df, target="num > 0", client_column="hospital")
run = eq.run(method="autopilot", task=task, rounds=5)
df["ill"] = run.predict(df, client_column="hospital")
"""


@pytest.mark.parametrize("text", [SIX_LINES, FIVE_LINES])
def test_from_a_frame_to_predictions_of_each_hospital_in_six_lines(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = frame()
    rows.assign(num=rows["ill"].astype(int)).drop(columns="ill").to_csv("heart.csv", index=False)
    assert len(text.strip().splitlines()) <= 6
    names: dict[str, object] = {}
    exec(text, names)
    found = names["df"]
    truth = found["num"] > 0 if text is SIX_LINES else np.where(found["num"], "num > 0", "num <= 0")
    assert (found["ill"] == truth).mean() > 0.7
