from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.core import TrainingConfig
from equipoise.methods import fedala
from equipoise.methods.fedala import FedAla
from equipoise.methods.fedavg import FedAvg
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_oracle import train
from helpers_quadratic import heterogeneous

STEPS, ALA_STEPS = 2 * 4, 3  # two epochs of 28 rows in batches of 8; one pass over 22 of them


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_weights_of_one_are_fedavg_to_the_bit(model: str) -> None:
    fedavg = simulate(FedAvg(), small_task(model, closed_form=False), 3, participation=0.5)
    fedala = simulate(
        FedAla(ala_lr=1e-300), small_task(model, closed_form=False), 3, participation=0.5
    )
    assert largest_difference(fedavg.params, fedala.params) == 0
    assert largest_difference(fedavg.store.local_params, fedala.store.local_params) == 0
    assert [log.bytes for log in fedavg.logs] == [log.bytes for log in fedala.logs]


def test_one_pass_by_definition_without_the_momentum_and_decay_of_the_model() -> None:
    training = TrainingConfig(epochs=1, lr=0.1, batch_size=100, momentum=0.9, weight_decay=0.1)
    task = small_task("linear", training)
    rate = 5.0
    two, three = (simulate(FedAla(ala_lr=rate, ala_part=1.0), task, rounds) for rounds in (2, 3))
    for k in range(6):
        rows = task.data.split(np.array([k]), "train")
        here = slice(int(rows.start[0]), int(rows.start[0] + rows.size[0]))
        own = {name: value[k] for name, value in two.store.local_params.items()}
        old = {name: value[k] for name, value in two.store.state["A"].items()}
        mixed = {
            name: (own[name] + (two.params[name] - own[name]) * old[name]).requires_grad_()
            for name in own
        }
        loss = task.losses(mixed, rows.x[here].double(), rows.y[here], {}).mean()
        gradient = dict(zip(mixed, torch.autograd.grad(loss, list(mixed.values())), strict=True))
        for name, value in three.store.state["A"].items():
            expected = (old[name] - rate * gradient[name] * (two.params[name] - own[name])).clamp(
                0, 1
            )
            assert largest_difference(value[k], expected) < 1e-14
            assert largest_difference(value[k], old[name]) > 0


def test_momentum_of_the_model_never_reaches_the_weights() -> None:
    training = TrainingConfig(epochs=1, lr=0.1, batch_size=8, momentum=0.9)
    task, plain = (
        small_task("linear", training),
        small_task("linear", replace(training, momentum=0.0)),
    )
    two, three = (simulate(FedAla(ala_lr=5.0), task, rounds) for rounds in (2, 3))
    for k in range(6):
        own = {name: value[k] for name, value in two.store.local_params.items()}
        old = {name: value[k] for name, value in two.store.state["A"].items()}
        how = {"data_range": (0.0, 0.8), "clamp": (0.0, 1.0), "stream": 1, "epochs": 1, "lr": 5.0}
        aux = {"own_head": own, "new_head": two.params, "backbone": {}}
        expected = train(plain, k, old, round=3, loss=fedala._losses(plain), aux=aux, **how)
        for name, value in three.store.state["A"].items():
            assert largest_difference(value[k], expected[name]) < 1e-12


def test_skipped_at_first_then_until_settled_then_one_pass() -> None:
    run = simulate(FedAla(), small_task(size_sigma=0.0), 4)
    gradients = [log.logged["gradients"] for log in run.logs]
    assert gradients[0] == [STEPS] * 6
    passes = [(count - STEPS) / ALA_STEPS for count in gradients[1]]
    assert all(11 <= count <= 50 and count == int(count) for count in passes)
    assert gradients[2] == gradients[3] == [STEPS + ALA_STEPS] * 6


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_each_client_has_its_own_first_time_under_sampling(executor: str) -> None:
    run = simulate(FedAla(), small_task(size_sigma=0.0), 5, executor, participation=0.5)
    taken = np.zeros(6, int)
    for t, log in enumerate(run.logs, 1):
        for client, count in zip(
            rng.sample_cohort(0, t, 6, 0.5), log.logged["gradients"], strict=True
        ):
            passes = (count - STEPS) / ALA_STEPS
            assert (passes == 0, passes >= 11, passes == 1) == (
                taken[client] == 0,
                taken[client] == 1,
                taken[client] > 1,
            )
            taken[client] += 1


def test_training_starts_from_received_lower_layers_and_the_mixed_top() -> None:
    task = small_task(training=TrainingConfig(epochs=2, lr=0.3, batch_size=8))
    two, three = simulate(FedAla(ala_lr=50.0), task, 2), simulate(FedAla(ala_lr=50.0), task, 3)
    weights = three.store.state["A"]
    assert set(weights) == set(task.info.blocks["head"])
    flat = torch.cat([value.flatten() for value in weights.values()])
    assert (float(flat.min()), float(flat.max())) == (0.0, 1.0)
    for k in range(6):
        own = {name: value[k] for name, value in two.store.local_params.items()}
        start = dict(two.params)
        for name in task.info.blocks["head"]:
            start[name] = own[name] + (two.params[name] - own[name]) * weights[name][k]
        held = {name: value[k] for name, value in three.store.local_params.items()}
        expected = train(task, k, start, round=3)
        assert largest_difference(held, {name: expected[name] for name in held}) < 1e-12


def test_unsound_use_is_refused() -> None:
    with pytest.raises(UsageError, match="ala_lr"):
        FedAla(ala_lr=0.0).check(small_task(), TrainingConfig())
    with pytest.raises(UsageError, match="ala_part"):
        FedAla(ala_part=1.5).check(small_task(), TrainingConfig())
    with pytest.raises(UsageError, match="labelled"):
        FedAla().check(heterogeneous(TrainingConfig()), TrainingConfig())
