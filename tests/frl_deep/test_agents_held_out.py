"""Agents held out of training: who they are, what they start from, what they learn, and where it is
reported.
"""

import json

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.environments import heldout
from equipoise.environments.heldout import trainable_blocks
from equipoise.experiment.build import build_task
from equipoise.experiment.evaluation import hold_out
from equipoise.experiment.runner import run
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from helpers import cut_and_resumed

TINY = {
    **{
        "task": "cartpole",
        "agents": 5,
        "parallel": 2,
        "width": 8,
        "capacity": 400,
        "learning_starts": 20,
        "lr": 0.01,
    },
    **{
        "episodes": 2,
        "epochs": 15,
        "batch_size": 8,
        "rounds": 3,
        "holdout_clients": 0.4,
        "seed": 3,
    },
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(heldout, "EVAL_STEPS", (100, 400))


@pytest.mark.parametrize("task", ["cartpole", "gym"])
def test_members_and_newcomers_part_the_agents(task):
    kwargs = json.dumps([{"sutton_barto_reward": k % 2 == 0} for k in range(5)])
    own = {"task": "gym", "env_id": "CartPole-v1", "env_kwargs": kwargs} if task == "gym" else {}
    whole = build_task(
        ExperimentConfig.from_options({**TINY, **own, "holdout_clients": 0.0, "method": "dqn"})
    )
    members = hold_out(whole, 0.4, 3)
    assert (members.info.num_clients, members.heldout_clients.info.num_clients) == (3, 2)
    if task == "cartpole":
        lengths = np.concatenate(
            [members.env.bodies.length, members.heldout_clients.env.bodies.length]
        )[:, 0]
        assert sorted(lengths) == sorted(whole.env.bodies.length[:, 0])
        assert members.config.heterogeneity_values == pytest.approx(
            (members.env.bodies.length[:, 0] - 0.1) / 0.8
        )
    else:
        there = [
            make.keywords["sutton_barto_reward"]
            for part in (members, members.heldout_clients)
            for make in part.env.factories
        ]
        assert sorted(there) == [False, False, True, True, True]
    assert members.net == members.heldout_clients.net == whole.net


@pytest.mark.parametrize(
    ("name", "learns"),
    [
        ("dqn", (True, True)),
        ("dqnavg", (True, True)),
        ("pfeddqn-rep", (False, True)),
        ("perdqnavg", (False, True)),
        ("lgfedavg", (True, False)),
    ],
)
def test_beside_a_shared_block_only_the_personal_one_learns(name, learns):
    task = build_task(ExperimentConfig.from_options({**TINY, "method": name}))
    assert trainable_blocks(find_method(name)(), task) == learns


def test_they_start_from_the_servers_model_in_their_own_environments(tmp_path):
    settings = ExperimentConfig.from_options({**TINY, "method": "dqnavg"})
    new = run(settings, tmp_path / "out").newcomers.after
    assert set(new) == {0, 100, 400}
    from safetensors.torch import load_file

    params = load_file(tmp_path / "out" / "models" / "global.safetensors")
    there = build_task(settings).heldout_clients
    stack = {name: value.expand(2, *value.shape) for name, value in params.items()}
    each = there.evaluate_stack(torch.arange(2), stack, "test")["return"]
    assert new[0] == {
        "return": pytest.approx(float(each.mean())),
        "std": pytest.approx(float(each.std(correction=0))),
    }
    assert new[400] != new[0]


@pytest.mark.parametrize("name", ["pfeddqn-rep", "perdqnavg"])
def test_what_is_shared_is_frozen_and_the_rest_learns(name, monkeypatch):
    task = build_task(ExperimentConfig.from_options({**TINY, "method": name}))
    steps, train = [], heldout.dqn_agent.train

    def watched(*given):
        params, kept = train(*given)
        steps.append((given[5], params))
        return params, kept

    monkeypatch.setattr(heldout.dqn_agent, "train", watched)
    heldout.heldout_returns(task, task.heldout_clients, find_method(name)(), task.init_params(1), 3)
    before, after = task.net.views(steps[0][0]), task.net.views(steps[-1][1])
    for part in task.info.blocks["backbone"]:
        assert torch.equal(before[part], after[part])
    for part in task.info.blocks["head"]:
        assert not torch.equal(before[part], after[part])


def test_a_resumed_run_has_the_same_newcomers(tmp_path):
    settings = ExperimentConfig.from_options({**TINY, "method": "pfeddqn-rep", "rounds": 6})
    whole = run(settings, tmp_path / "whole")
    assert cut_and_resumed(settings, tmp_path / "cut", 3).newcomers == whole.newcomers


def test_compare_shows_them(tmp_path, capsys):
    options = (
        "--agents 3 --parallel 2 --episodes 1 --epochs 20 --learning-starts 10 --width 8 "
        "--rounds 2 --holdout-clients 0.34"
    )
    command = (
        f"compare --task cartpole --methods dqnavg,perdqnavg --seeds 1 --out {tmp_path / 'c'} "
        f"{options}"
    )
    assert main(command.split()) == 0
    assert "k=400" in capsys.readouterr().out
    for file in (tmp_path / "c").rglob("summary.json"):
        new = json.loads(file.read_text())["newcomers"]
        assert new["clients"] == 1
        assert 0 < new["400"]["return"] <= 500


def test_tasks_without_environments_to_spare_are_refused(tmp_path, capsys):
    options = "--task windy-cliff --method linear-td --holdout-clients 0.2 --quiet"
    command = f"run {options} --out {tmp_path / 'x'}"
    assert main(command.split()) == 2
    assert "cannot hold clients out" in capsys.readouterr().err
