"""Appendix D by hand: energies, budget, multiplier, and a run under a budget."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equipoise.clock.config import ClockConfig
from equipoise.clock.devices import DevicePopulation
from equipoise.core import DeviceProfile
from equipoise.methods.page import energy
from equipoise.methods.page.page import Page
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task

ONE = {
    "cycles": 1e6,
    "frequency": 1e9,
    "capacitance": 1e-28,
    "power_up": 0.1,
    "power_down": 0.05,
    "bandwidth": 1e6,
    "gain": 4e-12,
    "noise": 4e-21,
    "budget": 5.0,
}


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in ONE.items()}


def test_equations_13_to_15() -> None:
    p = tensors()
    assert float(energy.computation_energy(p, torch.tensor(200))) == pytest.approx(
        200 * 1e-28 * 1e6 * 1e18
    )
    # Signal to noise 4e-12 * 0.1 / (4e-21 * 1e6) = 100: the rate is 1e6 log2(101) bits/s.
    assert float(energy.radio_energy(p, p["power_up"], 30_000.0)) == pytest.approx(
        0.1 * 30_000 / (1e6 * math.log2(101))
    )


def test_the_budget_is_kept_or_broken_by_epochs() -> None:
    fixed = energy.EnergyRanges(**{name: (value, value) for name, value in ONE.items()})
    u = torch.rand(9, dtype=torch.float64)
    cost = energy.round_energy(fixed, u, u, torch.tensor(200), 30_000.0)
    assert float(energy.excess(cost, torch.tensor(5))) == pytest.approx(
        0.0, abs=1e-12
    )  # equation (16), just kept
    assert (
        float(energy.excess(cost, torch.tensor(4)))
        < 0
        < float(energy.excess(cost, torch.tensor(6)))
    )
    assert float(energy.affordable_epochs(cost)) == pytest.approx(5.0)


def test_defaults_meet_both_assumptions() -> None:
    """One epoch is always affordable, twenty never: then the dual problem is sound (theorem 2)."""
    u = torch.rand(2, 500, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cost = energy.round_energy(energy.EnergyRanges(), u[0], u[1], torch.tensor(190), 30_000.0)
    assert bool((energy.excess(cost, torch.tensor(1)) < 0).all())
    assert bool((energy.excess(cost, torch.tensor(20)) > 0).float().mean() > 0.9)


def test_the_multiplier_rises_when_the_budget_is_broken_and_never_falls_below_zero() -> None:
    value = energy.next_multiplier(torch.tensor([1.0, 0.1]), torch.tensor([0.5, -3.0]), 0.2)
    assert value.tolist() == pytest.approx([1.1, 0.0])


def test_a_run_under_a_budget_reports_and_learns(tmp_path: Path) -> None:
    ranges = tmp_path / "tight.toml"
    ranges.write_text("budget = [1.5, 2.0]\n")
    method = Page(
        energy_budget=str(ranges), warmup=2, window=0, reading="paper", agents="per-client"
    )
    loop, stacked = (
        simulate(method, small_task(), 5, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7
    logged = stacked.logs[-1].logged
    assert len(logged["excess"]) == len(logged["multiplier"]) == len(logged["joules"]) == 6
    assert max(logged["multiplier"]) > 0
    first = stacked.logs[0]
    broken = [over > 0 for over in first.logged["excess"]]
    risen = [value > 0 for value in stacked.logs[1].logged["multiplier"]]
    assert broken == risen
    held = stacked.store.state["energy"]
    again = simulate(method, small_task(), 3).store.state["energy"]
    assert (
        largest_difference(held["position"], again["position"]) == 0.0
    )  # who a client is does not change with the rounds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("budgets = [1, 2]", "did you mean 'budget'"),
        ("budget = [2, 1]", "low <= high"),
        ("budget = 3", "low, high"),
        ("budget = [", "not valid TOML"),
    ],
)
def test_bad_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    task = small_task()
    with pytest.raises(UsageError, match=words):
        Page(energy_budget=str(path)).check(task, task.info.training)


def test_missing_file_and_fixed_epochs_are_refused() -> None:
    task = small_task()
    with pytest.raises(UsageError, match="cannot be read"):
        Page(energy_budget="nowhere.toml").check(task, task.info.training)
    with pytest.raises(UsageError, match="limits epochs"):
        Page(energy_budget="default", controls="eta,p").check(task, task.info.training)


def test_the_budget_by_the_profiles_of_the_clock(tmp_path: Path) -> None:
    """An agent pays for the energy that the clock logs: the same watts, speeds and links."""
    file = tmp_path / "two.csv"
    file.write_text(
        "name,share,speed,up,down,watts,radio\nslow,1,20,1e12,1e12,2,1\nfast,1,500,1e12,1e12,8,1\n"
    )
    task, timing = small_task(), ClockConfig(devices=str(file))
    task.info = replace(task.info, devices=DevicePopulation(timing.device_classes, 0))
    method = Page(energy_budget="devices")
    method.check(task, task.info.training)
    run = FederatedSimulation(
        method,
        task,
        task.info.training,
        RoundLoopConfig(3, 0, 1.0, "stacked", 1, True),
        clock_config=timing,
    )
    for _ in range(3):
        log = run.run_round()
        assert sum(log.logged["joules"]) == pytest.approx(log.energy, rel=1e-6)
    ids = torch.arange(task.info.num_clients)
    samples = (
        task.num_steps(ids, torch.ones_like(ids), task.info.training)
        * task.info.training.batch_size
    )
    usual = task.info.devices.profiles(ids.numpy())
    assert len(set(usual.compute_watts)) == 2
    cost = run.store.state["energy"]["cost"]
    assert cost["epoch"].tolist() == pytest.approx(
        (samples.numpy() / usual.samples_per_second * usual.compute_watts).tolist()
    )
    epochs = energy.affordable_epochs(cost)
    assert bool(((epochs >= 3) & (epochs <= 15)).all())  # the budget's own range


def test_a_radio_by_hand() -> None:
    """100 samples at 50/s and 3 W; 1,000 bytes at 1 and 3 ms/byte and 0.5 W; four epochs."""
    numbers = (torch.tensor(value, dtype=torch.float64) for value in (50.0, 1e-3, 3e-3, 3.0, 0.5))
    cost = energy.device_energy(
        DeviceProfile(*numbers), torch.tensor(4.0), torch.tensor(100), 1000.0
    )
    assert {name: float(value) for name, value in cost.items()} == pytest.approx(
        {"epoch": 6.0, "fixed": 2.0, "budget": 26.0}
    )
