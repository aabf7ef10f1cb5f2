"""Networks on another device, which is pretended: nothing of two devices ever meets, and the
numbers are the same.
"""

import pytest
import torch

from data.test_tasks import small_task as small_real
from equipoise.core import TrainingConfig
from equipoise.experiment.build import build_task
from equipoise.experiment.multiprocess import multiprocess_executor, num_processes
from equipoise.experiment.runner import run
from equipoise.methods import all_methods, find_method
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.executor_selection import ExecutorPlan, select_executor, to_device
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task
from helpers_device import FAR, FarTensor, Pretended

SUPERVISED = [
    name
    for name, method in all_methods().items()
    if method().capabilities.learner_kind == "gradient"
]


def _differs(method, task, executor):
    """Between main memory and the other device; everything at rest is in main memory."""
    here = simulate(find_method(method)(), task, 2, executor).state_dict()
    with Pretended():
        there = simulate(find_method(method)(), task.to(FAR), 2, executor).state_dict()
        leaves = torch.utils._pytree.tree_leaves(there)
    assert not any(isinstance(value, FarTensor) for value in leaves)
    return largest_difference(here, there)


@pytest.mark.parametrize("method", SUPERVISED)
def test_every_method_is_the_same_there(method):
    assert _differs(method, small_task("mlp", samples=24), "stacked") < 1e-12


@pytest.mark.parametrize(
    ("model", "executor"),
    # A recurrent model does not stack: it is a loop in either executor.
    [
        ("linear", "loop"),
        ("linear", "stacked"),
        ("cnn", "loop"),
        ("cnn", "stacked"),
        ("lstm", "loop"),
    ],
)
def test_every_kind_of_model_is_the_same_there(model, executor):
    task = small_task(model) if model == "linear" else small_real(model)
    assert _differs("fedprox", task, executor) < 1e-9


def test_training_and_scoring_are_really_there(monkeypatch):
    task = small_task("mlp").to(FAR)
    seen = []
    forward = task._forward_stack
    monkeypatch.setattr(
        task, "_forward_stack", lambda stack, x: seen.append((stack, x)) or forward(stack, x)
    )
    with Pretended():
        simulate(find_method("fedavg")(), task, 1)
    assert seen
    assert all(
        isinstance(x, FarTensor) and all(isinstance(p, FarTensor) for p in s.values())
        for s, x in seen
    )
    with pytest.raises(RuntimeError, match="two devices"):
        forward({name: value.inner for name, value in seen[0][0].items()}, seen[0][1])


def test_held_out_clients_are_there_too(monkeypatch, tmp_path):
    monkeypatch.setattr("equipoise.experiment.build.to_device", lambda task, name: task.to(FAR))
    settings = ExperimentConfig.from_options(
        {"clients": 5, "samples": 40, "rounds": 1, "holdout_clients": 0.4, "executor": "stacked"}
    )
    with Pretended():
        found = run(settings, tmp_path / "far")
        assert build_task(settings).heldout_clients.device == FAR
    assert found.about.executor.endswith("on meta")
    monkeypatch.undo()
    assert run(settings, tmp_path / "here").newcomers.after[5] == pytest.approx(
        found.newcomers.after[5]
    )


def test_the_device_is_chosen_and_named(monkeypatch):
    task = small_task("mlp")
    assert to_device(task, "cpu") is task
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert to_device(task, "auto") is task
    for name, words in (
        ("cuda", "finds 0 CUDA devices"),
        ("gpu", "unknown device 'gpu'"),
        ("cuda:x", "unknown"),
    ):
        with pytest.raises(UsageError, match=words):
            to_device(task, name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(type(task), "to", lambda self, device: device)
    assert to_device(task, "auto") == torch.device("cuda", 0)
    assert to_device(task, "cuda:1") == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="finds 2 CUDA devices"):
        to_device(task, "cuda:2")
    agents = build_task(
        ExperimentConfig.from_options({"task": "two-state", "method": "fedasynq-im"})
    )
    assert to_device(agents, "auto") is agents
    with pytest.raises(UsageError, match="processor alone"):
        to_device(agents, "cuda")


def test_processes_are_for_the_processor(monkeypatch, tmp_path):
    task = small_real("cnn").to(FAR)
    monkeypatch.setattr("equipoise.simulation.executor_selection.available_cores", lambda: 4)
    with Pretended():
        choice = select_executor(task, TrainingConfig(batch_size=4), 3, allow_processes=True)
    assert "processes" not in choice.why
    settings = ExperimentConfig.from_options({"task": "fmnist", "model": "cnn"})
    assert num_processes(settings, task, ExecutorPlan("loop", processes=2)) == (1, "")
    with (
        pytest.raises(UsageError, match="processes of one command compute on the processor"),
        multiprocess_executor(ResourceConfig(processes=2), settings, task, choice, tmp_path),
    ):
        pass
