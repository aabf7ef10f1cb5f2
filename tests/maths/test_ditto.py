import pytest

from equipoise.core import TrainingConfig
from equipoise.methods.ditto import Ditto
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.local import Local
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_quadratic import Quadratic, heterogeneous, long_run


def test_two_rounds_by_hand() -> None:
    task = Quadratic([1.0, 1.0], [[1.0], [3.0]], TrainingConfig(epochs=1, lr=0.1))
    run = simulate(Ditto(lam=2.0), task, 2)
    # Round 1: v = w_i = 0.1 and 0.3, w = 0.2. Round 2: 0.1 - 0.1 (-0.9 + 2 (0.1 - 0.2)) = 0.21; 0.3
    # - 0.1 (-2.7 + 0.2)
    assert run.store.state["v"]["w"].flatten().tolist() == pytest.approx([0.21, 0.55], abs=1e-15)
    assert float(run.params["w"]) == pytest.approx(0.38, abs=1e-15)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_lambda_zero_is_local_training_to_the_bit(participation: float) -> None:
    ditto = simulate(Ditto(lam=0.0), small_task(), 4, participation=participation)
    local = simulate(Local(), small_task(), 4, participation=participation)
    assert largest_difference(ditto.store.state["v"], local.store.local_params) == 0
    assert largest_difference(ditto.personal_models()[1], local.personal_models()[1]) == 0


def test_the_global_model_is_fedavg_to_the_bit() -> None:
    ditto, fedavg = (simulate(m, small_task(), 3, participation=0.5) for m in (Ditto(), FedAvg()))
    assert largest_difference(ditto.params, fedavg.params) == 0
    assert [log.bytes for log in ditto.logs] == [log.bytes for log in fedavg.logs]


def test_personal_models_are_proximal_points_of_the_global_one() -> None:
    task = heterogeneous(TrainingConfig(epochs=3, lr=0.1))
    run = long_run(Ditto(lam=0.8), task, 400)
    expected = task.proximal_points(task.fedavg_fixed_point(), 0.8)
    assert largest_difference(run.personal_models()[1]["w"], expected) < 1e-12


def test_both_phases_are_counted() -> None:
    notes = simulate(Ditto(), small_task(size_sigma=0.0), 1).logs[0].logged
    assert notes["gradients"] == [2 * 2 * 4] * 6  # two models, two epochs, 28 rows in batches of 8


@pytest.mark.parametrize("lam", [-1.0, float("nan"), 20.0])
def test_unsound_strengths_are_refused(lam: float) -> None:
    with pytest.raises(UsageError, match="lam"):
        Ditto(lam=lam).check(small_task(), TrainingConfig(lr=0.1))
