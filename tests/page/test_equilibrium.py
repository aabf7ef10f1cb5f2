"""The rule by hand, its identities, and the residual that an agent may add to it."""

import dataclasses
from typing import Any

import pytest
import torch

from equipoise.core.errors import UsageError
from equipoise.methods.equilibrium import Equilibrium
from equipoise.methods.fedavgm import FedAvgM
from equipoise.methods.page import shared
from equipoise.methods.steering import LEAST_ERROR
from helpers import TRAINING, largest_difference, simulate, small_task


def everybody(tree: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.expand(6, *value.shape) for name, value in tree.items()}


def test_rate_weights_and_momentum_by_hand() -> None:
    task, method = small_task(), Equilibrium(decay_from=0.5)
    sim = simulate(method, task, 1, seed=3)
    received = task.evaluate_stack(torch.arange(6), everybody(sim.initial), "train")
    # The only round is the last one: rates are at a tenth of the rule's, and the weights are equal.
    rates = (0.1 * (received["loss"] / 0.5).sqrt()).clamp(0.01, 0.1) * 0.1
    decided = sim.logs[0].train["lr"]
    assert decided.min == pytest.approx(float(rates.min()))
    assert decided.max == pytest.approx(float(rates.max()))
    assert sim.logs[0].train["epochs"].mean == 8
    mean = {name: value.mean(0) for name, value in sim.store.local.items()}
    assert largest_difference(sim.params, mean) < 1e-12


def test_early_weights_follow_the_error() -> None:
    task = small_task()
    sim = simulate(Equilibrium(), task, 2)
    sim_one = simulate(Equilibrium(decay_from=0.9), task, 2)  # both rounds but the last are early
    assert Equilibrium(decay_from=0.5).late(150, 300) == 0.0
    assert Equilibrium(decay_from=0.5).late(225, 300) == pytest.approx(0.5)
    assert Equilibrium(decay_from=0.5).late(300, 300) == 1.0
    error = 1 - task.evaluate_stack(torch.arange(6), everybody(sim.initial), "train")["acc"]
    p = (error + LEAST_ERROR) / (error + LEAST_ERROR).sum()
    first = simulate_first(sim_one)
    mean = {name: torch.tensordot(p, value, 1) for name, value in first["local"].items()}
    assert largest_difference(first["params"], mean) < 1e-12


def simulate_first(sim: Any) -> Any:
    """The state after the first of two rounds, replayed."""
    again = type(sim)(sim.method, sim.task, sim.training, sim.schedule)
    again.round()
    return {"params": again.params, "local": again.store.local}


def test_without_rate_rule_and_weights_it_is_fedavgm() -> None:
    """Equal sizes, rates pinned, weights equal at once: what is left is the server's momentum."""
    options: dict[str, Any] = {"size_sigma": 0.0}
    pinned = Equilibrium(lr_low=0.05, lr_high=0.05, local_epochs=2, decay_from=0.0, decay_to=1.0)
    flat = dataclasses.replace(pinned, server_momentum=0.9)
    object.__setattr__(flat, "late", lambda round, rounds: 1.0)
    ours = simulate(flat, small_task(**options), 4)
    theirs = simulate(FedAvgM(server_momentum=0.9), small_task(training=TRAINING, **options), 4)
    assert largest_difference(ours.params, theirs.params) < 1e-12


def test_a_residual_of_zero_is_the_rule_and_of_one_its_bound() -> None:
    rule = torch.tensor([4, 5])
    assert shared.epochs_around(rule, torch.zeros(2)).tolist() == [4, 5]
    assert shared.epochs_around(rule, torch.ones(2)).tolist() == [8, 10]
    assert shared.epochs_around(rule, -torch.ones(2)).tolist() == [2, 2]
    assert float(shared.rate_around(torch.tensor(0.03), torch.tensor(1.0))) == pytest.approx(0.09)


def test_random_control_stays_in_the_range_and_differs_from_the_rule() -> None:
    task = small_task()
    sim = simulate(Equilibrium(control="random"), task, 2)
    epochs = sim.logs[0].decisions["epochs"]
    assert min(epochs) >= 4
    assert max(epochs) <= 16
    assert len(set(epochs)) > 1


def test_the_learned_residual_is_one_agent_fed_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "CONFIG", dataclasses.replace(shared.CONFIG, warmup=6, steps=2, batch=8, capacity=64))
    loop, stacked = (
        simulate(Equilibrium(control="learned"), small_task(), 5, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state(), stacked.state()) < 1e-7
    agent = stacked.server_state["agent"]
    assert int(agent["stored"]) == 4 * 6  # every client closes a transition in every round but the first
    assert int(agent["updates"]) == 4 * 2
    held = stacked.store.state["player"]
    assert largest_difference(agent["replay"]["action"][18:24], held["transition"]["action"]) == 0.0
    rate = stacked.logs[0].train["lr"]
    rule = simulate(Equilibrium(), small_task(), 5).logs[0].train["lr"]
    assert rate.mean != rule.mean


def test_the_reward_is_what_training_and_aggregation_gained() -> None:
    task = small_task()
    sim = simulate(Equilibrium(control="learned"), task, 1)
    ids = torch.arange(6)
    before = task.evaluate_stack(ids, everybody(sim.initial), "val")["loss"].log()
    trained = task.evaluate_stack(ids, sim.store.local, "val")["loss"].log()
    back = task.evaluate_stack(ids, everybody(sim.params), "val")["loss"].log()
    sim.round()
    reward = sim.store.state["player"]["transition"]["reward"]
    assert largest_difference(reward, (before - trained) + (before - back)) < 1e-9


@pytest.mark.parametrize(
    "options",
    [
        {"control": "maybe"},
        {"server_momentum": 1.0},
        {"local_epochs": 0},
        {"lr_low": 0.5},
        {"decay_from": 1.0},
        {"decay_to": 0.0},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    task = small_task()
    with pytest.raises(UsageError, match=next(iter(options))):
        Equilibrium(**options).check(task, task.training)


def test_learning_needs_validation_data_and_the_rule_does_not() -> None:
    task = small_task(val_share=0.0)
    Equilibrium().check(task, task.training)
    with pytest.raises(UsageError, match="val_share"):
        Equilibrium(control="learned").check(task, task.training)
