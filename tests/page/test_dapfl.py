"""Dap-FL: what its agents see and are paid, and that the server weighs by data size."""

import pytest
import torch

from equipoise.methods.dapfl import DapFL
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task


def test_state_reward_and_weights_by_hand() -> None:
    task = small_task()
    sim = simulate(DapFL(), task, 1)
    ids = torch.arange(6)
    before = task.evaluate_stack(
        ids, {k: v.expand(6, *v.shape) for k, v in sim.initial_params.items()}, "val"
    )
    after = task.evaluate_stack(ids, sim.store.local_params, "val")
    held = sim.store.state["agent"]
    assert (
        largest_difference(held["last_state"], torch.stack([before["loss"], before["acc"]], 1))
        < 1e-9
    )
    assert (
        largest_difference(
            held["last_reward"], before["loss"] - after["loss"] + after["acc"] - before["acc"]
        )
        < 1e-9
    )
    n = task.num_examples(ids).double()
    mean = {k: torch.tensordot(n / n.sum(), v, 1) for k, v in sim.store.local_params.items()}
    assert largest_difference(sim.params, mean) < 1e-12


def test_rates_stay_in_the_published_range_and_agents_learn() -> None:
    sim = simulate(DapFL(warmup=2, replay=16), small_task(), 5)
    rates = [rate for log in sim.logs for rate in log.decisions["lr"]]
    assert min(rates) >= 1e-4
    assert max(rates) <= 1e-2
    assert int(sim.store.state["agent"]["ddpg"]["num_updates"].min()) > 0


@pytest.mark.parametrize("options", [{"replay": 0}, {"lr_min": 1.0}, {"agent_rate": 0.0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    task = small_task()
    with pytest.raises(UsageError):
        DapFL(**options).check(task, task.info.training)  # type: ignore[arg-type]


def test_no_validation_data_is_refused() -> None:
    task = small_task(val_share=0.0)
    with pytest.raises(UsageError, match="val_share"):
        DapFL().check(task, task.info.training)
