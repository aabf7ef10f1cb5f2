"""Shared representations through the contract, run folder and command line."""

import json

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.environments import linear_mdp
from equipoise.environments.tabular_mdp import planted_mdps
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import run
from equipoise.methods import all_methods, find_method
from equipoise.records.rounds import Bytes
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers import cut_and_resumed, largest_difference, simulate, timeless

METHODS = {
    "linear-td": "v",
    "fedtd": "v",
    "pfedtd-rep": "v",
    "linear-q": "q",
    "fedq": "q",
    "pfedq-rep": "q",
}
SMALL = {
    "task": "planted",
    "agents": 5,
    "states": 8,
    "actions": 3,
    "rank": 2,
    "planted_rank": 2,
    "seed": 3,
}
RATES = {"alpha0": 0.1, "beta0": 0.2, "t0": 10.0, "local_steps": 4}


def built(method, **options):
    settings = ExperimentConfig.from_options(
        {**SMALL, **RATES, "method": method, "model": METHODS[method], **options}
    )
    return settings, build_task(settings)


def simulated(method, rounds=6, **options):
    settings, task = built(method, **options)
    return simulate(settings.method, task, rounds, seed=3)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_loop_equals_stacked(name, participation):
    both = []
    for executor in ("loop", "stacked"):
        settings, task = built(name)
        both.append(simulate(settings.method, task, 5, executor, participation))
    assert largest_difference(both[0].state_dict(), both[1].state_dict()) < 1e-12
    assert both[0].logs[-1].bytes == both[1].logs[-1].bytes


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", ["pfedtd-rep", "fedtd", "pfedq-rep", "fedq"])
def test_compiled_rounds_are_the_rounds_of_the_contract(name, relative):
    _, task = built(name)
    fade = 1 + np.arange(30) / 10.0
    rates = np.stack([0.1 / fade ** (2 / 3), 0.2 / fade], axis=1)
    kind = {"share_theta": name in ("fedtd", "fedq"), "relative": relative}
    phis, thetas = linear_mdp.run_federated(task.problem, 3, rates, 4, np.array([1, 30]), **kind)
    for mark, rounds in enumerate((1, 30)):
        done = simulated(name, rounds, relative=relative)
        torch.testing.assert_close(done.params["phi"], phis[mark], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            done.store.local_params["theta"], thetas[mark], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(
    ("one", "other", "alone"),
    [("pfedtd-rep", "fedtd", "linear-td"), ("pfedq-rep", "fedq", "linear-q")],
)
def test_one_agent_learns_alone_whatever_is_shared(one, other, alone):
    models = [simulated(name, 20, agents=1).store.local_params for name in (one, other, alone)]
    assert largest_difference(models[0], models[2]) < 1e-10
    assert largest_difference(models[1], models[2]) < 1e-10


def test_a_frozen_representation_is_td_on_fixed_features():
    settings, task = built("pfedtd-rep", beta0=0.0, t0=float("inf"))
    done = simulate(settings.method, task, 6, seed=3)
    ids, start = torch.arange(5), task.init_params(3)
    torch.testing.assert_close(done.params["phi"], start["phi"], rtol=1e-12, atol=1e-12)
    theta = torch.zeros(5, 2, dtype=torch.float64)
    phi = start["phi"].expand(5, -1, -1).contiguous()
    where, taken = torch.from_numpy(task.problem.initial_states(3)), np.zeros(5, np.int64)
    for _ in range(6):  # four steps learn, the fifth, the representation's, passes
        for steps, rate in ((4, 0.1), (1, 0.0)):
            every = torch.full((5,), steps), torch.full((5,), rate, dtype=torch.float64)
            keys, sq_td_error = (
                task.problem.rng_keys(3, ids.numpy(), taken),
                torch.zeros(5, dtype=torch.float64),
            )
            how = keys, taken, *every, (False, True, False)
            linear_mdp.advance(task.problem, ids.numpy(), phi, theta, where, sq_td_error, *how)
            taken += steps
    torch.testing.assert_close(done.store.local_params["theta"], theta, rtol=1e-10, atol=1e-12)


def test_two_rounds_by_definition():
    settings, task = built("pfedtd-rep", agents=2, relative=False)
    method, ids, when = settings.method, torch.arange(2), RngContext(3, 1, task.info.training)
    first = task.init_params(3)
    held = {name: value.expand(2, *value.shape).clone() for name, value in first.items()}
    source, shared = task.init_data_state(ids), first["phi"]
    for t in range(2):
        phi = linear_mdp.orthonormal(shared)
        theta = torch.stack(
            [
                torch.linalg.lstsq(phi, (held["phi"][k] @ held["theta"][k])[:, None]).solution[:, 0]
                for k in ids
            ]
        )
        held = {"phi": phi.expand(2, -1, -1), "theta": theta}
        for block, steps, rate in (
            ("theta", 4, 0.1 / (1 + t / 10) ** (2 / 3)),
            ("phi", 1, 0.2 / (1 + t / 10)),
        ):
            every = torch.full((2,), steps), torch.full((2,), rate, dtype=torch.float64)
            held, _, source = task.fit_stack(
                ids, LocalTrainRequest(held, *every, trainable=(block,)), source, when
            )
        shared = held["phi"].mean(0)
    done = simulate(method, task, 2, seed=3)
    torch.testing.assert_close(done.params["phi"], shared, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        done.store.local_params["theta"], held["theta"], rtol=1e-10, atol=1e-12
    )


def test_who_shares_what():
    phi, theta, agents = 8 * 8 * 2, 8 * 2, 5
    for name, size in (("linear-td", 0), ("pfedtd-rep", phi), ("fedtd", phi + theta)):
        log = simulated(name, 1).logs[0]
        assert log.bytes == Bytes(agents * size, agents * size)
        assert bool(log.global_) == (name == "fedtd")


def test_identical_environments_make_one_value_function_right_for_all():
    problem = linear_mdp.LinearProblem(planted_mdps(1, np.full(5, 0.5), 8, 1, 3, 2, 0.8), 2)
    fade = 1 + np.arange(20000) / 1000.0
    rates = np.stack([0.05 / fade ** (2 / 3), 0.3 / fade], axis=1)
    phis, thetas = linear_mdp.run_federated(
        problem, 0, rates, 10, np.array([1, 20000]), share_theta=True
    )
    errors = linear_mdp.value_error(
        torch.einsum("msd,mnd->mns", phis, thetas), problem.true_values
    ).mean(1)
    assert errors[1] < 0.1 < 0.8 < errors[0]


def test_sharing_the_representation_beats_learning_alone_and_one_value_function_for_all():
    """Also the summary's first experiments: an agent alone learns, two agents stay themselves."""
    fade = 1 + np.arange(4000) / 500.0
    rates, marks = np.stack([0.05 / fade ** (2 / 3), 0.3 / fade], axis=1), np.array([10, 4000])

    def error(mdps, share=False):
        problem = linear_mdp.LinearProblem(mdps, 2)
        phis, thetas = linear_mdp.run_federated(problem, 0, rates, 10, marks, share)
        values = torch.einsum("msd,mnd->mns", phis, thetas)
        distances = linear_mdp.subspace_distance(phis, problem.best_subspace)
        return linear_mdp.value_error(values, problem.true_values).mean(1), distances

    mdps = planted_mdps(0, (np.arange(16) + 0.5) / 16, 20, 1, 3, 2, 0.8)
    shared, distances = error(mdps)
    one_for_all, _ = error(mdps, share=True)
    alone = torch.stack([error([mdp])[0] for mdp in mdps]).mean(0)
    assert distances[1] < 0.2 < 0.9 < distances[0]
    assert shared[1] < 0.5 * alone[1]
    assert alone[1] < 0.6 * alone[0]
    assert one_for_all[1] > 0.5
    two, _ = error([mdps[0], mdps[-1]])
    assert two[1] < 0.4


def test_same_seed_same_run_other_seed_another():
    a, b = simulated("pfedq-rep"), simulated("pfedq-rep")
    assert largest_difference(a.state_dict(), b.state_dict()) == 0
    c = simulated("pfedq-rep", seed=4)
    assert largest_difference(a.params, c.params) > 0


def test_agents_may_take_different_numbers_of_steps():
    _, task = built("linear-td")
    ids = torch.arange(3)
    start = {name: value.expand(3, *value.shape) for name, value in task.init_params(0).items()}

    def go(steps):
        fit = LocalTrainRequest(
            start,
            torch.tensor(steps),
            torch.full((3,), 0.1, dtype=torch.float64),
            trainable=("phi", "theta"),
        )
        return task.fit_stack(
            ids, fit, task.init_data_state(ids), RngContext(0, 1, task.info.training)
        )

    mixed, few, many = go([5, 9, 5]), go([5, 5, 5]), go([9, 9, 9])
    for k, same in enumerate((few, many, few)):
        assert torch.equal(mixed[0]["theta"][k], same[0]["theta"][k])
    assert mixed[2]["taken"].tolist() == [5, 9, 5]


def test_generic_methods_run_too():
    _, task = built("linear-td")
    for name in ("fedavg", "fedper", "local"):
        assert simulate(find_method(name)(), task, 2).logs[-1].trained.error > 0


def test_an_agent_that_diverged_is_dropped_not_fatal():
    done = simulated("linear-td", 40, beta0=50.0, t0=float("inf"), relative=False)
    assert done.logs[-1].dropped


@pytest.mark.parametrize("task", ["planted", "windy-cliff"])
@pytest.mark.parametrize("name", ["pfedtd-rep", "pfedq-rep"])
def test_the_command(task, name, tmp_path):
    out = tmp_path / "run"
    command = (
        f"run --method {name} --task {task} --model {METHODS[name]} --agents 4 --rounds 5 --quiet"
    )
    assert main([*command.split(), "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    scores = {"error", "visited", "subspace", "std", "p10"} | (
        {"regret"} if name == "pfedq-rep" else set()
    )
    assert set(summary["personal"]) == scores
    assert summary["global"] is None
    assert 0 <= summary["floor"] < 0.3
    assert (out / "models" / "shared.safetensors").exists()


def test_compare_and_report(tmp_path):
    pytest.importorskip("plotly")
    command = (
        "compare --methods linear-td,fedtd,pfedtd-rep --task planted --agents 3 --states 6 "
        "--rounds 4 --seeds 2 --quiet"
    )
    assert main([*command.split(), "--out", str(tmp_path / "all")]) == 0
    page = next((tmp_path / "all").glob("*.html")).read_text()
    assert "Subspace distance" in page
    assert "max |Q" not in page


def test_resume_after_an_interruption_to_the_bit(tmp_path):
    settings, _ = built("pfedq-rep", rounds=10)
    whole = run(settings, tmp_path / "whole")
    resumed = cut_and_resumed(settings, tmp_path / "cut", 5)
    assert timeless(resumed) == timeless(whole)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"local_steps": 0}, "local_steps is 0: must be a whole number of at least 1"),
        ({"alpha0": 0.0}, "alpha0 is 0.0: must be a number above 0"),
        ({"beta0": -0.1}, "beta0 is -0.1: must be a number of at least 0"),
        ({"t0": 0.0}, "t0 is 0.0: must be a number above 0 or inf"),
        ({"rank": 9}, "rank is 9"),
        ({"planted_rank": 0}, "planted_rank is 0"),
        ({"agents": 0}, "agents is 0"),
        ({"states": 0}, "at least 1"),
        ({"branching": 9}, "branching is 9"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, words):
    with pytest.raises(UsageError, match=words):
        built("pfedtd-rep", **options)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--method pfedtd-rep --task synthetic", "learns values with linear features"),
        ("--method pfedq-rep --task planted", "give --model q"),
        ("--method linear-td --task planted --model q", "give --model v"),
        ("--method fedprox --task planted", "fedprox trains on a loss"),
        ("--method fedasynq-eq --task planted", "trains on a loss"),
        ("--method linear-td --task garnet", "trains on a loss"),
    ],
)
def test_wrong_pairs_are_refused(command, words, tmp_path, capsys):
    assert main(["run", *command.split(), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert words in capsys.readouterr().err


def test_methods_are_found():
    assert set(METHODS) <= set(all_methods())
