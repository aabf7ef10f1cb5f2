"""Epochs that fit the deadline: by hand, under methods that decide epochs themselves, on both
executors.
"""

import math
from dataclasses import replace

import pytest
import torch

from equipoise.cli import main
from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import DevicePopulation
from equipoise.core import TrainingConfig
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from equipoise.wrappers.deadline import with_deadline_epochs
from helpers import largest_difference, small_task
from helpers_own import BY_ERROR


def played(method, task, timing, executor="stacked", rounds=2):
    schedule = RoundLoopConfig(rounds, 0, 1.0, executor, 1, True)
    task.info = replace(task.info, devices=DevicePopulation(timing.device_classes, 0))
    wrapped = with_deadline_epochs(method, timing)
    run = FederatedSimulation(wrapped, task, task.info.training, schedule, clock_config=timing)
    run.logs = [run.run_round() for _ in range(rounds)]
    return run


def table(tmp_path, speed):
    """One class, with links so fast that they take no time."""
    file = tmp_path / "one.csv"
    file.write_text(f"name,share,speed,up,down\none,1,{speed},1e12,1e12\n")
    return str(file)


def test_epochs_by_hand(tmp_path):
    """Equal clients whose epoch is so many samples: at ten samples per second the deadline leaves
    two of five.
    """
    task = small_task(training=TrainingConfig(epochs=5, lr=0.05, batch_size=8), size_sigma=0.0)
    ids = torch.arange(task.info.num_clients)
    epoch = task.num_steps(ids, torch.ones_like(ids), task.info.training) * 8
    assert len(epoch.unique()) == 1
    deadline = 2.5 * int(epoch[0]) / 10
    timing = ClockConfig(devices=table(tmp_path, 10), deadline=f"{deadline}s", adapt_epochs=True)
    run = played(find_method("fedavg")(), task, timing)
    assert (run.logs[0].train["epochs"].min, run.logs[0].train["epochs"].max) == (2, 2)
    assert run.logs[0].logged["affordable"] == [2.0] * task.info.num_clients
    assert run.logs[0].absent == {}
    assert run.logs[0].clock == pytest.approx(2 * int(epoch[0]) / 10, rel=1e-6)
    late = ClockConfig(devices=table(tmp_path, 10), deadline=f"{deadline}s")
    assert len(played(find_method("fedavg")(), task, late).logs[0].absent) == task.info.num_clients


@pytest.mark.parametrize("method", [BY_ERROR, "page"])
def test_methods_that_decide_epochs_see_the_deadline(method, tmp_path):
    task, timing = (
        small_task(),
        ClockConfig(devices=table(tmp_path, 100), deadline="2s", adapt_epochs=True),
    )
    stacked, loop = (
        played(find_method(method)(), task, timing, executor) for executor in ("stacked", "loop")
    )
    assert largest_difference(stacked.params, loop.params) < 1e-9
    for log in stacked.logs:
        most, epochs = log.logged["affordable"], log.decisions["epochs"]
        asked = 4 if method == BY_ERROR else math.inf  # agents ask for what they like
        assert all(taken <= max(1, able) for taken, able in zip(epochs, most, strict=True))
        assert asked == math.inf or epochs == [min(asked, max(1, able)) for able in most]
        assert min(most) < 4


@pytest.mark.parametrize("method", ["autopilot", "joint"])
def test_methods_whose_clients_train_on_trial_are_refused(method):
    task, timing = small_task("mlp"), ClockConfig(deadline="2s", adapt_epochs=True)
    with pytest.raises(
        UsageError, match=f"cannot serve {method}, whose clients also run trial training"
    ):
        with_deadline_epochs(find_method(method)(), timing).check(task, task.info.training)


def test_the_command_line_refuses_it_before_any_work(tmp_path, capsys):
    out = tmp_path / "x"
    assert (
        main(
            [
                "run",
                "--method",
                "autopilot",
                "--deadline",
                "2s",
                "--adapt-epochs",
                "--out",
                str(out),
            ]
        )
        == 2
    )
    assert "run trial training" in capsys.readouterr().err
    assert not out.exists()


def test_without_it_the_method_is_the_method():
    method = find_method("fedavg")()
    assert with_deadline_epochs(method, ClockConfig(deadline="2s")) is method
    with pytest.raises(UsageError, match="adapt_epochs fits epochs to a deadline: set deadline"):
        ExperimentConfig.from_options({"adapt_epochs": True})
