"""Autopilot's formulas by hand, what it measures, and what becomes of it in a round."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.core import RngContext, Server, TrainingConfig
from equipoise.methods import autopilot
from equipoise.methods.autopilot import MIN_EPOCHS, Autopilot
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic


def tensor(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


# --- the formulas ---------------------------------------------------------------------------------


def test_momentum_and_decay_know_the_horizon() -> None:
    assert [autopilot.momentum(T) for T in (1, 8, 16, 24, 108, 300)] == pytest.approx(
        [0, 0, 0, 0.5, 0.92, 0.97]
    )
    assert [autopilot.second_half_progress(t, 10) for t in (1, 5, 6, 10)] == pytest.approx(
        [0, 0, 0.2, 1]
    )
    assert [autopilot.lr_decay(t, 10) for t in (5, 10)] == [
        1.0,
        1.0,
    ]  # without momentum there is no decay
    assert [autopilot.lr_decay(t, 24) for t in (12, 18, 24)] == pytest.approx([1.0, 0.5**0.5, 0.5])
    assert autopilot.lr_decay(300, 300) == pytest.approx(
        0.03
    )  # one over the rounds that momentum sees
    assert [autopilot.amplification_decay(T, T) for T in (1, 8, 10, 80, 300)] == pytest.approx(
        [1, 1, 0.8, 0.1, 0.03]
    )
    assert [autopilot.amplification_decay(t, 16) for t in (8, 12, 16)] == pytest.approx(
        [1, 0.75, 0.5]
    )


def test_a_quarter_of_polyaks_step() -> None:
    assert float(autopilot.polyak_lr(tensor(2.0), tensor(8.0))) == pytest.approx(0.25 * 2 / 8)
    assert math.isfinite(float(autopilot.polyak_lr(tensor(0.0), tensor(0.0))))


def test_three_rates_are_tried() -> None:
    assert autopilot.trial_lrs(tensor(0.1), tensor(0.001)).tolist() == pytest.approx(
        [0.1, 0.01, 0.001]
    )


@pytest.mark.parametrize(
    ("losses", "rate"),
    [
        ([1.0, 0.9, 0.79], 0.001),
        ([1.0, 0.78, 0.79], 0.01),
        ([1.0, 0.81, 0.81], 0.1),
        ([1.0, 1e6, 1e6], 0.1),
        ([1e6, 1e6, 1e6], 0.1),
    ],
)
def test_another_rate_than_the_configured_must_leave_a_fifth_less_loss(
    losses: list[float], rate: float
) -> None:
    assert float(autopilot.select_lr(tensor([0.1, 0.01, 0.001]), tensor(losses))) == rate


def test_the_rise_of_validation_loss_by_hand() -> None:
    assert float(autopilot.log_rise(tensor(1.2), tensor(2.4))) == pytest.approx(-math.log(2))
    assert float(autopilot.log_rise(tensor(9.0), tensor(1.0))) == 1.0  # at most, either way
    assert float(autopilot.log_rise(tensor(1.0), tensor(9.0))) == -1.0
    assert float(autopilot.log_rise(tensor(1.2), tensor(math.inf))) == 0.0  # nothing came before


def test_the_rise_does_not_depend_on_the_scale_of_the_loss() -> None:
    one, other = (
        autopilot.log_rise(tensor(scale * 1.2), tensor(scale * 2.4)) for scale in (1.0, 7.0)
    )
    assert float(other) == pytest.approx(float(one))


def test_the_rate_is_corrected_against_what_validation_says() -> None:
    up = math.tanh(0.4 + 0.4 * math.log(2))
    rise = autopilot.log_rise(tensor(1.2), tensor(2.4))
    assert float(
        autopilot.next_log_lr_correction(tensor(-2.0), tensor(-1.0), rise)
    ) == pytest.approx(-1.8 + up)
    assert (
        float(autopilot.next_log_lr_correction(tensor(-0.1), tensor(-1.0), rise)) == 0.0
    )  # the chosen rate is the largest
    rise = autopilot.log_rise(tensor(1.2), tensor(0.01))
    assert float(autopilot.next_log_lr_correction(tensor(0.0), tensor(1.0), rise)) == pytest.approx(
        -math.tanh(0.8)
    )


def test_risen_means_by_more_than_the_room() -> None:
    assert autopilot.significantly_higher(tensor(1.2), tensor(1.1), tensor(0.0))
    assert not autopilot.significantly_higher(
        tensor(1.2), tensor(1.1), tensor(0.1)
    )  # chance may have done it
    assert not autopilot.significantly_higher(
        tensor(1.2), tensor(math.inf), tensor(0.0)
    )  # the first round


def test_a_cohort_of_everybody_has_no_chance_in_it() -> None:
    losses = tensor([1.0, 3.0, 1.0, 3.0])
    assert float(autopilot.sampling_noise(losses, 4)) == 0.0
    assert float(autopilot.sampling_noise(losses, 16)) == pytest.approx(
        2 * 0.5 * math.sqrt(0.75 / 4)
    )


# --- what is measured -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_steepness_is_the_gradients_square(model: str) -> None:
    """A batch that takes all rows of a client: the plain gradient of its mean loss."""
    task, ids = small_task(model), torch.arange(6)
    when = RngContext(0, 1, TrainingConfig(batch_size=1000))
    params = task.init_params(1)
    expected = []
    for client in range(6):
        own = task.data.split(ids[client : client + 1].numpy(), "train")
        here = slice(int(own.start[0]), int(own.start[0] + own.size[0]))
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        loss = task.losses(leaves, task.prepare(own.x[here]), own.y[here], {}).mean()
        expected.append(
            sum(float(g.square().sum()) for g in torch.autograd.grad(loss, list(leaves.values())))
        )
    stack = {name: value.expand(6, *value.shape) for name, value in params.items()}
    assert task.grad_sq_norm_stack(ids, stack, when).tolist() == pytest.approx(expected, rel=1e-10)
    assert [float(task.grad_sq_norm(ids[k], params, when)) for k in range(6)] == pytest.approx(
        expected, rel=1e-10
    )


def test_steepness_of_a_small_batch_is_the_same_in_both_executors_and_moves_with_the_round() -> (
    None
):
    task, ids = small_task(), torch.arange(6)
    params = task.init_params(1)
    stack = {name: value.expand(6, *value.shape) for name, value in params.items()}
    first, second = (
        task.grad_sq_norm_stack(ids, stack, RngContext(0, t, TrainingConfig(batch_size=4)))
        for t in (1, 2)
    )
    one = torch.stack(
        [
            task.grad_sq_norm(ids[k], params, RngContext(0, 1, TrainingConfig(batch_size=4)))
            for k in range(6)
        ]
    )
    assert largest_difference(first, one) < 1e-12
    assert largest_difference(first, second) > 1e-3


# --- a round --------------------------------------------------------------------------------------


def test_the_first_round_by_hand() -> None:
    """Each client tries the configured rate, its own step and one between, and trains at the best
    if much is gained.
    """
    task = small_task()
    sim = simulate(Autopilot(), task, 1)
    ids, everybody = (
        torch.arange(6),
        {n: w.expand(6, *w.shape) for n, w in sim.initial_params.items()},
    )
    received = task.evaluate_stack(ids, everybody, "train")
    steps = (
        0.25
        * received["loss"]
        / task.grad_sq_norm_stack(ids, everybody, RngContext(0, 1, task.info.training))
    )
    rates, trials = tensor(sim.logs[0].decisions["lr"]), sim.store.state["trials"]
    for k, (rate, losses) in enumerate(zip(rates, trials, strict=True)):
        lr, step = float(task.info.training.lr), float(steps[k])
        expected = min(zip(losses.tolist(), (lr, math.sqrt(lr * step), step), strict=True))
        expected_rate = expected[1] if expected[0] < 0.8 * float(losses[0]) else lr
        assert float(rate) == pytest.approx(expected_rate, rel=1e-6)  # logs are in single precision
    assert sim.logs[0].train["epochs"].mean == MIN_EPOCHS
    # T = 1: no momentum, hence no decay.
    n = task.num_examples(ids).double()
    for name, each in sim.store.local_params.items():
        first, change = (
            sim.initial_params[name],
            torch.tensordot(n / n.sum(), each, 1) - sim.initial_params[name],
        )
        r = (
            torch.stack([(own - first).square().mean().sqrt() for own in each]).sort().values[2]
        )  # the lower median
        q = change.abs() + 0.1 * change.square().mean().sqrt()  # of one round
        expected = first + change * (0.5 * math.sqrt(2) * r / q).clamp(1.0, 100.0)
        assert largest_difference(sim.params[name], expected) < 1e-9


@pytest.mark.parametrize(
    ("trials", "rate"),
    [
        ([1.0, 0.75, 0.7], 0.3),
        ([1.0, 0.5, 0.7], math.sqrt(0.05 * 0.3)),
        ([1.0, 0.9, 0.9], 0.05),
        ([1.0, 1e6, 1e6], 0.05),
    ],
)
def test_the_rate_is_chosen_once_by_the_trials_of_all(trials: list[float], rate: float) -> None:
    steps = tensor([0.1, 0.2, 0.3, 0.4, 0.5, 1e9])  # the median is what one client cannot move
    told = metrics() | {"trials": tensor(trials).expand(6, 3), "step": steps}
    task, method = small_task(training=TrainingConfig(lr=0.05)), Autopilot()
    params = task.init_params(0)
    server = Server(
        task, task.info.training, params, method.init_server(task, params), 0, 1, 10, 1.0
    )
    state, _ = method.steer(server, torch.arange(6), told)
    assert float(state["lr"]) == pytest.approx(rate)
    assert float(
        method.steer(replace(server, state=state), torch.arange(6), metrics())[0]["lr"]
    ) == pytest.approx(rate)


def test_more_epochs_than_the_least_are_kept() -> None:
    task = small_task(training=TrainingConfig(epochs=11, lr=0.05, batch_size=8))
    assert [log.train["epochs"].mean for log in simulate(Autopilot(), task, 2).logs] == [11, 11]


def test_rates_fall_with_the_root_of_the_cohorts_loss() -> None:
    first = tensor(2.0)
    assert [
        float(autopilot.loss_scale(tensor(f), first)) for f in (3.0, 1.0, 0.25)
    ] == pytest.approx([1.0, 1.0, 0.5])


def test_from_the_second_round_on_clients_share_a_rate_that_follows_their_loss() -> None:
    task = small_task()
    sim = simulate(Autopilot(), task, 3)
    assert all(log.train["lr"].min == log.train["lr"].max for log in sim.logs[1:])
    n = task.num_examples(torch.arange(6)).double()
    last = n @ sim.store.state["loss"] / n.sum()  # of the model that was received last
    assert float(sim.server_state["loss_scale"]) == pytest.approx(
        float((2 * last / sim.server_state["first_loss"]).sqrt())
    )


def metrics(**change: float) -> dict[str, torch.Tensor]:
    seen = {
        "loss": 1.0,
        "grad_sq_norm": 4.0,
        "step": 0.1,
        "val": 1.0,
        "val_loss_after": 0.5,
        "second_half_sign": 0.0,
    } | change
    return {"trials": tensor([1.0, 1.0, 1.0]).expand(6, 3)} | {
        name: torch.full((6,), float(value), dtype=torch.float64) for name, value in seen.items()
    }


def steered(**change: float) -> tuple[Any, float]:
    """State after a round whose measurements are these, in the middle of a
    run; and its momentum.
    """
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state = method.init_server(task, params) | {
        "lr": tensor(0.05),
        "log_lr_correction": tensor(-0.5),
        "val": tensor([1.1, 1.0]),
    }
    server = Server(task, task.info.training, params, state, 0, 5, 24, 1.0)
    return method.steer(server, torch.arange(6), metrics(**change))


def test_steering_by_hand() -> None:
    state, m = steered()
    assert m == 0.5
    assert float(state["amplification"]) == pytest.approx(0.5 * math.sqrt(2))
    assert float(state["lr"]) == 0.05
    assert float(state["log_lr_correction"]) == pytest.approx(
        -0.45 + math.tanh(0.4 * math.log(1.1))
    )
    assert state["val"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("correction", "scale", "round", "stops"),
    [
        (math.log(1.01e-3), 1.0, 5, False),
        (math.log(0.99e-3), 1.0, 5, True),
        (math.log(2e-3), 0.49, 5, True),
        (math.log(1.5e-3), 1.0, 11, False),  # the rate decays from round 12 of 24 on
        (math.log(1.5e-3), 1.0, 22, True),  # to 0.5^(23 / 12 - 1) = 0.53 of itself
    ],
)
def test_rounds_whose_rate_is_below_a_thousandth_are_not_run(
    correction: float, scale: float, round: int, stops: bool
) -> None:
    task, method = small_task(), Autopilot()
    params = task.init_params(0)
    state = method.init_server(task, params) | {
        "log_lr_correction": tensor(correction),
        "loss_scale": tensor(scale),
    }
    server = Server(task, task.info.training, params, state, 0, round, 24, 1.0)
    assert (method.should_stop(server) is not None) == stops


@pytest.mark.parametrize(("val", "halved"), [(1.104, 0), (1.5, 1)])
def test_momentum_is_dropped_where_validation_loss_rises_and_the_rate_halved_far_above_its_least(
    val: float, halved: int
) -> None:
    state, m = steered(val=val)
    assert m == 0.0
    assert float(state["amplification"]) == 0.25
    down = math.tanh(0.4 * math.log(val / 1.1))
    assert float(state["log_lr_correction"]) == pytest.approx(-0.45 - down - halved * math.log(2))


@pytest.mark.parametrize(
    ("fall", "m", "reach"), [(0.027, 0.0, 0.5), (0.029, 0.5, 0.5), (0.051, 0.5, math.sqrt(0.5))]
)
def test_momentum_and_reach_need_a_fall_of_validation_loss(
    fall: float, m: float, reach: float
) -> None:
    """Of (4/24)^2 = 0.0278 in logarithms, and of 0.05."""
    state, kept = steered(val=1.1 * math.exp(-fall))
    assert kept == m
    assert float(state["amplification"]) == pytest.approx(reach)


def test_reach_stays_within_a_factor_of_twenty() -> None:
    assert float(autopilot.next_amplification(tensor(19.0), True, False)) == 20.0
    assert float(autopilot.next_amplification(tensor(0.06), False, True)) == 0.05


def test_small_coordinates_are_amplified_by_hand() -> None:
    """One layer of two coordinates that move by 3 and 0.03 in each round; r = 6, c = 1/2."""
    w, change = {"a": tensor([1.0, 1.0])}, {"a": tensor([3.0, 0.03])}
    by, state = (
        autopilot.StepConfig(0.5, tensor(0.5), 1.0),
        autopilot.init_momentum({"a": tensor([1.0, 1.0])}),
    )
    rest = 0.1 * math.sqrt((9 + 0.0009) / 2)
    new, state = autopilot.amplified_momentum(w, change, {"a": tensor(6.0)}, by, state)
    assert new["a"].tolist() == pytest.approx([4.0, 1 + 0.03 * 3 / (0.03 + rest)])
    new, state = autopilot.amplified_momentum(
        w, change, {"a": tensor(6.0)}, by, state
    )  # v = 1.5 D, the mean square is as before
    assert new["a"].tolist() == pytest.approx([5.5, 1 + 0.045 * 3 / (0.03 + rest)])
    assert float(state["num_steps"]) == 2
    half, _ = autopilot.amplified_momentum(
        w, change, {"a": tensor(6.0)}, by._replace(exponent=0.0), autopilot.init_momentum(w)
    )
    assert half["a"].tolist() == pytest.approx([4.0, 1.03])  # nothing is left of it
    far, _ = autopilot.amplified_momentum(
        w, change, {"a": tensor(1e9)}, by, autopilot.init_momentum(w)
    )
    assert far["a"].tolist() == pytest.approx([301.0, 4.0])  # a hundred times at most
    still, _ = autopilot.amplified_momentum(
        w, {"a": 0 * w["a"]}, {"a": tensor(0.0)}, by, autopilot.init_momentum(w)
    )
    assert torch.equal(still["a"], w["a"])  # a layer that nobody trains


def test_one_client_does_not_set_the_length_of_steps() -> None:
    uploads = {"a": tensor([[1.0, 1.0], [2.0, 2.0], [1e9, 1e9]])}
    assert float(autopilot.median_update_rms({"a": tensor([0.0, 0.0])}, uploads)["a"]) == 2.0


def test_without_validation_data_the_chosen_rate_is_all() -> None:
    sim = simulate(Autopilot(), small_task(val_share=0.0), 4)
    assert float(sim.server_state["log_lr_correction"]) == 0.0
    assert float(sim.server_state["amplification"]) == 0.0  # nothing would hold it back
    assert largest_difference(sim.store.local_params, sim.personal_models()[1]) < 1e-12


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_both_executors_agree(model: str) -> None:
    loop, stacked = (
        simulate(Autopilot(), small_task(model), 5, executor, 0.5)
        for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9


def test_a_task_without_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="gradients"):
        Autopilot().check(Quadratic([1.0], [[1.0]], TrainingConfig()), TrainingConfig())


def test_one_client_cannot_choose_everybody_s_rate():
    """Of ten losses the second largest is what nearly all have at most: ten times that is believed,
    and no more.
    """
    told = torch.tensor([1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1e6], dtype=torch.float64)
    assert autopilot.clip_outliers(told).tolist() == [
        1.0,
        2.0,
        1.0,
        1.5,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        20.0,
    ]
    assert torch.equal(autopilot.clip_outliers(told[:9]), told[:9])
    assert torch.equal(autopilot.clip_outliers(told[-4:]), told[-4:])  # too few to tell
