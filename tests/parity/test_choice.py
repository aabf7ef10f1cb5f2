"""How clients are computed: dense models stack, the others are measured, and all cores are used by
default.
"""

import json
from dataclasses import asdict

import pytest

from data.test_tasks import small_task as small_images
from equipoise.core import TrainingConfig
from equipoise.experiment import multiprocess
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation import executor_selection
from equipoise.simulation.executor_selection import ExecutorPlan
from helpers import small_task


def test_dense_models_stack_without_a_measurement(monkeypatch):
    monkeypatch.setattr(executor_selection, "_measure", lambda *_: pytest.fail("measured"))
    assert (
        executor_selection.select_executor(small_task(), TrainingConfig(), 6).executor == "stacked"
    )


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (
            {
                ExecutorPlan("loop"): 1.0,
                ExecutorPlan("stacked"): 0.5,
                ExecutorPlan("loop", processes=2): 0.6,
            },
            "stacked",
        ),
        (
            {
                ExecutorPlan("loop"): 1.0,
                ExecutorPlan("stacked"): 1.5,
                ExecutorPlan("loop", processes=2): 0.6,
            },
            "loop",
        ),
        ({ExecutorPlan("loop"): 1.0, ExecutorPlan("loop", threads=2): 0.5}, "loop"),
        ({ExecutorPlan("loop"): 1.0, ExecutorPlan("stacked"): 0.97}, "loop"),  # not clearly faster
    ],
)
def test_the_fastest_way_is_taken_and_said(monkeypatch, measured, expected):
    monkeypatch.setattr(executor_selection, "_measure", lambda *_: measured)
    choice = executor_selection.select_executor(small_images("cnn"), TrainingConfig(), 6)
    assert choice.executor == expected
    assert "measured" in str(choice)
    assert all(
        f"{way.name} {1000 * seconds:.1f}" in str(choice) for way, seconds in measured.items()
    )
    assert choice.threads == (2 if ExecutorPlan("loop", threads=2) in measured else 1)
    assert choice.processes == (2 if measured.get(ExecutorPlan("stacked"), 0) == 1.5 else 1)


@pytest.mark.parametrize("model", ["cnn", "lstm"])
def test_a_measurement_tries_the_ways_that_the_model_allows(model, monkeypatch):
    task = small_images(model)
    ways = executor_selection._measure(task, task.info.training, 3, 2, shared=True)
    stacked = {ExecutorPlan("stacked")} if model == "cnn" else set()
    assert (
        set(ways)
        == {
            ExecutorPlan("loop"),
            ExecutorPlan("loop", threads=2),
            ExecutorPlan("loop", processes=2),
        }
        | stacked
    )
    assert all(seconds > 0 for seconds in ways.values())
    assert ExecutorPlan("loop", processes=2) not in executor_selection._measure(
        task, task.info.training, 3, 2, shared=False
    )


@pytest.mark.parametrize(
    ("choice", "options", "processes"),
    [
        (ExecutorPlan("loop", processes=2), {}, 2),
        (ExecutorPlan("loop"), {}, 1),  # measured, and processes were not clearly faster
        (ExecutorPlan("loop", threads=2), {}, 1),
        (ExecutorPlan("loop", processes=2), {"executor": "loop"}, 1),  # asked for
        (ExecutorPlan("loop", processes=2), {"mode": "async", "buffer": 2}, 1),
    ],
)
def test_processes_share_models_that_do_not_stack_unasked(choice, options, processes, monkeypatch):
    monkeypatch.setattr(multiprocess, "available_cores", lambda: 2)
    monkeypatch.setattr(multiprocess, "seconds_per_step", lambda *_: 1.0)
    settings = ExperimentConfig.from_options(
        {"task": "fmnist", "model": "cnn", "clients": 4, "rounds": 5, **options}
    )
    count, remark = multiprocess.num_processes(settings, small_images("cnn"), choice)
    assert count == processes
    assert remark.startswith("2 processes share the clients") == (processes == 2)


def test_the_measurement_knows_whether_processes_may_share(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        multiprocess,
        "select_executor",
        lambda *_, allow_processes: asked.append(allow_processes) or ExecutorPlan("loop"),
    )
    for options in (
        {},
        {"mode": "async", "buffer": 2},
        {"attack": "flip:0.2"},
        {"attack": "labels:0.2"},
    ):
        settings = ExperimentConfig.from_options(
            {"task": "fmnist", "model": "cnn", "clients": 4, **options}
        )
        folder = tmp_path / str(len(asked))
        folder.mkdir()
        multiprocess.plan_for_run(settings, small_images("cnn"), RunFolder(folder))
    assert asked == [True, False, False, True]
    assert json.loads((tmp_path / "0" / "executor.json").read_text()) == asdict(
        ExecutorPlan("loop")
    )
