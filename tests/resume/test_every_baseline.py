"""Every baseline: the same seed gives the same run, and a run that is saved, loaded and continued
is the same run.
"""

from pathlib import Path

import pytest

from equipoise.methods import all_methods
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import serialization as checkpoint
from helpers import largest_difference, simulate, small_task, timeless

OTHERS = ("dapfl", "autopilot")  # see tests/resume/test_control.py
BASELINES = {
    name: m
    for name, m in all_methods().items()
    if m.__module__.count(".") == 2
    and m().capabilities.learner_kind == "gradient"
    and name not in OTHERS
}


@pytest.mark.parametrize("name", BASELINES)
def test_saved_loaded_and_continued_is_the_same_run(name: str, tmp_path: Path) -> None:
    whole = simulate(BASELINES[name](), small_task(), 4, participation=0.5)
    task, schedule = small_task(), RoundLoopConfig(4, 0, 0.5, "stacked", 1, True)
    first = FederatedSimulation(BASELINES[name](), task, task.info.training, schedule)
    logs = [first.run_round(), first.run_round()]
    checkpoint.save(tmp_path / "run.safetensors", first.state_dict(), {})
    second = FederatedSimulation(BASELINES[name](), task, task.info.training, schedule)
    second.load_state_dict(checkpoint.load(tmp_path / "run.safetensors")[0], 2)
    logs += [second.run_round(), second.run_round()]
    assert largest_difference(whole.state_dict(), second.state_dict()) == 0
    for one, other in zip(whole.logs, logs, strict=True):
        assert timeless(one) == timeless(other)


@pytest.mark.parametrize("name", BASELINES)
def test_the_seed_decides_everything(name: str) -> None:
    once, again, other = (
        simulate(BASELINES[name](), small_task(), 2, seed=seed) for seed in (5, 5, 6)
    )
    assert largest_difference(once.state_dict(), again.state_dict()) == 0
    assert largest_difference(once.store.local_params, other.store.local_params) > 0
