"""The policy lookahead: two trainings by hand, what is kept of them, what they cost, and that all executors agree."""

from typing import Any

import pytest
import torch

from equipoise.methods.fedpolicy import lookahead
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.policies import FULL_ROUNDS
from equipoise.methods.fedpolicy.probes import LOSS_PART, score
from equipoise.runtime.round import Schedule, Simulation
from helpers import largest_difference, simulate, small_task

CHOOSING = FULL_ROUNDS + 2  # the first round with a choice


def first_choices(policy: str) -> tuple[Simulation, list[Any]]:
    """The first rounds of a run of forty, up to that in which clients choose for the first time, and their logs."""
    task = small_task()
    sim = Simulation(FedPolicy(policy=policy), task, task.training, Schedule(40, 0, 1.0, "stacked", 1, True))
    return sim, [sim.round() for _ in range(CHOOSING)]


def test_scores_of_two_parts_become_as_far_apart_as_their_trained_models() -> None:
    scores = torch.tensor([0.5, 0.1, 0.3, 0.9], dtype=torch.float64)
    ours, theirs = (
        score(torch.tensor(0.6).double(), torch.tensor(1.0)),
        score(torch.tensor(0.8).double(), torch.tensor(1.0)),
    )
    assert float(ours) == pytest.approx(0.4 + LOSS_PART)
    after = lookahead._corrected(scores, torch.tensor(1), torch.tensor(2), ours - theirs)
    assert after.tolist() == pytest.approx([0.5, 0.3, 0.1, 0.9])
    assert int(lookahead.runner_up(-scores, torch.tensor(1))) == 2


def test_it_is_learned_until_clients_choose_and_costs_steps_but_no_bytes() -> None:
    (_, plain), (_, ours) = (first_choices(policy) for policy in ("learned", "lookahead"))
    assert [log.bytes for log in ours] == [log.bytes for log in plain]
    steps = [log.notes["gradients"] for log in ours]
    assert steps[1:-1] == [steps[0]] * (CHOOSING - 2)
    assert steps[-1] == [2 * taken for taken in steps[0]]
    for one, other in zip(plain[:-1], ours[:-1], strict=True):
        assert one.test == other.test


def test_the_better_of_two_trained_models_is_kept() -> None:
    """A client that chooses ends with what ``learned`` would have, or with another part that scores better."""
    (plain, one), (ours, other) = (first_choices(policy) for policy in ("learned", "lookahead"))
    ids = torch.arange(6)
    before, after = (
        score(*(value.double() for value in sim.task.merit(sim.task.evaluate_stack(ids, sim.store.local, "val"))))
        for sim in (plain, ours)
    )
    changed = torch.tensor(one[-1].notes["part"]) != torch.tensor(other[-1].notes["part"])
    assert bool(changed.any())  # or the test would see nothing
    assert bool((after[changed] < before[changed]).all())
    assert float((after - before)[~changed].abs().max()) < 1e-12


@pytest.mark.parametrize("options", [{}, {"base": "fedprox"}, {"copies": 3}])
def test_both_executors_agree(options: dict[str, Any]) -> None:
    method = FedPolicy(policy="lookahead", **options)
    loop, stacked = (simulate(method, small_task(), 14, executor) for executor in ("loop", "stacked"))
    assert largest_difference(loop.state(), stacked.state()) < 1e-7


def test_only_who_looks_ahead_decides_how_clients_train() -> None:
    assert "update" not in FedPolicy().decides
    assert "update" in FedPolicy(policy="lookahead").decides
    assert "update" in FedPolicy(base="fedprox").decides
