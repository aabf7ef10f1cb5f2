import pytest

from equipoise.core import TrainingConfig
from equipoise.methods.pfedme import PFedMe
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic, heterogeneous, long_run


def test_two_batches_of_two_steps_by_hand() -> None:
    task = Quadratic([2.0], [[3.0]], TrainingConfig(epochs=1, lr=0.1), per_epoch=[2])
    run = simulate(PFedMe(lam=5.0, inner_steps=2, outer_lr=0.1, beta=0.5), task, 1)
    # theta 0 -> 0.6 -> 0.78, w_i = 0.39; theta warm-started -> 1.029 -> 1.1037, w_i = 0.39 + 0.5
    # (1.1037 - 0.39)
    assert float(run.store.state["theta"]["w"][0]) == pytest.approx(1.1037, abs=1e-14)
    assert float(run.store.local_params["w"][0]) == pytest.approx(0.74685, abs=1e-14)
    assert float(run.params["w"]) == pytest.approx(0.373425, abs=1e-14)


def test_reaches_the_optimum_of_the_envelopes_and_their_proximal_points() -> None:
    task, lam = heterogeneous(TrainingConfig(epochs=1, lr=0.1), sizes=[1, 2, 3, 4]), 2.0
    run = long_run(PFedMe(lam=lam, inner_steps=150, outer_lr=0.2), task, 200)
    envelope = (lam * task.a / (lam + task.a))[
        :, None
    ]  # gradient lam (w - theta) = lam a / (lam + a) (w - b)
    optimum = (envelope * task.b).sum(0) / envelope.sum()
    assert float((optimum - task.optimum).norm()) > 0.1  # another problem than FedAvg's
    assert largest_difference(run.params["w"], optimum) < 1e-12
    assert (
        largest_difference(run.personal_models()[1]["w"], task.proximal_points(optimum, lam))
        < 1e-12
    )


def test_no_step_of_the_server_leaves_the_model_alone() -> None:
    task = small_task()
    run = simulate(PFedMe(beta=1e-300), task, 2)
    assert largest_difference(run.params, task.init_params(0)) == 0


def test_gradients_of_the_inner_loop_are_counted() -> None:
    notes = simulate(PFedMe(inner_steps=3), small_task(size_sigma=0.0), 1).logs[0].logged
    assert notes["gradients"] == [3 * 2 * 4] * 6


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lam": 15.0, "outer_lr": 0.1}, "outer_lr"),
        ({"lam": 20.0, "outer_lr": 0.05}, "product is 1"),
        ({"lam": 25.0, "outer_lr": 0.001}, "lr=0.1"),
        ({"lam": 0.0}, "lam"),
        ({"lam": -1.0}, "lam"),
        ({"inner_steps": 0}, "inner_steps"),
        ({"beta": 0.0}, "beta"),
        ({"outer_lr": float("nan")}, "outer_lr"),
    ],
)
def test_unsound_options_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        PFedMe(**options).check(small_task(), TrainingConfig(lr=0.1))
