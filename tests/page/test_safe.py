"""Safe agents: whatever an agent does, its trials cost no more than the bound, and losing moves reach nobody."""

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.contract import Server
from equipoise.core.errors import UsageError
from equipoise.methods import safe
from equipoise.methods.fedpolicy.joint import Joint
from equipoise.methods.page import shared
from equipoise.methods.page.page import Page
from helpers import largest_difference, simulate, small_task

SAFE: dict[str, Any] = {"safe": True, "window": 0, "warmup": 2}
MANY = {"clients": 20}


def server(round: int = 1) -> Server:
    task = small_task()
    return Server(task, task.training, {}, {}, 0, round, 100)


def metrics(tried: list[bool], gains: list[float]) -> dict[str, Tensor]:
    """Of clients whose training lowered log loss by so much."""
    trained = torch.tensor(gains, dtype=torch.float64).neg().exp()
    return {"tried": torch.tensor(tried), "received_loss": torch.ones(len(gains)), "trained_loss": trained}


def test_a_trial_by_hand() -> None:
    """One client of four at a quarter: 0.1 worse than the others, so 0.25 * 0.1 less in the account."""
    tried, held = safe.choose(server(), safe.opened(), torch.arange(4))
    assert (int(tried.sum()), float(held["stake"])) == (1, 0.25)
    equal = torch.full((4,), 0.25, dtype=torch.float64)
    told = metrics([True, False, False, False], [0.2, 0.4, 0.3, 0.2])
    weights, lost = safe.judge(server(), held, told, equal)
    assert weights.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert float(lost["account"]) == pytest.approx(0.25 - 0.25 * 0.1)
    weights, won = safe.judge(server(), held, metrics([True, False, False, False], [0.5, 0.4, 0.3, 0.2]), equal)
    assert torch.equal(weights, equal)
    assert float(won["account"]) == pytest.approx(0.25 + 0.25 * 0.2)


@pytest.mark.parametrize("clients", [1, 2, 7, 100])
@pytest.mark.parametrize("behaviour", ["worst", "random", "turncoat", "diverging"])
def test_no_agent_costs_more_than_the_bound(clients: int, behaviour: str) -> None:
    """The sum of stake times difference, at every time since the start, and since the best time."""
    held, ids, rng = safe.opened(), torch.arange(clients), torch.Generator().manual_seed(1)
    total = best = 0.0
    for round in range(1, 400):
        s = server(round)
        tried, held = safe.choose(s, held, ids)
        gains = torch.rand(clients, generator=rng).double()
        move = {
            "worst": -5.0,
            "random": float(4 * torch.rand(1, generator=rng) - 2),
            "turncoat": 1.0 if round < 50 else -5.0,
            "diverging": float("nan"),
        }[behaviour]
        gains = torch.where(tried, gains + move, gains)
        told = metrics(tried.tolist(), gains.tolist())
        better = safe.difference(**told)
        total += float(held["stake"] * better)
        best = max(best, total)
        weights, held = safe.judge(s, held, told, torch.full((clients,), 1 / clients, dtype=torch.float64))
        assert float(weights.sum()) == pytest.approx(1.0)
        if bool(tried.any()) and float(better) <= 0:
            assert float(weights[tried].max()) == 0.0
        assert total >= -safe.START - 1e-12
        assert total >= best - safe.MOST - 1e-12
        assert 1 - float(held["stake"]) >= 1 - safe.MOST


def test_replies_of_one_side_alone_teach_nothing_and_are_used() -> None:
    held = safe.choose(server(), safe.opened(), torch.arange(4))[1]
    for tried in (True, False):
        weights, after = safe.judge(server(), held, metrics([tried], [-3.0]), torch.ones(1).double())
        assert weights.tolist() == [1.0]
        assert torch.equal(after["account"], held["account"])


def hostile(c: Any, config: Any, player: Any, observed: Tensor, spread: float) -> tuple[Tensor, Any]:
    """An agent that always asks for the least: half of the epochs at a tenth of the rate."""
    return -torch.ones_like(player["action"]), player


def test_a_hostile_agent_moves_nobody_but_those_it_can_pay_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "turn", hostile)
    task = small_task(**MANY)
    rule = simulate(Page(control="zero", adapt="alpha,eta", window=0), task, 12)
    free = simulate(Page(adapt="alpha,eta", window=0), task, 12)
    held = simulate(Page(adapt="alpha,eta", **SAFE), task, 12)
    lost = sum(max(0.0, -log.notes["better"]) * sum(log.notes["tried"]) / 20 for log in held.logs)
    assert 0 < lost <= safe.START
    shares = [sum(log.notes["tried"]) / 20 for log in held.logs]
    assert shares[0] == 0.25
    assert shares[-1] < shares[0]
    loss = {
        name: float(task.evaluate_server({k: v.unsqueeze(0) for k, v in sim.params.items()}, "public")["loss"])
        for name, sim in (("rule", rule), ("free", free), ("held", held))
    }
    assert loss["free"] > 1.1 * loss["rule"]  # or nothing would have been at stake
    assert loss["held"] < 1.02 * loss["rule"]


def test_a_lost_trial_leaves_the_rules_aggregate_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "turn", hostile)
    task = small_task(**MANY)
    rule, held = (
        simulate(Page(adapt="alpha,eta", window=0, **how), task, 1) for how in ({"control": "zero"}, {"safe": True})
    )
    tried = torch.tensor(held.logs[0].notes["tried"], dtype=torch.bool)
    assert held.logs[0].notes["better"] < 0
    n = task.sizes(torch.arange(20)).double().masked_fill(tried, 0)
    mean = {name: torch.tensordot(n / n.sum(), w, 1) for name, w in rule.store.local.items()}
    assert largest_difference(held.params, mean) < 1e-12


def test_the_servers_move_is_kept_only_where_public_data_say_so() -> None:
    task = small_task()
    for control in ("random", "learned"):
        sim = simulate(Page(control=control, adapt="p", **SAFE), task, 1)
        zero = simulate(Page(control="zero", adapt="p", window=0), task, 1)
        ours, rule = (
            float(task.evaluate_server({k: v.unsqueeze(0) for k, v in one.params.items()}, "public")["loss"])
            for one in (sim, zero)
        )
        assert ours <= rule


@pytest.mark.parametrize("agents", ["shared", "each"])
def test_safe_games_run_alike_on_both_executors(agents: str) -> None:
    loop, stacked = (
        simulate(Page(agents=agents, **SAFE), small_task(), 14, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state(), stacked.state()) < 1e-7


@pytest.mark.parametrize(
    ("options", "words"),
    [({"reading": "paper"}, "knows no such rule"), ({"adapt": "alpha", "base": "scaffold"}, "sound under its own")],
)
def test_what_has_no_rule_or_no_free_weights_is_refused(options: dict[str, Any], words: str) -> None:
    task = small_task()
    with pytest.raises(UsageError, match=words):
        Page(safe=True, **options).check(task, task.training)


def test_a_joint_game_can_be_safe_too() -> None:
    sim = simulate(Joint(base="page", base_options="safe=true window=0 warmup=1"), small_task(), 8)
    assert sum(sim.logs[0].notes["tried"]) == 1  # a quarter of six clients, rounded down
    assert all(0 <= log.notes["account"] <= safe.MOST for log in sim.logs)
