"""Variants of PAGE's game: states, actions and rewards with relative actions, and controls."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies.readings import Absolute, FreeWeights, RewardLevel
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.page.page import ERROR_OFFSET, MIN_LOSS, VARIANTS, Page
from helpers import largest_difference, simulate, small_task

SHORT: dict[str, Any] = {"warmup": 2, "window": 0}
IDS = torch.arange(6)


def everybody(tree: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.expand(6, *value.shape) for name, value in tree.items()}


def log_gain(before: Tensor, after: Tensor) -> Tensor:
    return before.clamp(min=MIN_LOSS).log() - after.clamp(min=MIN_LOSS).log()


@pytest.mark.parametrize("agents", ["shared", "per-client"])
def test_states_rewards_and_weights_around_the_configured_values_by_hand(agents: str) -> None:
    task = small_task()
    sim = simulate(Page(agents=agents, **SHORT), task, 1)
    before = task.evaluate_stack(IDS, everybody(sim.initial_params), "val")
    trained = task.evaluate_stack(IDS, sim.store.local_params, "val")
    error = 1 - task.evaluate_stack(IDS, everybody(sim.initial_params), "train")["acc"].double()
    held = sim.store.state["agent"]
    last = torch.zeros(6, dtype=torch.float64)  # one round asked for: none is left
    assert (
        largest_difference(
            held["last_state"], torch.stack([before["acc"], before["loss"].log(), last], 1)
        )
        < 1e-12
    )
    assert (
        largest_difference(held["last_reward"], log_gain(before["loss"], trained["loss"])) < 1e-12
    )

    follower = sim.server_state["server_agent"]
    acc = trained["acc"].double()
    seen = torch.stack([acc.mean(), acc.std(correction=0), error.mean(), last[0]])
    assert largest_difference(follower["last_state"], seen) < 1e-12
    kappa = 0.5 + 0.5 * float(follower["last_action"])
    p = task.num_examples(IDS).double() * (error + ERROR_OFFSET) ** kappa
    assert sim.logs[0].logged["p"] == pytest.approx((p / p.sum()).tolist(), rel=1e-5)
    both = {name: torch.stack([old, sim.params[name]]) for name, old in sim.initial_params.items()}
    assert float(follower["last_reward"]) == pytest.approx(
        float(log_gain(*task.evaluate_server(both, "public")["loss"]))
    )


def test_a_shared_agent_learns_from_what_a_client_gained_more_than_the_others() -> None:
    for kind, mean in ((Page, 0.0), (RewardLevel, None)):
        sim = simulate(kind(**SHORT), small_task(), 1)
        paid = sim.store.state["agent"]["last_reward"]
        sim.run_round()
        learned_from = sim.server_state["client_agent"]["buffer"]["reward"][:6]
        assert (
            largest_difference(learned_from, paid - paid.mean() if mean is not None else paid)
            < 1e-12
        )
        assert float(paid.std()) > 0.01


def test_levels_are_paid_as_in_the_paper_and_looked_ahead_for() -> None:
    task = small_task()
    sim = simulate(RewardLevel(**SHORT), task, 1)
    f = task.evaluate_stack(IDS, sim.store.local_params, "val")["loss"].double()
    p = torch.tensor(sim.logs[0].logged["p"], dtype=torch.float64)
    assert (
        largest_difference(sim.store.state["agent"]["last_reward"], 1 / f.clamp(min=MIN_LOSS))
        < 1e-12
    )
    assert float(sim.server_state["server_agent"]["last_reward"]) == pytest.approx(
        float(1 / (p @ f)), rel=1e-4
    )
    assert {name: variant.gamma for name, variant in VARIANTS.items() if variant.gamma == 0} == {
        "relative": 0.0
    }
    assert [kind().variant.gamma for kind in (FreeWeights, Absolute, RewardLevel)] == [
        0.0,
        0.0,
        0.99,
    ]


def test_zero_is_what_is_configured() -> None:
    """Free weights at zero are FedAvg's own; of one exponent it is one half."""
    task = small_task()
    plain = simulate(FedAvg(), task, 3)
    free, half = (simulate(kind(control="zero", **SHORT), task, 3) for kind in (FreeWeights, Page))
    assert largest_difference(free.params, plain.params) < 1e-12
    assert free.logs[-1].decisions == half.logs[-1].decisions == plain.logs[-1].decisions
    error = 1 - task.evaluate_stack(IDS, everybody(half.initial_params), "train")["acc"].double()
    p = task.num_examples(IDS).double() * (error + ERROR_OFFSET) ** 0.5
    assert half.logs[0].logged["p"] == pytest.approx((p / p.sum()).tolist(), rel=1e-5)
    assert "client_agent" not in half.server_state
    assert "server_agent" not in half.server_state


RANDOM: dict[str, Any] = {**SHORT, "control": "random", "max_epochs": 6}


@pytest.mark.parametrize(
    ("method", "most"),
    [
        (Page(**RANDOM), 2 * 2),
        (FreeWeights(**RANDOM), 2 * 2),
        (Absolute(**RANDOM), 6),
        (Page(**RANDOM, reading="paper"), 6),
    ],
)
def test_random_actions_fill_the_range_and_nothing_is_learned(method: Page, most: int) -> None:
    task = small_task()
    assert task.info.training.epochs == 2
    sim = simulate(method, task, 10)
    decisions = [log.decisions for log in sim.logs if log.decisions]
    assert {epochs for chosen in decisions for epochs in chosen["epochs"]} == set(
        range(1, most + 1)
    )
    assert len({tuple(log.logged["p"]) for log in sim.logs}) == 10
    assert "agent" not in sim.store.state


def test_bias_to_the_server_adds_to_the_exponent() -> None:
    task = small_task()
    plain, biased = (
        simulate(Page(control="zero", bias=bias, **SHORT), task, 1) for bias in ("1:1", "10:1")
    )
    error = 1 - task.evaluate_stack(IDS, everybody(plain.initial_params), "train")["acc"].double()
    p = torch.tensor(plain.logs[0].logged["p"]).double() * (error + ERROR_OFFSET)
    assert biased.logs[0].logged["p"] == pytest.approx((p / p.sum()).tolist(), rel=1e-4)


def test_agents_learn_after_a_tenth_of_the_run_at_most() -> None:
    assert [Page().learning_starts(rounds) for rounds in (50, 300, 900)] == [5, 30, 35]
    assert Page(reading="paper").learning_starts(50) == 35
