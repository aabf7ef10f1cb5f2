"""Differential privacy where clients are elsewhere: the same maths, nothing beside the model, a
budget of one's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from equipoise.flower import codec
from equipoise.privacy.accountant import gaussian_epsilon
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.wrappers.differential_privacy import secret_normal, with_differential_privacy
from flower.test_remote import ROUNDS, SUPERVISED, Here, federate
from helpers import largest_difference, simulate, small_task

PRIVACY = PrivacyConfig(0.5, 2.0)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedala", "dapfl"])
def test_remote_equals_loop_to_the_bit_under_privacy(
    name: str, participation: float, tmp_path: Path
) -> None:
    method, task = SUPERVISED[name](), small_task("mlp")
    shielded = with_differential_privacy(method, PRIVACY)
    loop = simulate(shielded, task, ROUNDS, "loop", participation)
    remote = federate(shielded, task, Here(method, task, tmp_path, privacy=PRIVACY), participation)
    for _ in range(ROUNDS):
        assert not remote.run_round().absent
    assert largest_difference(loop.params, remote.params) == 0


def test_nothing_but_the_model_leaves_a_client(tmp_path: Path) -> None:
    method, task = SUPERVISED["dapfl"](), small_task("mlp")
    wire = Here(method, task, tmp_path, privacy=PRIVACY)
    log = federate(with_differential_privacy(method, PRIVACY), task, wire).run_round()
    tree, about = codec.decode(wire.nodes[0].answer(wire.sent[0][0]))
    assert {name: value for name, value in tree.items() if name != "update"} == {
        "scores": {},
        "logged": {},
    }
    assert (tree["update"]["extra"], tree["update"]["metrics"]) == ({}, {})
    assert about["samples"] == 1
    assert not log.has_client_scores
    assert log.global_.acc >= 0


def test_asking_twice_does_not_reveal_the_noise(tmp_path: Path) -> None:
    """With noise from the seed, a server that asks again with another model could subtract one
    reply from another.
    """
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    wire = Here(method, task, tmp_path, privacy=PRIVACY, draw=secret_normal)
    federate(with_differential_privacy(method, PRIVACY), task, wire).run_round()
    one, other = (
        codec.decode(wire.nodes[0].answer(wire.sent[0][0]))[0]["update"]["params"] for _ in range(2)
    )
    gap = torch.cat([(one[name] - other[name]).flatten() for name in one])
    # Each has noise of 2.0 * 0.5, their difference that times sqrt(2).
    assert float(gap.std()) == pytest.approx(2**0.5, rel=0.25)


def test_a_client_s_own_limit_ends_its_part_and_is_named_in_the_log(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    two = gaussian_epsilon(2 * 4 / 2.0**2, 1e-5) + 1e-6
    run = federate(
        with_differential_privacy(method, PRIVACY),
        task,
        Here(method, task, tmp_path, privacy=PRIVACY, most_epsilon=two),
    )
    assert all(not run.run_round().absent for _ in range(2))
    log = run.run_round()
    assert len(log.absent) == task.info.num_clients
    assert "max-epsilon" in log.absent[0]


def test_a_client_with_a_limit_takes_no_part_in_a_run_without_noise(tmp_path: Path) -> None:
    method, task = SUPERVISED["fedavg"](), small_task("mlp")
    run = federate(method, task, Here(method, task, tmp_path, most_epsilon=1.0))
    assert "the run has no dp_noise" in run.run_round().absent[0]


def test_server_and_clients_choose_the_same_noise_for_a_limit(tmp_path: Path) -> None:
    limit = PrivacyConfig(dp_clip=0.5, max_epsilon=5.0)
    given = {
        "task": "synthetic",
        "clients": 6,
        "rounds": ROUNDS,
        "dp_clip": 0.5,
        "max_epsilon": 5.0,
    }
    settings = ExperimentConfig.from_options(given).with_chosen_noise(6, is_simulation=False)
    wire = Here(SUPERVISED["fedavg"](), small_task("mlp"), tmp_path, privacy=limit)
    assert {node.settings.privacy for node in wire.nodes} == {settings.privacy}
    assert {node.budget.privacy for node in wire.nodes} == {settings.privacy}
    run = federate(settings.wrapped_method, small_task("mlp"), wire)
    assert not run.run_round().absent
