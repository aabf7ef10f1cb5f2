"""DQNAvg-Im: parameters averaged by what each agent learned of them."""

import json
from types import SimpleNamespace

import pytest
import torch

from equipoise.cli import main
from equipoise.core import ClientUpdate
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.methods import find_method
from equipoise.settings.experiment_config import ExperimentConfig
from helpers import cut_and_resumed, largest_difference, simulate, timeless

TINY = {
    **{
        "task": "cartpole",
        "agents": 3,
        "parallel": 2,
        "width": 8,
        "capacity": 60,
        "learning_starts": 20,
    },
    **{"eps_decay_steps": 100, "episodes": 2, "epochs": 15, "batch_size": 8, "lr": 0.01, "seed": 3},
}


def done(method, executor="stacked", participation=1.0, rounds=4):
    settings = ExperimentConfig.from_options({**TINY, "method": method})
    task = build_task(settings)
    task.dtype = torch.float64
    return simulate(settings.method, task, rounds, executor, participation, seed=3)


def mean_of(params, evidence):
    method, server = (
        find_method("dqnavg-im")(),
        SimpleNamespace(sum_updates=None, state={}, params={"w": torch.zeros(3)}),
    )
    up = ClientUpdate({"w": torch.tensor(params)}, {"evidence": {"w": torch.tensor(evidence)}})
    weights, _ = method.aggregation_weights(server, torch.arange(len(params)), up)
    return method.aggregate(server, torch.arange(len(params)), up, weights)[0]["w"].tolist()


def test_weights_by_hand():
    """(1 * 3 + 3 * 1) / 4 = 1.5; who alone has learned decides alone; where nobody has, all weigh
    the same.
    """
    found = mean_of([[1.0, 5.0, 2.0], [3.0, 9.0, 4.0]], [[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    assert found == pytest.approx([1.5, 9.0, 3.0], rel=1e-6)


def test_equal_evidence_is_dqnavg():
    assert mean_of([[1.0, 5.0, 2.0], [3.0, 9.0, 4.0]], [[0.5] * 3, [0.5] * 3]) == pytest.approx(
        [2.0, 7.0, 3.0]
    )


def test_the_server_holds_the_mean_by_the_agents_own_moments():
    end = done("dqnavg-im")
    seen = end.store.data_state["adam"]["v"]
    expected = {
        name: (seen[name] * value).sum(0) / seen[name].sum(0).clamp(min=1e-30)
        for name, value in end.store.local_params.items()
    }
    learned = {name: seen[name].sum(0) > 1e-6 for name in seen}
    for name, mask in learned.items():
        assert mask.any()
        torch.testing.assert_close(
            end.params[name][mask], expected[name][mask], rtol=1e-5, atol=1e-8
        )
    assert largest_difference(end.params, done("dqnavg").params) > 1e-3


def test_net_and_moments_go_up():
    log, plain = done("dqnavg-im", rounds=1).logs[0].bytes, done("dqnavg", rounds=1).logs[0].bytes
    assert (log.up, log.down) == (2 * plain.up, plain.down)


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_loop_equals_stacked(participation):
    both = [done("dqnavg-im", executor, participation) for executor in ("loop", "stacked")]
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-10


def test_resume_after_an_interruption_to_the_bit(tmp_path):
    settings = ExperimentConfig.from_options({**TINY, "method": "dqnavg-im", "rounds": 6})
    whole = run(settings, tmp_path / "whole")
    assert timeless(cut_and_resumed(settings, tmp_path / "cut", 3)) == timeless(whole)


def test_the_command_and_a_task_without_agents(tmp_path, capsys):
    command = (
        "run --task pendulum --method dqnavg-im --agents 2 --rounds 1 --epochs 20 --width 8 "
        "--episodes 1 --quiet"
    )
    assert main([*command.split(), "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["global"]["return"] < 0
    assert (
        main(
            [*"run --task synthetic --method dqnavg-im --quiet --out".split(), str(tmp_path / "no")]
        )
        == 2
    )
    assert "dqnavg-im trains deep agents" in capsys.readouterr().err
