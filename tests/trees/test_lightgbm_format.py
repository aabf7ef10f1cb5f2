"""Model files of LightGBM predict as the ensemble does: LightGBM itself is the oracle."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")

import lightgbm

import equipoise as eq
from equipoise.cli import main
from equipoise.data.federated_dataset import Target
from equipoise.data.transforms import MISSING_INPUT
from equipoise.experiment.model_files import read_model
from equipoise.experiment.predict import Predictor
from equipoise.records.run_dir import RunFolder
from equipoise.trees.config import TreeOptions
from equipoise.trees.ensemble import TREE, TreeEnsemble, empty_params
from equipoise.trees.lightgbm_format import lightgbm_text
from trees.test_fedtrees import call, write_sites

NEW = {
    "age": [20.0, 90.0, None, 50.0, 64.5, None],
    "ward": ["a", "b", "zzz", None, "e", "f"],
    "blood": [5.0, None, 4.0, 6.1, 5.5, 5.0],
}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lightgbm") / "sites"
    write_sites(folder)
    return folder


def raw_inputs(predictor):
    """The inputs of the ensemble, with NaN for missing values and unknown categories."""
    x = predictor.inputs(NEW).double().numpy()
    return np.where(x < MISSING_INPUT / 10, np.nan, x)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_files_predict_as_the_ensemble_does(sites, tmp_path, kind):
    out = tmp_path / "run"
    assert call(sites, out, kind, "--personal-trees", "2") == 0
    for client in (None, 1):
        file = tmp_path / f"{client}.txt"
        eq.open(out).export(file, client=client)
        predictor = Predictor.of(RunFolder(out), client)
        assert bool((read_model(RunFolder(out), client)["categories"] > 0).any())
        found = lightgbm.Booster(model_file=file).predict(raw_inputs(predictor))
        expected = eq.open(out).predict(NEW, client, probabilities=kind != "regression")
        if kind == "binary":
            expected = expected[:, 1]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_survival_and_networks_are_refused(sites, tmp_path, capsys):
    out = tmp_path / "run"
    assert call(sites, out, "survival") == 0
    assert main(["export", str(out), "--format", "lightgbm"]) == 2
    assert "LightGBM has no model of survival: export it as onnx" in capsys.readouterr().err
    assert not list((out / "models").glob("*.txt"))
    words = f"run --data {sites} --target ill --ignore-columns cost,stage,days,died --rounds 1"
    assert main([*words.split(), "--quiet", "--out", str(tmp_path / "mlp")]) == 0
    assert main(["export", str(tmp_path / "mlp"), "--format", "lightgbm"]) == 2
    assert "LightGBM's format is for trees, and the model is mlp" in capsys.readouterr().err


def one_category_split(missing_left):
    """Categories 1 and 33 of 40 go left to the value 1, others right to the value -1."""
    params = empty_params(np.array([40]), 1, TreeOptions(trees=1, tree_leaves=2), 1)
    params["feature"][0, 0, 0] = 0
    params["left"][0, 0, 0] = 1
    params["missing_left"][0, 0, 0] = missing_left
    params["categories"][0, 0, 0] = torch.tensor([2.0, 2.0])
    params["value"][0, 0, 1:3] = torch.tensor([1.0, -1.0])
    params["base"][0] = 0.25
    params["progress"][TREE] = 1
    return params


@pytest.mark.parametrize("missing_left", [0.0, 1.0])
def test_missing_and_unknown_categories_have_their_side(tmp_path, missing_left):
    params = one_category_split(missing_left)
    target = Target("classification", "sick", ("no", "yes"))
    file = tmp_path / "model.txt"
    file.write_text(lightgbm_text(params, target, ("where is it",)))
    codes = np.array([[1.0], [33.0], [0.0], [32.0], [39.0], [np.nan]])
    booster = lightgbm.Booster(model_file=file)
    other = 1.25 if missing_left else -0.75
    expected = [1.25, 1.25, -0.75, -0.75, -0.75, other]
    assert booster.predict(codes, raw_score=True).tolist() == expected
    assert booster.feature_name() == ["where_is_it"]
    module = TreeEnsemble(2, params)
    x = torch.from_numpy(np.nan_to_num(codes, nan=MISSING_INPUT)).float()
    assert module(x)[:, 1].tolist() == expected


def test_a_model_without_trees_is_its_base(tmp_path):
    params = empty_params(np.array([0]), 1, TreeOptions(trees=1), 1)
    params["base"][0] = 0.5
    target = Target("regression", "cost", mean=100.0, scale=10.0)
    file = tmp_path / "model.txt"
    file.write_text(lightgbm_text(params, target, ("age",)))
    assert lightgbm.Booster(model_file=file).predict(np.zeros((2, 1))).tolist() == [105.0, 105.0]
