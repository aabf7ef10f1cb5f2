import pytest

from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedopt import FedAvgM
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic


def test_two_rounds_by_hand() -> None:
    task = Quadratic([1.0, 1.0], [[1.0], [4.0]], TrainingConfig(epochs=1, lr=0.1), sizes=[1, 3])
    run = simulate(FedAvgM(server_momentum=0.5), task, 2)
    # mean optimum 3.25. Round 1: v = -0.325, w = 0.325. Round 2: v = -0.1625 - 0.1 (3.25 - 0.325) =
    # -0.455, w = 0.78
    assert float(run.server_state["v"]["w"]) == pytest.approx(-0.455, abs=1e-15)
    assert float(run.params["w"]) == pytest.approx(0.78, abs=1e-15)


def test_without_momentum_it_is_fedavg() -> None:
    fedavg, fedavgm = (
        simulate(m, small_task(), 3) for m in (FedAvg(), FedAvgM(server_momentum=0.0))
    )
    assert largest_difference(fedavg.params, fedavgm.params) < 1e-15


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_bad_momentum_is_refused(momentum: float) -> None:
    with pytest.raises(UsageError, match="server_momentum"):
        FedAvgM(server_momentum=momentum).check(small_task(), TrainingConfig())
