import pytest

from equipoise.core import TrainingConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.feddyn import FedDyn
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic, heterogeneous, long_run


def test_two_rounds_by_hand() -> None:
    task = Quadratic([1.0, 3.0], [[1.0], [-1.0]], TrainingConfig(epochs=1, lr=0.1), sizes=[1, 9])
    run = simulate(FedDyn(alpha=0.5), task, 1)
    # theta_i = 0.1 and -0.3; G = -0.05 and 0.15; h = -(0.5 / 2) (0.1 - 0.3) = 0.05; theta = -0.1 -
    # 0.05 / 0.5
    assert run.store.state["G"]["w"].flatten().tolist() == pytest.approx([-0.05, 0.15], abs=1e-15)
    assert float(run.server_state["h"]["w"]) == pytest.approx(0.05, abs=1e-15)
    assert float(run.params["w"]) == pytest.approx(-0.2, abs=1e-15)

    run = simulate(FedDyn(alpha=0.5), task, 2)
    # Client 0: -0.2 - 0.1 (-1.2 + 0.05) = -0.085; G_0 = -0.05 - 0.5 * 0.115
    assert float(run.store.local_params["w"][0]) == pytest.approx(-0.085, abs=1e-15)
    assert float(run.store.state["G"]["w"][0]) == pytest.approx(-0.1075, abs=1e-15)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_h_is_the_mean_of_all_clients_memories_seen_or_not(executor: str) -> None:
    task = small_task()
    run = simulate(FedDyn(alpha=0.1), task, 2, executor, participation=0.34)
    assert len(run.store.ids) < task.info.num_clients
    mean = {name: G.sum(0) / task.info.num_clients for name, G in run.store.state["G"].items()}
    assert largest_difference(mean, run.server_state["h"]) < 1e-15
    assert max(float(G.abs().max()) for G in mean.values()) > 1e-4


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_reaches_the_true_optimum_where_fedavg_is_biased(participation: float) -> None:
    task = heterogeneous(TrainingConfig(epochs=20, lr=0.1), per_epoch=[1, 3, 2, 4])
    fedavg = long_run(FedAvg(), task, 100)
    assert float((fedavg.params["w"] - task.optimum).norm()) > 0.1
    feddyn = long_run(FedDyn(alpha=1.0), task, 200, participation=participation)
    assert largest_difference(feddyn.params["w"], task.optimum) < 1e-9


def test_weight_decay_is_part_of_the_objective_that_is_solved() -> None:
    task = heterogeneous(TrainingConfig(epochs=40, lr=0.1, weight_decay=0.5))
    run = long_run(FedDyn(alpha=1.0), task, 100)
    decayed = (task.a[:, None] * task.b).sum(0) / (task.a + 0.5).sum()
    assert largest_difference(run.params["w"], decayed) < 1e-9


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), 20.0])
def test_unsound_strengths_are_refused(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha"):
        FedDyn(alpha=alpha).check(small_task(), TrainingConfig(lr=0.1))
