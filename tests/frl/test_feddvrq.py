"""Fed-DVR-Q: backups by hand, rounds by definition, and what the reference table is for."""

import json

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.environments import tabular_q
from equipoise.environments.tabular_mdp import garnet
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.records.rounds import Bytes
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate, timeless

SMALL = {
    "task": "garnet",
    "states": 4,
    "actions": 2,
    "branching": 3,
    "agents": 3,
    "sims": 2,
    "seed": 4,
}


def built(**options):
    settings = ExperimentConfig.from_options(
        {**SMALL, "method": "feddvrq", "iterations": 3, "batch": 2, "reference_batch": 5, **options}
    )
    return settings, build_task(settings)


def backup(task, tables, taken, samples):
    """Of all agents, after so many samples."""
    ids = np.arange(task.info.num_clients)
    return tabular_q.sampled_backup(
        task.generative_problem, ids, tables, np.full(task.info.num_clients, taken), 4, samples
    )


def everybody(table, agents=3):
    return np.broadcast_to(table, (agents, *table.shape)).copy()


def test_a_backup_is_the_mean_of_steps_of_fedsynq():
    """A step of FedSynQ at rate eta is (1 - eta) q + eta T(q) from one sample: the backup of n is
    the mean of n.
    """
    problem, eta = tabular_q.TabularProblem([garnet(1, 6, 3, 4)], 2), 0.25
    q = np.random.default_rng(0).normal(size=(2, 3, 6, 3))
    each, ids, none = [], np.arange(2), np.zeros((2, 3), np.int64)
    for taken in range(7):
        moved = q.copy()
        counts = np.zeros(q.shape, np.int64)
        tabular_q.advance(problem, ids, moved, counts, none, np.full(2, taken), 9, eta, 1)
        each.append((moved - (1 - eta) * q) / eta)
    found = tabular_q.sampled_backup(problem, ids, [q], np.zeros(2, np.int64), 9, 7)
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-12)


def test_both_tables_are_backed_up_by_the_same_samples():
    _, task = built()
    q, reference = (np.random.default_rng(i).normal(size=(3, 2, 4, 2)) for i in (0, 1))
    found = backup(task, [q, reference], 3, 6)
    np.testing.assert_allclose(
        found, backup(task, [q], 3, 6) - backup(task, [reference], 3, 6), atol=1e-12
    )
    assert not backup(task, [q, q], 0, 6).any()


def test_without_chance_it_is_damped_value_iteration():
    settings, task = built(branching=1)
    q = np.zeros((4, 2))
    for _ in range(8):
        q += 0.8 * (task.mdp.R + task.mdp.P @ (0.9 * q.max(axis=1)) - q)
    done = simulate(settings.method, task, 8, seed=4)
    np.testing.assert_allclose(done.params["q"].numpy(), np.stack([q, q]), rtol=1e-12)


def test_five_rounds_by_definition():
    """Two epochs: samples 5 and 20 for the references, batches of 2 in between."""
    settings, task = built()
    q, taken = np.zeros((2, 4, 2)), 0
    for round in range(5):
        if round % 3 == 0:
            samples = 5 * 4 ** (round // 3)
            reference, q_reference = q, backup(task, [everybody(q)], taken, samples).mean(0)
            target = q_reference
        else:
            samples = 2
            target = (
                backup(task, [everybody(q), everybody(reference)], taken, samples).mean(0)
                + q_reference
            )
        q, taken = 0.2 * q + 0.8 * target, taken + samples
    done = simulate(settings.method, task, 5, seed=4)
    np.testing.assert_allclose(done.params["q"].numpy(), q, rtol=1e-12)


def test_the_reference_travels_after_the_first_round_of_an_epoch():
    settings, task = built()
    table = 3 * 2 * 4 * 2 * 8
    logs = simulate(settings.method, task, 4).logs
    assert [log.bytes for log in logs] == [Bytes(table, down * table) for down in (1, 3, 3, 1)]


def test_fewer_errors_from_as_many_samples_than_fedsynq(tmp_path):
    """Both see every pair 872 times (4 agents); the plain learner at the rate that is best for it
    of five.
    """
    common = {**SMALL, "agents": 4, "sims": 20}
    refined = {
        "method": "feddvrq",
        "rounds": 100,
        "reference_batch": 8,
        "batch": 2,
        "eval_every": 100,
    }
    error = run(ExperimentConfig.from_options({**common, **refined}), tmp_path / "refined").extra[
        "error"
    ]
    plain, problem = [], tabular_q.TabularProblem([garnet(4, 4, 2, 3)], 4)
    for eta in (0.02, 0.05, 0.1, 0.2, 0.4):
        state = tabular_q.init_state(problem, 20, 4, False)
        for _ in range(109):
            tabular_q.run_local_steps(problem, state, 4, eta, 8)
            tabular_q.synchronise(state, "equal", eta)
        plain.append(tabular_q.normalised_errors(state.table, problem.mdp).mean())
    assert error < 0.75 * min(plain)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_loop_equals_stacked(participation):
    both = []
    for executor in ("loop", "stacked"):
        settings, task = built(perturbation=0.3)
        both.append(simulate(settings.method, task, 5, executor, participation))
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-14


def test_resume_after_an_interruption_to_the_bit(tmp_path):
    settings, _ = built(rounds=8)
    whole = run(settings, tmp_path / "whole")
    assert timeless(cut_and_resumed(settings, tmp_path / "cut", 5)) == timeless(whole)


def test_the_command(tmp_path, capsys):
    command = (
        "run --task frozen-lake --method feddvrq --agents 3 --sims 2 --rounds 30 --quiet".split()
    )
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["error"] < 0.1
    assert (
        main(
            [
                *"run --task synthetic --method feddvrq --quiet --out".split(),
                str(tmp_path / "other"),
            ]
        )
        == 2
    )
    assert "feddvrq learns tables of an MDP" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["iterations", "batch", "reference_batch"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} is 0: must be a whole number of at least 1"):
        built(**{name: 0})
