"""Worker processes: equal to Loop to the bit, whatever their number; they end when they should and say what fails."""

import gc
import os
import signal
import time
from functools import partial

import pytest
import torch

from data.test_tasks import small_task as small_images
from equipoise.contract import Training
from equipoise.core.errors import UsageError
from equipoise.methods import find_method
from equipoise.methods.fedavg import FedAvg
from equipoise.runtime import choose
from equipoise.runtime.arena import Arena, Layout
from equipoise.runtime.choose import Choice
from equipoise.runtime.round import Schedule, Simulation
from equipoise.runtime.workers import Workers
from helpers import largest_difference, small_task, timeless


def _run(method, task, workers, rounds=2, participation=1.0):
    make = partial(Workers, workers=workers) if workers else None
    schedule = Schedule(rounds, 0, participation, "loop", 1, True)
    simulation = Simulation(method, task, task.training, schedule, make)
    logs = [simulation.round() for _ in range(rounds)]
    return simulation, [timeless(log) for log in logs]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedala", "fedrod", "page"])
def test_equal_to_loop_whatever_the_number_of_workers(name):
    method, task = find_method(name)(), small_task()
    loop, logs = _run(method, task, 0, participation=0.5)
    for workers in (1, 2, 7):
        crew, others = _run(method, task, workers, participation=0.5)
        assert largest_difference(loop.state(), crew.state()) == 0.0
        assert logs == others


def test_convolutional_models_too():
    loop, _ = _run(FedAvg(), small_images("cnn"), 0)
    crew, _ = _run(FedAvg(), small_images("cnn"), 2)
    assert largest_difference(loop.state(), crew.state()) == 0.0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _pids(simulation):
    return [process.pid for process in simulation.executor._crew.close.peek()[2][2]]


def test_processes_end_with_their_executor():
    simulation, _ = _run(FedAvg(), small_task(), 2)
    pids = _pids(simulation)
    assert all(map(_alive, pids))
    simulation.executor.close()
    assert not any(map(_alive, pids))
    simulation, _ = _run(FedAvg(), small_task(), 2)
    pids = _pids(simulation)
    del simulation
    gc.collect()
    assert not any(map(_alive, pids))


def test_a_worker_that_dies_is_reported():
    simulation, _ = _run(FedAvg(), small_task(), 2)
    for pid in _pids(simulation):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    with pytest.raises(RuntimeError, match="a worker process died"):
        simulation.round()


class _Failing(FedAvg):
    def update(self, c):
        raise ValueError("out of luck")


def test_an_error_in_a_worker_is_shown_where_it_matters():
    task = small_task()
    with pytest.raises(RuntimeError, match=r"(?s)a worker process failed.*out of luck"):
        _run(_Failing(), task, 2)


def test_tasks_without_samples_are_refused():
    class Other:
        name = "other"
        forks = False

    with pytest.raises(UsageError, match="not for worker processes"):
        Workers(FedAvg(), Other(), Training(), 0, 1)


def test_trees_survive_shared_memory():
    tree = {"a": torch.arange(5), "b": {"c": torch.randn(2, 3).double(), "yes": True, "d": torch.tensor([True, False])}}
    layout, arena = Layout.of(tree), Arena()
    arena.reserve(3 * layout.size)
    memory = arena.bytes(3 * layout.size)
    layout.write(memory, tree)
    back = layout.read(memory)
    assert back["b"]["yes"] is True
    assert torch.equal(back["a"], tree["a"])
    assert torch.equal(back["b"]["c"], tree["b"]["c"])
    tensors = {"x": torch.zeros(3, 0), "y": torch.tensor(2.5)}
    layout = Layout.of(tensors)
    for k in range(3):
        layout.write(memory[k * layout.size :], {"x": torch.zeros(3, 0), "y": torch.tensor(float(k))})
    assert layout.read_stack(memory, 3)["y"].tolist() == [0.0, 1.0, 2.0]
    assert layout.read_stack(memory, 3)["x"].shape == (3, 3, 0)


# --- the choice ------------------------------------------------------------------------------------------------------


def test_dense_models_stack_without_a_measurement(monkeypatch):
    monkeypatch.setattr(choose, "_measure", lambda *_: pytest.fail("measured"))
    assert choose.choose(small_task(), Training(), 6).executor == "stacked"


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({Choice("loop"): 1.0, Choice("stacked"): 0.5, Choice("workers", workers=2): 0.6}, "stacked"),
        ({Choice("loop"): 1.0, Choice("stacked"): 1.5, Choice("workers", workers=2): 0.6}, "workers"),
        ({Choice("loop"): 1.0, Choice("loop", threads=2): 0.5}, "loop"),
        ({Choice("loop"): 1.0, Choice("stacked"): 0.97}, "loop"),  # not clearly faster
    ],
)
def test_the_fastest_way_is_taken_and_said(monkeypatch, measured, expected):
    monkeypatch.setattr(choose, "_measure", lambda *_: measured)
    choice = choose.choose(small_images("cnn"), Training(), 6)
    assert choice.executor == expected
    assert "measured" in str(choice)
    assert all(f"{way.name} {1000 * seconds:.1f}" in str(choice) for way, seconds in measured.items())
    if (Choice("loop", threads=2)) in measured:
        assert choice.threads == 2


@pytest.mark.parametrize("model", ["cnn", "lstm"])
def test_a_measurement_tries_the_ways_that_the_model_allows(model, monkeypatch):
    task = small_images(model)
    ways = choose._measure(task, task.training, 3, 2)
    names = {(way.executor, way.threads) for way in ways}
    assert ("stacked", 1) in names if model == "cnn" else ("stacked", 1) not in names
    assert {("loop", 1), ("loop", 2), ("workers", 1)} <= names
    assert all(seconds > 0 for seconds in ways.values())
