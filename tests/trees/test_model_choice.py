"""The model of tables is chosen by validation, and told."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
pytest.importorskip("pyarrow")

from equipoise.cli import main
from equipoise.data.federated_dataset import Target
from equipoise.experiment.model_choice import choose_model, with_model
from equipoise.experiment.row_outputs import RowOutputs, row_losses, simplest_within_error
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.training.objectives import objective_of
from equipoise.utils.errors import UsageError
from trees.test_fedtrees import KINDS, SMALL, write_sites


def settings(**more):
    given = {"task": "tables", "model": "auto", "data": "x", "rounds": 3, **SMALL, **more}
    return ExperimentConfig.from_options(given)


def test_every_candidate_has_its_method_and_rounds():
    asked = settings(method="fedprox", **{"method.mu": 0.3})
    mlp = with_model(asked, "mlp")
    assert (mlp.run.model, mlp.run.method, mlp.run.rounds) == ("mlp", "fedprox", 3)
    assert mlp.method == asked.method
    trees = with_model(asked, "trees")
    assert (trees.run.method, trees.run.rounds) == ("fedtrees", 2 + 4 * 3 + 1)
    grown = settings(method="fedtrees", personal_trees="3")
    assert with_model(grown, "trees").method == grown.method
    linear = with_model(grown, "linear")
    assert (linear.run.method, linear.run.rounds) == ("autopilot", 3)


def test_trees_stop_by_their_own_patience():
    """Scores change only with a complete tree: ten evaluations are one tree and two levels."""
    asked = settings(method="autopilot")
    assert with_model(asked, "mlp").run.patience == 10
    assert with_model(asked, "trees").run.patience == 0
    assert settings(model="trees", method="fedtrees").run.patience == 0
    assert settings(model="trees", method="fedtrees", patience=5).run.patience == 5
    assert with_model(settings(patience=5), "trees").run.patience == 5


def test_the_simplest_within_one_standard_error():
    """Differences 0.1 of two signs have the standard error 0.1 / sqrt(4) = 0.05."""
    linear = np.array([1.0, 1.0, 1.0, 1.0])
    noisy = linear - np.array([0.1, -0.1, 0.1, -0.1])
    assert simplest_within_error({"linear": linear, "mlp": noisy - 0.0499}) == "linear"
    assert simplest_within_error({"linear": linear, "mlp": noisy - 0.0501}) == "mlp"
    assert simplest_within_error({"linear": linear, "mlp": linear, "trees": linear}) == "linear"
    assert simplest_within_error({"linear": linear, "mlp": linear - 1e-6}) == "mlp"
    three = {"linear": linear, "mlp": noisy - 0.2, "trees": linear - 0.21}
    assert simplest_within_error(three) == "mlp"  # clearly better than linear, level with trees


def test_the_choice_is_told():
    losses = {"linear": np.array([0.7, 0.7]), "mlp": np.array([0.7, 0.7]), "trees": np.ones(2)}
    notes = []
    chosen = choose_model(settings(), notes.append, run_trial=lambda t: losses[t.run.model])
    assert chosen.run.model == "linear"  # the simplest of equals
    losses["trees"] = np.array([0.5, 0.5])
    chosen = choose_model(settings(), notes.append, run_trial=lambda t: losses[t.run.model])
    assert (chosen.run.model, chosen.run.method) == ("trees", "fedtrees")
    assert "trees by fedtrees" in notes[1]
    assert "mlp 0.7" in notes[1]
    assert "on 2 validation rows" in notes[1]


def test_candidates_that_diverge_are_left_out():
    losses = {"linear": np.array([np.nan, 0.1]), "mlp": np.ones(2), "trees": np.full(2, np.inf)}
    chosen = choose_model(settings(), None, run_trial=lambda t: losses[t.run.model])
    assert chosen.run.model == "mlp"
    losses["mlp"] = np.array([np.nan, 1.0])
    with pytest.raises(UsageError, match="every candidate diverged"):
        choose_model(settings(), None, run_trial=lambda t: losses[t.run.model])
    with pytest.raises(UsageError, match="val_share"):
        choose_model(settings(), None, run_trial=lambda t: np.zeros(0))


def test_losses_of_rows_are_those_of_their_sites():
    """Cox's risk sets hold the rows of one site: its last event has the loss 0."""
    y = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0], [9.0, 1.0]])
    outputs = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    rows = RowOutputs(("a", "b"), np.array([0, 0, 0, 1]), np.arange(4), y, {"personal": outputs})
    found = row_losses(rows, objective_of(Target("survival", "t", event="e")), "personal")
    np.testing.assert_allclose(found, [math.log(3), math.log(2), 0, 0], atol=1e-12)
    classes = objective_of(
        Target("classification", "ill", ("no", "yes")), class_weights=torch.tensor([1.0, 3.0])
    )
    labels = torch.tensor([0, 1, 1, 0])
    logits = {"personal": torch.zeros(4, 2)}
    rows = RowOutputs(("a", "b"), np.array([0, 0, 0, 1]), np.arange(4), labels, logits)
    found = row_losses(rows, classes, "personal")
    np.testing.assert_allclose(found, np.log(2) * np.array([1, 3, 3, 1]), rtol=1e-6)


def test_a_run_with_the_chosen_model(tmp_path, capsys):
    write_sites(tmp_path / "sites")
    options = {"task": "tables", "data": tmp_path / "sites", "model": "auto", "rounds": 3}
    options |= {**SMALL, **KINDS["regression"], "out": tmp_path / "run"}
    words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    assert main(["run", *words]) == 0
    shown = capsys.readouterr()
    assert "of the lowest loss on" in shown.out + shown.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"] in ("linear", "mlp", "trees")
    assert main(["compare", *words[:-2], "--methods", "fedavg", "--out", str(tmp_path / "c")]) == 2
