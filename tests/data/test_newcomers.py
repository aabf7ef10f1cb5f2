"""Clients held out of training: who they are, that nobody trained on them, and how they adapt."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from equipoise.core import LocalTrainRequest, RngContext
from equipoise.experiment.build import build_task
from equipoise.experiment.evaluation import hold_out
from equipoise.experiment.runner import resume_run, run
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import small_task

OPTIONS = {
    "task": "synthetic",
    "clients": 10,
    "samples": 60,
    "rounds": 3,
    "epochs": 2,
    "holdout_clients": 0.2,
}


def test_members_and_newcomers_part_the_population():
    task = small_task(clients=10)
    members = hold_out(task, 0.3, seed=1)
    assert (members.info.num_clients, members.heldout_clients.info.num_clients) == (7, 3)
    ids = np.concatenate([members.data.ids, members.heldout_clients.data.ids])
    assert sorted(ids.tolist()) == list(range(10))
    whole = task.data.split(members.data.ids[[2]], "train")
    part = members.data.split(np.array([2]), "train")
    assert part.start.tolist() == whole.start.tolist()
    again = hold_out(small_task(clients=10), 0.3, seed=1)
    assert (again.data.ids == members.data.ids).all()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local", "page"])
def test_newcomers_are_in_the_summary(tmp_path, method):
    model = {"model": "mlp"} if method == "fedper" else {}
    summary = run(
        ExperimentConfig.from_options({**OPTIONS, **model, "method": method}), tmp_path / "out"
    )
    new = summary.newcomers
    assert new.clients == 2
    assert set(new.after) == {0, 1, 5}
    assert new.after[0] != new.after[1] != new.after[5]
    assert summary.clients_seen == 8
    assert (
        json.loads((tmp_path / "out" / "summary.json").read_text())["newcomers"]["1"]
        == new.after[1]
    )


def test_scores_are_those_of_the_global_model_and_of_plain_local_training(tmp_path):
    settings = ExperimentConfig.from_options(OPTIONS)
    new = run(settings, tmp_path / "out").newcomers
    params = load_file(tmp_path / "out" / "models" / "global.safetensors")
    there, training = build_task(settings).heldout_clients, settings.training
    for epochs in (0, 1, 5):
        accuracies = []
        for k in range(2):
            lr = torch.tensor(training.lr)
            fit = LocalTrainRequest(params, torch.tensor(epochs), lr, trainable=tuple(params))
            trained, _, _ = there.fit(
                torch.tensor(k), fit, {}, RngContext(0, OPTIONS["rounds"] + 1, training)
            )
            accuracies.append(float(there.evaluate(torch.tensor(k), trained, "test")["acc"]))
        assert new.after[epochs].acc == pytest.approx(np.mean(accuracies), abs=1e-6)


def test_every_executor_gives_the_same_newcomers(tmp_path):
    found = [
        run(
            ExperimentConfig.from_options({**OPTIONS, "executor": executor}), tmp_path / executor
        ).newcomers.after
        for executor in ("loop", "stacked")
    ]
    for k in (0, 1, 5):
        assert found[0][k].acc == pytest.approx(found[1][k].acc, abs=1e-6)


def test_bad_shares_are_refused():
    with pytest.raises(UsageError, match=r"holdout_clients is 1.0: must be a number in \[0, 1\)"):
        ExperimentConfig.from_options({**OPTIONS, "holdout_clients": 1.0})
    with pytest.raises(UsageError, match="leaves nobody"):
        hold_out(small_task(clients=3), 0.9, 0)


def test_the_choice_of_executor_outlives_the_process(tmp_path, monkeypatch):
    """What auto measured is kept in the folder, so that a resumed run goes on in the same way."""
    from equipoise.experiment import multiprocess
    from equipoise.simulation.executor_selection import ExecutorPlan

    monkeypatch.setattr(
        multiprocess, "select_executor", lambda *_, **__: ExecutorPlan("loop", why="measured")
    )
    settings = ExperimentConfig.from_options({**OPTIONS, "holdout_clients": 0.0})
    stop = iter([False, True])

    def watch(log):
        if next(stop):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "out", on_round_end=watch)
    monkeypatch.setattr(
        multiprocess, "select_executor", lambda *_, **__: pytest.fail("measured again")
    )
    assert resume_run(tmp_path / "out").about.executor == "loop, 1 thread (measured)"
