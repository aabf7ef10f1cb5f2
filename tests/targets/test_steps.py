"""Gradient steps are counted, whatever a method trains; comparisons at equal compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.core import Method
from equipoise.experiment.compare import steps_of_a_round, with_equal_steps
from equipoise.methods.ditto import Ditto
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedrep import FedRep
from equipoise.methods.pfedme import PFedMe
from equipoise.settings.loading import settings_of
from helpers import TRAINING, simulate, small_task


def per_epoch() -> int:
    """One for each batch of 8 rows that a client has."""
    task = small_task()

    return int((-(-task.num_examples(torch.arange(6)) // 8)).sum())


@pytest.mark.parametrize(
    ("method", "epochs"),
    [
        (FedAvg(), 2),
        (Ditto(), 2 + 2),
        (FedRep(head_epochs=5), 5 + 2),
        (PFedMe(inner_steps=3), 2 * 3),
    ],
)
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_all_training_of_a_round_counts(method: Method, epochs: int, executor: str) -> None:
    found = simulate(
        method, small_task(training=replace(TRAINING, epochs=2)), rounds=2, executor=executor
    )
    assert [record.steps for record in found.logs] == [epochs * per_epoch()] * 2


def test_equal_steps_give_rounds_by_what_a_round_costs() -> None:
    usual = {"task": "synthetic", "clients": 5, "rounds": 40, "epochs": 2}
    cells = with_equal_steps({"fedavg": usual, "ditto": usual, "autopilot": usual})
    budget = 40 * steps_of_a_round(settings_of({"method": "fedavg", **usual}))
    assert cells["fedavg"]["rounds"] == 40
    for method, given in cells.items():
        cost = steps_of_a_round(settings_of({"method": method, **given}))
        assert abs(given["rounds"] * cost - budget) <= cost / 2 + 1e-9
