"""Both engines on every kind of target, with batches that are not full; regression against its
closed form.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.core import Method, TrainingConfig
from equipoise.data.federated_dataset import Federation, Target
from equipoise.methods.autopilot import Autopilot
from equipoise.methods.ditto import Ditto
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedprox import FedProx
from equipoise.methods.scaffold import Scaffold
from equipoise.models import MODELS
from equipoise.tasks.supervised import ExamplesTask
from helpers import largest_difference, simulate

SIZES = np.array([13, 7, 22])
TRAINING = TrainingConfig(epochs=2, lr=0.05, batch_size=5)
KINDS = {
    "survival": Target("survival", "T", event="E"),
    "regression": Target("regression", "minutes", mean=3.0, scale=2.0),
}


def task(kind: str, model: str = "mlp", training: TrainingConfig = TRAINING) -> ExamplesTask:
    rng = np.random.default_rng(0)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(rng.normal(size=(count, 4)))
        if kind == "regression":
            return x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64) + 3
        time = torch.from_numpy(rng.integers(1, 6, count)).double()  # few values: ties
        return x, torch.stack([time, torch.from_numpy(rng.integers(0, 2, count)).double()], 1)

    splits = {name: (*rows(int(SIZES.sum())), SIZES) for name in ("train", "val", "test")}
    data = Federation(
        splits, {name: rows(20) for name in ("public", "test")}, 1, target=KINDS[kind]
    )
    return ExamplesTask(kind, MODELS[model]((4,), 1), data, training, torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "method", [FedAvg(), FedProx(), Scaffold(), Ditto(), Autopilot()], ids=lambda m: m.name
)
def test_loop_is_stacked(kind: str, method: Method) -> None:
    loop, stacked = (simulate(method, task(kind), executor=name) for name in ("loop", "stacked"))
    assert largest_difference(loop.params, stacked.params) < 1e-12
    assert largest_difference(loop.store.scores, stacked.store.scores) < 1e-12
    assert stacked.logs[-1].trained.metric == ("rmse" if kind == "regression" else "concordance")


def test_a_short_batch_is_the_likelihood_of_its_own_rows() -> None:
    """One step on all of a client's rows, by the stack (where others have more) and by hand."""
    whole = task("survival", "linear", replace(TRAINING, epochs=1, batch_size=22))
    before = whole.init_params(0)
    name = next(name for name, value in before.items() if value.dim() == 2)
    simulation = simulate(FedAvg(), whole, rounds=1)
    for client in range(3):
        own = whole.data.split(np.array([client]), "train")
        here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        w = before[name].clone().requires_grad_()
        h = own.x[here] @ w[0]
        time, event = own.y[here].T
        at_risk = time[None, :] >= time[:, None]
        loss = (event * ((at_risk * h.exp()).sum(1).log() - h)).mean()
        expected = w - 0.05 * torch.autograd.grad(loss, w)[0]
        assert torch.allclose(simulation.store.local_params[name][client], expected, atol=1e-12)


def test_a_linear_regression_finds_its_coefficients() -> None:
    found = simulate(
        FedAvg(), task("regression", "linear", replace(TRAINING, lr=0.1, epochs=5)), rounds=40
    )
    assert found.logs[-1].global_.rmse < 1e-6
    assert found.logs[-1].personal.rmse < 1e-6
    weight = next(value for value in found.params.values() if value.dim() == 2)
    assert (weight[0] * 2).tolist() == pytest.approx([1.0, -2.0, 0.5, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "name"), [("survival", "loss"), ("regression", "r2"), ("regression", "mae")]
)
def test_a_headline_stands_first_and_is_read(kind: str, name: str) -> None:
    headed = task(kind).with_primary_metric(name)
    found = simulate(FedAvg(), headed, rounds=1)
    assert found.logs[0].trained.metric == headed.info.metric == name
    assert headed.info.higher_is_better == (name == "r2")
