"""The model of tables is chosen by validation, and told."""

import json
import math

import pytest

pytest.importorskip("numba")
pytest.importorskip("pyarrow")

from equipoise.cli import main
from equipoise.experiment.model_choice import choose_model, with_model
from equipoise.settings.experiment_config import ExperimentConfig
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


def test_the_best_score_is_chosen_and_told():
    scores = {"linear": 0.7, "mlp": 0.7, "trees": 0.6}
    notes = []
    chosen = choose_model(settings(), notes.append, run_trial=lambda t: scores[t.run.model])
    assert chosen.run.model == "linear"  # the simplest of equals
    scores["trees"] = 0.8
    chosen = choose_model(settings(), notes.append, run_trial=lambda t: scores[t.run.model])
    assert (chosen.run.model, chosen.run.method) == ("trees", "fedtrees")
    assert "trees by fedtrees" in notes[1]
    assert "mlp 0.7" in notes[1]
    with pytest.raises(UsageError, match="val_share"):
        choose_model(settings(), None, run_trial=lambda t: -math.inf)


def test_a_run_with_the_chosen_model(tmp_path, capsys):
    write_sites(tmp_path / "sites")
    options = {"task": "tables", "data": tmp_path / "sites", "model": "auto", "rounds": 3}
    options |= {**SMALL, **KINDS["regression"], "out": tmp_path / "run"}
    words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    assert main(["run", *words]) == 0
    shown = capsys.readouterr()
    assert "is chosen by validation (linear" in shown.out + shown.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"] in ("linear", "mlp", "trees")
    assert main(["compare", *words[:-2], "--methods", "fedavg", "--out", str(tmp_path / "c")]) == 2
