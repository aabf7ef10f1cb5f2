"""What a remote client compares: its own model, training alone, the global model and a constant."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from equipoise.experiment import runner
from equipoise.experiment.build import build_task
from equipoise.experiment.evaluation import (
    LocalBaselineConfig,
    compare_models,
    comparison_columns,
    train_alone,
)
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig

GIVEN = {"task": "synthetic", "clients": 3, "rounds": 4, "epochs": 2, "model": "linear"}


@pytest.mark.parametrize("options", [{}, {"momentum": "linear(0, 0.5)"}])
def test_a_client_that_trains_alone_gets_the_model_of_method_local(
    options: dict[str, object], tmp_path: Path
) -> None:
    settings = ExperimentConfig.from_options(
        {**GIVEN, **options, "method": "local", "executor": "loop"}
    )
    runner.run(settings, tmp_path / "run")
    personal = RunFolder(tmp_path / "run").model("personal").read_tensors()
    task = build_task(settings)
    for client in range(3):
        model = train_alone(task, client, settings.training, LocalBaselineConfig(0, 4, 4))
        for name, value in model.items():
            assert torch.equal(value, personal[name][client])


def test_fewer_rounds_are_the_first_rounds_of_the_plan() -> None:
    settings = ExperimentConfig.from_options(GIVEN)
    task = build_task(settings)
    short = train_alone(task, 0, settings.training, LocalBaselineConfig(0, 1, 4))
    long = train_alone(task, 0, settings.training, LocalBaselineConfig(0, 4, 4))
    assert any(not torch.equal(short[name], long[name]) for name in short)


def test_equal_models_gain_nothing_and_a_perfect_one_gains_all_that_a_wrong_one_lacks() -> None:
    torch.manual_seed(0)
    settings = ExperimentConfig.from_options(GIVEN)
    task = build_task(settings).with_primary_metric("acc")
    model = train_alone(task, 0, settings.training, LocalBaselineConfig(0, 4, 4))
    same = compare_models(task, 0, {"personal": model, "local": model})
    assert list(same) == comparison_columns("acc", ["personal", "local"])
    assert same["gain_over_own"] == same["gain_over_own_low"] == same["gain_over_own_high"] == 0
    x, y = task.client_rows(0, "test")
    assert same["test_rows"] == len(x)
    right = float((task.logits(model, x).argmax(1) == y).double().mean())
    assert same["local_acc"] == pytest.approx(right)
    # The class of no row at all: every prediction is wrong, and the same for all rows.
    absent = next(k for k in range(30) if k not in y.tolist())
    wrong = {name: torch.zeros_like(value) for name, value in model.items()}
    wrong[next(name for name in wrong if name.endswith("bias"))][absent] = 1.0
    better = compare_models(task, 0, {"personal": model, "local": wrong, "global": wrong})
    assert better["gain_over_own"] == pytest.approx(right)
    assert better["global_acc"] == 0
    constant = compare_models(task, 0, {"personal": wrong, "local": model})
    assert constant["gain_over_own"] == pytest.approx(-right)
    assert constant["one_class"] == 1
    varied = {name: torch.randn(value.shape) * 10 for name, value in model.items()}
    assert len(task.logits(varied, x).argmax(1).unique()) > 1
    assert compare_models(task, 0, {"personal": varied, "local": model})["one_class"] == 0


def test_a_smaller_error_is_a_gain() -> None:
    settings = ExperimentConfig.from_options({**GIVEN, "metric": "loss"})
    task = build_task(settings)
    short = train_alone(task, 0, settings.training, LocalBaselineConfig(0, 1, 4))
    long = train_alone(task, 0, settings.training, LocalBaselineConfig(0, 4, 4))
    found = compare_models(task, 0, {"personal": long, "local": short})
    loss = float(task.evaluate(torch.tensor(0), long, "test")["loss"])
    assert found["gain_over_own"] == pytest.approx(found["local_loss"] - loss, rel=1e-5)
    assert math.isfinite(found["gain_over_own_low"])
