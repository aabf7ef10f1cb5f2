"""Autopilot's formulas by hand, what it measures, and what becomes of it in a round."""

import math
from typing import Any

import pytest
import torch

from equipoise.contract import Server, Training, Up, When
from equipoise.core.errors import UsageError
from equipoise.methods import steering
from equipoise.methods.autopilot import EPOCHS, Autopilot
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic


def tensor(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


# --- the formulas ---------------------------------------------------------------------------------------------------


def test_momentum_and_decay_know_the_horizon() -> None:
    assert [steering.momentum(T) for T in (1, 4, 10, 100, 300)] == pytest.approx([0, 0, 0.6, 0.96, 0.97])
    assert [steering.late(t, 10) for t in (1, 5, 6, 10)] == pytest.approx([0, 0, 0.2, 1])
    assert steering.decay(5, 10) == 1.0
    assert steering.decay(10, 10) == pytest.approx(0.4)  # one over the rounds that momentum sees
    assert steering.decay(300, 300) == pytest.approx(0.1)
    assert steering.decay(225, 300) == pytest.approx(0.1**0.5)


def test_a_quarter_of_polyaks_step_to_what_was_reached() -> None:
    assert float(steering.polyak(tensor(2.0), tensor(0.4), tensor(8.0))) == pytest.approx(0.25 * 1.6 / 8)
    assert float(steering.polyak(tensor(2.0), tensor(1.99), tensor(8.0))) == pytest.approx(0.25 * 0.2 / 8)
    assert float(steering.polyak(tensor(2.0), tensor(3.0), tensor(8.0))) == pytest.approx(0.25 * 0.2 / 8)
    assert math.isfinite(float(steering.polyak(tensor(0.0), tensor(0.0), tensor(0.0))))


def pooled(**change: float) -> dict[str, torch.Tensor]:
    seen = {"loss": 1.0, "square": 4.0, "val": 1.2, "own": 0.6, "reached": 0.5, "later": -0.5} | change
    return {name: tensor(value) for name, value in seen.items()}


def test_what_the_correction_sees_by_hand() -> None:
    seen = steering.view(pooled(), tensor(2.4), tensor(1.0), tensor(0.125), 0.3)
    log2 = math.log(2)
    expected = [1, -0.5, -log2, math.log(1.2), -log2 / 3, 0.3, -log2, math.log(1.2), -log2]
    assert seen.tolist() == pytest.approx(expected)
    first = steering.view(pooled(), tensor(math.inf), tensor(math.inf), tensor(0.125), 0.3)
    assert first[2:4].tolist() == [0, 0]  # nothing came before


def test_what_the_correction_sees_does_not_depend_on_the_scale_of_loss_or_gradient() -> None:
    one = steering.view(pooled(), tensor(2.4), tensor(1.0), tensor(0.125), 0.3)
    losses = {name: 7 * float(pooled()[name]) for name in ("loss", "val", "own", "reached")}
    rate = tensor(0.125 * 7 / 3)
    other = steering.view(pooled(**losses, square=12.0), tensor(16.8), tensor(7.0), rate, 0.3)
    assert other.tolist() == pytest.approx(one.tolist())


def test_the_rule_corrects_against_what_validation_says() -> None:
    row = tensor(steering.RULE)
    seen = steering.view(pooled(later=-1.0), tensor(2.4), tensor(1.0), tensor(0.125), 0.3)
    assert float(steering.correction(tensor(1.0), row, seen)) == pytest.approx(0.9 + math.tanh(0.4 + 0.4 * math.log(2)))
    seen = steering.view(pooled(later=1.0), tensor(0.01), tensor(0.01), tensor(0.125), 0.3)
    assert float(steering.correction(tensor(0.0), row, seen)) == pytest.approx(-math.tanh(0.8))


@pytest.mark.parametrize(("val", "last", "least", "too_far"), [(1.2, 1.1, 1.0, True), (1.2, 1.3, 1.0, False)])
def test_overshot_means_rising_and_well_above_the_least(val: float, last: float, least: float, too_far: bool) -> None:
    sure = tensor(0.0)
    assert bool(steering.overshot(tensor(val), tensor(last), tensor(least), sure)) is too_far
    assert not steering.overshot(tensor(val), tensor(last), tensor(least), tensor(0.1))  # chance may have done it
    assert not steering.overshot(tensor(1.05), tensor(1.0), tensor(1.0), sure)  # less than a tenth
    assert not steering.overshot(tensor(1.0), tensor(math.inf), tensor(math.inf), sure)  # the first round


def test_a_cohort_of_everybody_has_no_chance_in_it() -> None:
    losses = tensor([1.0, 3.0, 1.0, 3.0])
    assert float(steering.noise(losses, 4)) == 0.0
    assert float(steering.noise(losses, 16)) == pytest.approx(2 * 0.5 * math.sqrt(0.75 / 4))


# --- what is measured -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_steepness_is_the_gradients_square(model: str) -> None:
    """A batch that takes all rows of a client: the plain gradient of its mean loss."""
    task, ids = small_task(model), torch.arange(6)
    when = When(0, 1, Training(batch_size=1000))
    params = task.init_params(1)
    expected = []
    for client in range(6):
        own = task.data.split(ids[client : client + 1].numpy(), "train")
        here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        loss = task.losses(leaves, task.prepare(own.x[here]), own.y[here], {}).mean()
        expected.append(sum(float(g.square().sum()) for g in torch.autograd.grad(loss, list(leaves.values()))))
    stack = {name: value.expand(6, *value.shape) for name, value in params.items()}
    assert task.steepness_stack(ids, stack, when).tolist() == pytest.approx(expected, rel=1e-10)
    assert [float(task.steepness(ids[k], params, when)) for k in range(6)] == pytest.approx(expected, rel=1e-10)


def test_steepness_of_a_small_batch_is_the_same_in_both_executors_and_moves_with_the_round() -> None:
    task, ids = small_task(), torch.arange(6)
    params = task.init_params(1)
    stack = {name: value.expand(6, *value.shape) for name, value in params.items()}
    first, second = (task.steepness_stack(ids, stack, When(0, t, Training(batch_size=4))) for t in (1, 2))
    one = torch.stack([task.steepness(ids[k], params, When(0, 1, Training(batch_size=4))) for k in range(6)])
    assert largest_difference(first, one) < 1e-12
    assert largest_difference(first, second) > 1e-3


# --- a round --------------------------------------------------------------------------------------------------------


def test_the_first_round_by_hand() -> None:
    task = small_task()
    sim = simulate(Autopilot(), task, 1)
    ids, everybody = torch.arange(6), {n: w.expand(6, *w.shape) for n, w in sim.initial.items()}
    received = task.evaluate_stack(ids, everybody, "train")
    square = task.steepness_stack(ids, everybody, When(0, 1, task.training))
    bold, least = (0.25 * part * received["loss"] / square for part in (1.0, 0.1))
    # T = 1: no momentum, hence no decay; the only round is late, so that weights are by data size alone.
    rates = tensor(sim.logs[0].decisions["lr"])
    assert bool((rates >= least * 0.999).all())
    assert bool((rates <= bold * 1.001).all())
    assert sim.logs[0].train["epochs"].mean == EPOCHS
    n = task.sizes(ids).double()
    mean = {name: torch.tensordot(n / n.sum(), w, 1) for name, w in sim.store.local.items()}
    assert largest_difference(sim.params, mean) < 1e-12


def test_more_epochs_than_the_least_are_kept() -> None:
    task = small_task(training=Training(epochs=11, lr=0.05, batch_size=8))
    assert [log.train["epochs"].mean for log in simulate(Autopilot(), task, 2).logs] == [11, 11]


def test_a_client_takes_the_part_of_the_rate_that_its_loss_needs() -> None:
    losses = tensor([4.0, 1.0, 0.25, 1e-6])
    assert steering.need(losses, tensor(1.0)).tolist() == pytest.approx([1.0, 1.0, 0.5, 0.1])
    assert float(steering.need(tensor(0.3), tensor(0.0))) == 1.0  # no mean is known yet


def test_from_the_second_round_on_clients_share_a_rate_but_for_their_need() -> None:
    for log in simulate(Autopilot(), small_task(), 3).logs[1:]:
        assert 0.1 * log.train["lr"].max <= log.train["lr"].min < log.train["lr"].max


def metrics(**change: Any) -> dict[str, torch.Tensor]:
    seen = {"error": 0.5, "loss": 1.0, "square": 4.0, "val": 1.0, "reached": 0.2, "own": 0.5, "later": 0.0} | change
    parts = tensor(change.pop("parts", [0.5, 0.25, 1.0, 2.0])).expand(6, 4)
    return {name: torch.full((6,), float(value), dtype=torch.float64) for name, value in seen.items()} | {
        "parts": parts
    }


def steered(**change: Any) -> tuple[Any, Any, bool]:
    """State before and after a round whose measurements are these, in the middle of a run; and whether it goes back."""
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state, best = method.server_init(task, params), task.init_params(1)
    state |= {"v": {name: torch.ones_like(w) for name, w in params.items()}, "rate": tensor(0.05), "z": tensor(0.5)}
    state |= {"reached": tensor(0.3), "val": tensor([1.0, 1.0]), "best": best}
    server = Server(task, task.training, params, state, 0, 5, 10, 1.0)
    return state, *method.steer(server, torch.arange(6), metrics(**change))


def test_steering_by_hand() -> None:
    before, after, back = steered()
    now = 0.25 * (1.0 - 0.2) / 4.0
    assert float(after["rate"]) == pytest.approx((now * 0.05) ** 0.5)
    assert float(after["z"]) == pytest.approx(0.45)
    assert float(after["reached"]) == 0.2
    assert after["v"] is before["v"]
    assert after["parts"].tolist() == pytest.approx([math.log(x) for x in (0.5, 0.25, 1.0, 2.0)])
    assert not back


@pytest.mark.parametrize(("later", "back"), [(-1.0, False), (0.0, False), (1.0, True)])
def test_restraint_where_validation_loss_rises_and_a_return_where_training_hurts_too(later: float, back: bool) -> None:
    before, after, returns = steered(val=1.5, later=later)
    assert all(not bool(v.any()) for v in after["v"].values())
    assert float(after["z"]) == pytest.approx(0.45 - math.tanh(0.4 * (math.log(1.5) + later)) - math.log(2))
    assert returns is back
    assert after["best"] is before["best"]


def test_the_model_goes_back_to_the_best_one() -> None:
    task, method = small_task(), Autopilot()
    params, best = task.init_params(0), task.init_params(1)
    state = method.server_init(task, params) | {"best": best, "val": tensor([1.0, 1.0]), "rate": tensor(0.05)}
    server = Server(task, task.training, params, state, 0, 5, 10, 1.0)
    stack = {name: w.expand(6, *w.shape) for name, w in params.items()}
    weights = torch.full((6,), 1 / 6, dtype=torch.float64)
    back, _ = method.aggregate(server, torch.arange(6), Up(stack, metrics=metrics(val=1.5, later=1.0)), weights)
    assert largest_difference(back, best) == 0.0
    _, kept = method.aggregate(server, torch.arange(6), Up(stack, metrics=metrics(val=0.9)), weights)
    assert kept["best"] is params


def test_personal_models_keep_the_part_that_validation_prefers() -> None:
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state = method.server_init(task, params)
    for parts, kept in (([0, 0, 0, 0], 1.0), ([0, -1, 0, 0], 0.5), ([0, -1, -2, 0], 0.0), ([0, 1, 2, -1], 2.0)):
        server = Server(
            task, task.training, params, {**state, "parts": tensor([float(x) for x in parts])}, 0, 1, 10, 1.0
        )
        assert float(method.give(server, torch.arange(6))[0].extra["part"]) == kept


def test_without_validation_data_the_measured_rate_is_all() -> None:
    sim = simulate(Autopilot(), small_task(val_share=0.0), 4)
    assert float(sim.server_state["z"]) == 0.0
    assert largest_difference(sim.store.local, sim.personal_models()[1]) < 1e-12


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_both_executors_agree(model: str) -> None:
    loop, stacked = (simulate(Autopilot(), small_task(model), 5, executor, 0.5) for executor in ("loop", "stacked"))
    assert largest_difference(loop.state(), stacked.state()) < 1e-9


def test_a_task_without_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="gradients"):
        Autopilot().check(Quadratic([1.0], [[1.0]], Training()), Training())


def test_one_client_cannot_choose_everybody_s_rate():
    """Of ten losses the second largest is what nearly all have at most: ten times that is believed, and no more."""
    told = torch.tensor([1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1e6], dtype=torch.float64)
    assert steering.believed(told).tolist() == [1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 20.0]
    assert torch.equal(steering.believed(told[:9]), told[:9])
    assert torch.equal(steering.believed(told[-4:]), told[-4:])  # too few to tell
