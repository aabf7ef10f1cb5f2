"""Late clients: the aggregate by hand, nobody late, what is on its way after a resume, refusals."""

import pytest
import torch

from equipoise.contract import Training
from equipoise.core.errors import UsageError
from equipoise.methods import find_method
from equipoise.runs.running import _Running, build_task, run
from equipoise.runtime.choose import Choice
from equipoise.settings.config import Settings
from equipoise.wrappers.late import delayed, late_clients
from helpers import cut_and_resumed, largest_difference, simulate, small_task, timeless
from helpers_quadratic import Quadratic

HALVING = Training(epochs=1, lr=0.5, batch_size=1)  # with a = 1 a step goes halfway: y_i = (w + b_i) / 2


def globals_of(method, task, rounds):
    from equipoise.runtime.round import Schedule, Simulation

    method.check(task, task.training)
    simulation = Simulation(method, task, task.training, Schedule(rounds, 0, 1.0, "stacked", 1, True))
    found = []
    for _ in range(rounds):
        log = simulation.round()
        found.append((float(simulation.params["w"][0]), log.notes["late"]))
    return found


def test_one_of_two_clients_is_late_by_one_round():
    slow = int(late_clients(0, 2, 0.5)[0])
    b = [8.0, 8.0]
    b[slow] = -4.0
    task = Quadratic([1.0, 1.0], [[b[0]], [b[1]]], HALVING)
    # round: on time (w + 8)/2, late ((w of the round before) - 4)/2
    # 1: 4 alone.  2: ((4+8)/2 + (0-4)/2) / 2 = (6 - 2)/2 = 2.  3: ((2+8)/2 + (4-4)/2) / 2 = 2.5
    # 4: ((2.5+8)/2 + (2-4)/2) / 2 = (5.25 - 1)/2 = 2.125
    found = globals_of(delayed(find_method("fedavg")(), 1, 0.5), task, 4)
    assert found == [(4.0, 0), (2.0, 1), (2.5, 1), (2.125, 1)]


def test_everybody_late_by_two_rounds():
    """Nothing comes in rounds 1 and 2; then each round takes the mean of (w + b)/2 at the w of two rounds before."""
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    found = globals_of(delayed(find_method("fedavg")(), 2, 1.0), task, 7)
    # w0 = w1 = w2 = 0; w3 = w4 = w5 = (0 + 2)/2 = 1; w6 = w7 = (1 + 2)/2 = 1.5
    assert found == [(0.0, 0), (0.0, 0), (1.0, 2), (1.0, 2), (1.0, 2), (1.5, 2), (1.5, 2)]


def test_momentum_goes_on_in_the_base():
    """FedAvgM keeps its velocity through rounds in which nothing comes."""
    task = Quadratic([1.0, 1.0], [[8.0], [-4.0]], HALVING)
    late = simulate(delayed(find_method("fedavgm")(), 2, 1.0), task, 3)
    plain = simulate(find_method("fedavgm")(), task, 1)
    assert largest_difference(late.params, plain.params) == 0
    assert largest_difference(late.server_state["base"], plain.server_state) == 0


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedavgm", "ditto"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_with_nobody_late_it_is_the_method_to_the_bit(name, participation):
    method = find_method(name)()
    assert delayed(method, 0, 1.0) is method
    task = small_task()
    same = simulate(delayed(method, 3, 0.01), task, 4, participation=participation)  # 1 % of 6 clients is nobody
    plain = simulate(method, task, 4, participation=participation)
    assert largest_difference(same.params, plain.params) == 0
    assert largest_difference(same.store.local, plain.store.local) == 0


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_cohorts_that_differ(executor):
    """With half of the clients drawn in each round, whoever is late arrives with the cohort of a later round."""
    task = small_task()
    end = simulate(delayed(find_method("fedavg")(), 2, 0.5), task, 6, executor, 0.5)
    slow = set(late_clients(0, 6, 0.5).tolist())
    cohorts = [log.ids for log in end.logs]
    for t, log in enumerate(end.logs):
        assert log.notes["late"] == (len(slow & set(cohorts[t - 2])) if t >= 2 else 0)
    assert [int(key) for key in end.server_state["on_the_way"]] == [7, 8]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg", "task": "synthetic", "clients": 6, "samples": 40},
        {"method": "pfeddqn-rep", "task": "cartpole", "agents": 3, "width": 8, "learn_after": 10, "epochs": 10},
        {"method": "fedasynq-im", "task": "two-state"},
    ],
    ids=lambda options: options["task"],
)
def test_what_is_on_its_way_survives_a_resume(options, tmp_path):
    settings = Settings.of({**options, "rounds": 8, "delay": 2, "late": 0.5, "participation": 0.7})
    whole = run(settings, tmp_path / "whole")
    resumed = cut_and_resumed(settings, tmp_path / "cut", 4)
    assert timeless(resumed) == timeless(whole)
    plain = run(Settings.of({**settings.flat, "delay": 0}), tmp_path / "plain")
    assert plain.received != whole.received


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": -1}, "must be a whole number of at least 0"),
        ({"delay": 1, "late": 0.0}, "late is 0.0"),
        ({"delay": 1, "late": 1.5}, "late is 1.5"),
        ({"delay": 1, "dp_clip": 1.0}, "not offered with dp_clip"),
        ({"delay": 1, "method": "scaffold"}, "scaffold is not offered with delay"),
        ({"delay": 1, "method": "feddyn"}, "feddyn is not offered with delay"),
        ({"delay": 1, "method": "fedpolicy", "model": "mlp"}, "fedpolicy is not offered with delay"),
        ({"delay": 1, "method": "page"}, "page is not offered with delay"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(UsageError, match=words):
        build_task(Settings.of(options))


def test_clients_elsewhere_are_late_by_themselves(tmp_path):
    settings = Settings.of({"delay": 1})
    with pytest.raises(UsageError, match="delay is for simulations"):
        _Running(settings, build_task(settings), None, Choice("stacked"), lambda *_: None)


def test_who_is_late_follows_from_the_seed():
    assert len(late_clients(1, 10, 0.3)) == 3
    assert torch.equal(late_clients(1, 10, 0.3), late_clients(1, 10, 0.3))
    assert not torch.equal(late_clients(1, 10, 0.3), late_clients(2, 10, 0.3))
