"""Autopilot's formulas by hand, what it measures, and what becomes of it in a round."""

import math
from typing import Any

import pytest
import torch

from equipoise.contract import Server, Training, When
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
    assert float(steering.polyak(tensor(2.0), tensor(1.99), tensor(8.0))) == pytest.approx(0.25 * 0.6 / 8)
    assert float(steering.polyak(tensor(2.0), tensor(3.0), tensor(8.0))) == pytest.approx(0.25 * 0.6 / 8)
    assert math.isfinite(float(steering.polyak(tensor(0.0), tensor(0.0), tensor(0.0))))


def test_the_correction_has_the_sign_of_what_validation_says() -> None:
    z = steering.correction(tensor(1.0), tensor(-1.0), tensor(-0.5))
    assert float(z) == pytest.approx(0.9 + math.tanh(0.6))
    assert float(steering.correction(tensor(0.0), tensor(1.0), tensor(50.0))) == pytest.approx(-math.tanh(0.8))


@pytest.mark.parametrize(("val", "last", "best", "too_far"), [(1.2, 1.1, 1.0, True), (1.2, 1.3, 1.0, False)])
def test_overshot_means_rising_and_well_above_the_best(val: float, last: float, best: float, too_far: bool) -> None:
    assert bool(steering.overshot(tensor(val), tensor(last), tensor(best))) is too_far
    assert not steering.overshot(tensor(1.05), tensor(1.0), tensor(1.0))  # noise
    assert not steering.overshot(tensor(1.0), tensor(math.inf), tensor(math.inf))  # the first round


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
    bold, least = (0.25 * part * received["loss"] / square for part in (1.0, 0.3))
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


def test_all_clients_share_a_rate_from_the_second_round_on() -> None:
    logs = simulate(Autopilot(), small_task(), 3).logs
    assert logs[0].train["lr"].min < logs[0].train["lr"].max
    assert all(log.train["lr"].min == log.train["lr"].max for log in logs[1:])


def metrics(**change: Any) -> dict[str, torch.Tensor]:
    seen = {"error": 0.5, "loss": 1.0, "square": 4.0, "val": 1.0, "reached": 0.2, "own": 0.5, "longer": 0.0} | change
    parts = tensor(change.pop("parts", [0.0, -1.0, -0.5])).expand(6, 3)
    return {name: torch.full((6,), float(value), dtype=torch.float64) for name, value in seen.items()} | {
        "parts": parts
    }


def steered(**change: Any) -> tuple[Any, Any]:
    """State before and after a round whose measurements are these, in the middle of a run."""
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state = method.server_init(task, params)
    state |= {"v": {name: torch.ones_like(w) for name, w in params.items()}, "rate": tensor(0.05), "z": tensor(0.5)}
    state |= {"reached": tensor(0.3), "val": tensor([1.0, 1.0]), "own": tensor([0.5, 0.5])}
    server = Server(task, task.training, params, state, 0, 5, 10, 1.0)
    return state, method.steer(server, torch.arange(6), metrics(**change))


def test_steering_by_hand() -> None:
    before, after = steered()
    now = 0.25 * (1.0 - 0.2) / 4.0
    assert float(after["rate"]) == pytest.approx((now * 0.05) ** 0.5)
    assert float(after["z"]) == pytest.approx(0.45)
    assert float(after["reached"]) == 0.2
    assert after["v"] is before["v"]
    assert after["parts"].tolist() == pytest.approx([0.0, -1.0, -0.5])


@pytest.mark.parametrize(("change", "halved"), [({"val": 1.5}, True), ({"own": 0.6}, False)])
def test_momentum_is_dropped_where_validation_loss_rises(change: dict[str, float], halved: bool) -> None:
    _, after = steered(**change)
    assert all(not bool(v.any()) for v in after["v"].values())
    rise = math.log(change.get("val", 1.0))
    assert float(after["z"]) == pytest.approx(0.45 - math.tanh(0.4 * rise) - (math.log(2) if halved else 0))


def test_personal_models_keep_the_part_that_validation_prefers() -> None:
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state = method.server_init(task, params)
    for parts, kept in (([0.0, 0.0, 0.0], 1.0), ([0.0, -1.0, 0.0], 0.5), ([-2.0, -1.0, 0.0], 0.0)):
        server = Server(task, task.training, params, {**state, "parts": tensor(parts)}, 0, 1, 10, 1.0)
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
