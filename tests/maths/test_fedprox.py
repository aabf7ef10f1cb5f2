import pytest
import torch

from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedprox import FedProx
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic, heterogeneous


def test_two_steps_by_hand() -> None:
    task = Quadratic([2.0], [[3.0]], TrainingConfig(epochs=2, lr=0.1))
    # 0 -> 0.6 (the pull is still 0); 0.6 - 0.1 (2 (0.6 - 3) + 0.5 * 0.6) = 1.05
    assert float(simulate(FedProx(mu=0.5), task, 1).params["w"]) == pytest.approx(1.05, abs=1e-15)


def test_mu_zero_is_fedavg_to_the_bit() -> None:
    fedavg, fedprox = (
        simulate(m, small_task(), 3, participation=0.5) for m in (FedAvg(), FedProx(mu=0.0))
    )
    assert largest_difference(fedavg.state_dict(), fedprox.state_dict()) == 0
    assert [log.bytes for log in fedavg.logs] == [log.bytes for log in fedprox.logs]


def test_long_training_ends_at_the_proximal_point() -> None:
    task = heterogeneous(TrainingConfig(epochs=400, lr=0.1))
    run = simulate(FedProx(mu=0.7), task, 1)
    expected = task.proximal_points(torch.zeros(2, dtype=torch.float64), 0.7)
    assert largest_difference(run.store.local_params["w"], expected) < 1e-12


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf"), 20.0])
def test_unsound_strengths_are_refused(mu: float) -> None:
    with pytest.raises(UsageError, match="mu"):
        FedProx(mu=mu).check(small_task(), TrainingConfig(lr=0.1))
