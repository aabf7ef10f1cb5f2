"""Agents are state like any other: a run that is saved, loaded and continued is the same run, to
the bit.
"""

from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.core import Method
from equipoise.methods.autopilot import Autopilot
from equipoise.methods.dapfl import DapFL
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.joint import Joint
from equipoise.methods.page.page import Page
from equipoise.records.run_dir import RunFolder
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import serialization as checkpoint
from helpers import largest_difference, simulate, small_task, timeless
from helpers_records import unfinish

METHODS: dict[str, Method] = {
    "page": Page(warmup=1),
    "page for each": Page(warmup=1, agents="per-client"),
    "page with shared scores": Page(warmup=1, reading="paper"),
    "page as in the authors' code": Page(warmup=1, reading="authors-code", agents="per-client"),
    "page over scaffold": Page(warmup=1, base="scaffold", controls="alpha,eta"),
    "page over fedala": Page(warmup=1, base="fedala"),
    "dapfl": DapFL(warmup=1, replay=8),
    "autopilot": Autopilot(),
    "page at random": Page(warmup=1, control="random"),
    "fedpolicy random": FedPolicy(policy="random", block_weights="on"),
    "fedpolicy": FedPolicy(),
    "fedpolicy dqn": FedPolicy(policy="dqn"),
    "fedpolicy trained": FedPolicy(policy="trained"),
    "fedpolicy by schedule": FedPolicy(policy="full:0.5,none"),
    "joint, trained": Joint(policy="trained"),
    "joint": Joint(),
    "joint with page": Joint(base="page", base_options="warmup=1"),
}


@pytest.mark.parametrize("name", METHODS)
def test_saved_loaded_and_continued_is_the_same_run(name: str, tmp_path: Path) -> None:
    method = METHODS[name]
    whole = simulate(method, small_task(), 4, participation=0.5)
    task, schedule = small_task(), RoundLoopConfig(4, 0, 0.5, "stacked", 1, True)
    first = FederatedSimulation(method, task, task.info.training, schedule)
    logs = [first.run_round(), first.run_round()]
    checkpoint.save(tmp_path / "run.safetensors", first.state_dict(), {})
    second = FederatedSimulation(method, task, task.info.training, schedule)
    second.load_state_dict(checkpoint.load(tmp_path / "run.safetensors")[0], 2)
    logs += [second.run_round(), second.run_round()]
    assert largest_difference(whole.state_dict(), second.state_dict()) == 0
    for one, other in zip(whole.logs, logs, strict=True):
        assert timeless(one) == timeless(other)


def test_a_checkpoint_of_a_method_that_kept_less_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one of an earlier version does: a run that is half of one version and half of another is
    none of them.
    """
    out = tmp_path / "run"
    small = "--clients 4 --samples 40 --epochs 1 --checkpoint-every 1 --quiet".split()
    assert main(["run", "--method", "autopilot", *small, "--rounds", "2", "--out", str(out)]) == 0
    unfinish(out)
    file = RunFolder(out).checkpoint
    state, about = file.read_state()
    del state["simulation"]["server"]["loss_scale"]
    file.write(lambda path: checkpoint.fill(path, state, about))
    assert main(["resume", str(out)]) == 2
    assert "of another version: 'loss_scale' is missing" in capsys.readouterr().err
