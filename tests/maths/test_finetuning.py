"""Fine-tuning for everybody: one pooled choice, made on validation data, reported on test data."""

import pytest
import torch

from equipoise.cli import main
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.experiment import evaluation
from equipoise.experiment.evaluation import (
    FINETUNE_EPOCHS,
    FINETUNE_LR_FACTORS,
    _best_setting,
    _first_best,
    score_finetuned,
)
from equipoise.methods.ditto import Ditto
from equipoise.methods.fedavg import FedAvg
from helpers import simulate, small_task


@pytest.mark.parametrize("method", [FedAvg(), Ditto()], ids=lambda m: m.name)
def test_both_executors_tune_alike(method):
    one, other = (
        score_finetuned(simulate(method, small_task("mlp"), 2, executor))
        for executor in ("loop", "stacked")
    )
    assert one.scores == pytest.approx(other.scores, abs=1e-9)
    assert (one.lr, one.epochs) == (other.lr, other.epochs)


def test_the_score_is_that_of_the_chosen_rate_and_epochs(monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_GAIN_ERRORS", 0.0)  # the task is small: any gain counts
    task = small_task("mlp")
    run = simulate(FedAvg(), task, 1)
    result = score_finetuned(run)
    assert result.epochs > 0
    rate = FINETUNE_LR_FACTORS.index(round(result.lr / task.info.training.lr, 6))
    ids, models = torch.arange(6), run.personal_models()[1]
    done = 0
    for step, epochs in enumerate(FINETUNE_EPOCHS[: FINETUNE_EPOCHS.index(result.epochs) + 1]):
        fit = LocalTrainRequest(
            models,
            torch.full((6,), epochs - done),
            torch.full((6,), result.lr, dtype=torch.float64),
            trainable=tuple(models),
            stream=rate * len(FINETUNE_EPOCHS) + step + 1,
        )
        models, _, _ = task.fit_stack(ids, fit, {}, RngContext(0, 2, task.info.training))
        done = epochs
    assert float(task.evaluate_stack(ids, models, "test")["acc"].mean()) == pytest.approx(
        result.scores.acc, abs=1e-12
    )


def test_among_equals_the_fewest_epochs_then_the_gentlest_rate():
    pooled = torch.tensor([[0.5, 0.7, 0.9], [0.5, 0.9, 0.8], [0.5, 0.9, 0.9]])
    assert _first_best(pooled) == (2, 1)
    assert _first_best(torch.full((3, 4), 0.6))[1] == 0  # nothing gained: no tuning


def test_a_gain_within_two_standard_errors_is_no_reason_to_tune():
    """Gains of 0.3, 0.1 and 0.0 have the mean 0.133 and the standard error 0.088."""
    before = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64)
    unsure = before + torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64)
    sure = before + torch.tensor([0.3, 0.2, 0.2], dtype=torch.float64)
    assert _best_setting(torch.stack([before, unsure], 1)[:, None]) == (0, 0)
    assert _best_setting(torch.stack([before, sure], 1)[:, None]) == (0, 1)


def test_without_validation_data_it_is_refused(tmp_path, capsys):
    assert main(["run", "--finetune", "--val-share", "0", "--out", str(tmp_path / "x")]) == 2
    assert "validation" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
