"""FedAdam, FedYogi, FedAdagrad, FedExP and FedHyper against numbers worked out by hand, on
quadratics.
"""

import math

import pytest

from equipoise.core import Method, TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedexp import FedExP
from equipoise.methods.fedhyper import FedHyper
from equipoise.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic


def two_clients() -> Quadratic:
    """Optima 1 and 4 with sizes 1 and 3: one step of rate 0.1 from w changes the mean by D = 0.1
    (3.25 - w).
    """
    return Quadratic([1.0, 1.0], [[1.0], [4.0]], TrainingConfig(epochs=1, lr=0.1), sizes=[1, 3])


D = 0.325  # the first change
TAU = 0.1


@pytest.mark.parametrize(
    ("method", "m", "v"),
    [
        (FedAdam(tau=TAU), 0.1 * D, 0.99 * TAU**2 + 0.01 * D**2),
        (FedYogi(tau=TAU), 0.1 * D, TAU**2 + 0.01 * D**2),  # D^2 > v: yogi adds
        (FedAdagrad(tau=TAU), D, TAU**2 + D**2),
    ],
    ids=["adam", "yogi", "adagrad"],
)
def test_the_first_step_by_hand(method: Method, m: float, v: float) -> None:
    run = simulate(method, two_clients(), 1)
    assert float(run.server_state["m"]["w"]) == pytest.approx(m, abs=1e-15)
    assert float(run.server_state["v"]["w"]) == pytest.approx(v, abs=1e-15)
    assert float(run.params["w"]) == pytest.approx(0.1 * m / (math.sqrt(v) + TAU), abs=1e-15)


def test_the_second_step_of_yogi_by_hand() -> None:
    run = simulate(FedYogi(tau=1.0, server_rate=1.0, beta_one=0.5), two_clients(), 2)
    v = 1 - 0.01 * D**2  # D^2 < v: yogi takes away
    w = 0.5 * D / (math.sqrt(v) + 1)
    second = 0.1 * (3.25 - w)
    m, v = 0.25 * D + 0.5 * second, v - 0.01 * second**2
    assert float(run.params["w"]) == pytest.approx(w + m / (math.sqrt(v) + 1), abs=1e-15)


def test_with_much_tau_and_its_inverse_as_rate_adagrad_is_fedavg() -> None:
    fedavg, same = (
        simulate(m, small_task(), 3) for m in (FedAvg(), FedAdagrad(tau=1e6, server_rate=2e6))
    )
    assert largest_difference(fedavg.params, same.params) < 1e-9


def test_fedexp_extrapolates_by_disagreement() -> None:
    """Changes 0.1 and 0.4 with shares 1/4 and 3/4: 0.1225 / (2 * 0.105625) is below 1, so the step
    is FedAvg's.
    """
    run = simulate(FedExP(epsilon=0.0), two_clients(), 1)
    assert run.logs[0].logged["server_rate"] == 1.0
    apart = Quadratic([1.0, 1.0], [[-3.0], [5.0]], TrainingConfig(epochs=1, lr=0.1))
    run = simulate(FedExP(epsilon=0.0), apart, 1)
    # changes -0.3 and 0.5: their mean square is 0.17, the square of their mean 0.01, so the rate is
    # 8.5
    assert run.logs[0].logged["server_rate"] == pytest.approx(8.5, abs=1e-12)
    assert float(run.params["w"]) == pytest.approx(0.85, abs=1e-12)
    cautious = simulate(FedExP(epsilon=0.16), apart, 1)
    assert cautious.logs[0].logged["server_rate"] == 1.0  # 0.17 / 0.34 is below 1


def test_fedhyper_global_by_hand() -> None:
    run = simulate(FedHyper(), two_clients(), 2)
    second = 0.1 * (3.25 - D)
    rate = 1 + D * second
    assert run.logs[0].logged["rate"] == 1.0
    assert run.logs[1].logged["rate"] == pytest.approx(rate, abs=1e-15)
    assert float(run.params["w"]) == pytest.approx(D + rate * second, abs=1e-15)


def test_fedhyper_local_moves_the_clients_rate_within_its_bounds() -> None:
    run = simulate(FedHyper(side="local"), two_clients(), 30)
    rates = [log.train["lr"].mean for log in run.logs]
    second = 0.1 * (3.25 - D)
    assert rates[:2] == pytest.approx([0.1, 0.1], abs=1e-15)  # the first product needs two changes
    assert rates[2] == pytest.approx(0.1 + D * second, abs=1e-15)
    assert max(rates) <= 1.0
    far = Quadratic([1.0], [[1000.0]], TrainingConfig(epochs=1, lr=0.1))
    assert simulate(FedHyper(side="local"), far, 4).logs[3].train["lr"].mean == pytest.approx(1.0)
    assert simulate(FedHyper(), far, 2).logs[1].logged["rate"] == 3.0


@pytest.mark.parametrize(
    "method", [FedAdam(), FedYogi(), FedAdagrad(), FedExP(), FedHyper(), FedHyper(side="local")]
)
def test_both_executors_agree(method: Method) -> None:
    loop, stacked = (
        simulate(method, small_task(), 3, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9


def test_bad_options_are_refused() -> None:
    for kind, options in (
        (FedAdam, {"tau": 0.0}),
        (FedAdam, {"beta_two": 1.0}),
        (FedYogi, {"server_rate": 0.0}),
        (FedExP, {"epsilon": -1.0}),
        (FedHyper, {"side": "both"}),
    ):
        with pytest.raises(UsageError, match=next(iter(options))):
            kind(**options)
