"""FedEx's update by hand, and that clients try the arms that theta says."""

import math

import pytest
import torch

from equipoise.core import ClientUpdate, Server
from equipoise.methods.fedex import LR_FACTORS, FedEx
from equipoise.utils.errors import UsageError
from helpers import TRAINING, largest_difference, simulate, small_task


def test_the_update_by_hand() -> None:
    """Clients of equal weight tried arms 0 and 2 with losses 1 and 3: their mean is 2, so g =
    (-2.5, 0, 2.5, 0, 0).
    """
    task, method = small_task(size_sigma=0.0), FedEx()
    params = task.init_params(0)
    server = Server(
        task, task.info.training, params, method.init_server(task, params), 0, 1, 10, 1.0
    )
    stack = {name: w.expand(2, *w.shape) for name, w in params.items()}
    tried = {"arm": torch.tensor([0, 2]), "loss": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    _, state = method.aggregate(server, torch.arange(2), ClientUpdate(stack, {}, tried), half)
    up = math.exp(
        math.sqrt(2 * math.log(5))
    )  # the largest |g| sets the step: log-weights move by sqrt(2 log 5)
    total = up + 1 / up + 3
    assert state["theta"].tolist() == pytest.approx(
        [up / total, 1 / total, 1 / up / total, 1 / total, 1 / total]
    )


def test_clients_train_with_arms_of_the_configured_rate() -> None:
    sim = simulate(FedEx(), small_task(), 6)
    rates = {rate for log in sim.logs for rate in log.decisions["lr"]}
    allowed = [float(f"{TRAINING.lr * arm:.6g}") for arm in LR_FACTORS.tolist()]
    assert rates <= set(allowed)
    assert len(rates) > 2
    assert sum(sim.logs[-1].logged["theta"]) == pytest.approx(1.0)


def test_both_executors_agree() -> None:
    loop, stacked = (
        simulate(FedEx(), small_task(), 4, executor, 0.5) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-9


def test_validation_data_are_needed() -> None:
    task = small_task(val_share=0.0)
    with pytest.raises(UsageError, match="val_share"):
        FedEx().check(task, task.info.training)
