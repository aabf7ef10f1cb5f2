"""PAGE: what its players see, choose and are paid, on runs small enough to recompute by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies.readings import FreeWeights, RewardLevel
from equipoise.core import ClientUpdate, LocalHParams, Server
from equipoise.methods.page import agents, page
from equipoise.methods.page import page as page_config
from equipoise.methods.page.page import CRITIC_LR, ERROR_OFFSET, MIN_LOSS, Page
from equipoise.rl import ddpg
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task

SHORT: dict[str, Any] = {"warmup": 2, "window": 0}
PAPER: dict[str, Any] = {**SHORT, "reading": "paper", "agents": "per-client"}
AUTHORS_CODE: dict[str, Any] = {**PAPER, "reading": "authors-code"}


def everybody(tree: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.expand(6, *value.shape) for name, value in tree.items()}


def test_actions_use_the_whole_range_and_clip_nothing() -> None:
    ends = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert page_config.absolute_lr(ends, 0.001, 0.1).tolist() == pytest.approx([0.001, 0.01, 0.1])
    assert page_config.absolute_epochs(ends, 20).tolist() == [1, 11, 20]
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 1000 - 1
    assert (
        torch.bincount(page_config.absolute_epochs(grid, 20))[1:].tolist() == [100] * 20
    )  # every number equally often
    p = page_config.softmax_weights(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    assert p.tolist() == pytest.approx([1 / 101, 100 / 101])


def test_around_what_is_configured_zero_leaves_it_alone_and_bounds_hold_unless_it_is_outside() -> (
    None
):
    ends = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    epochs, rate = torch.tensor(8), torch.tensor(0.02, dtype=torch.float64)
    assert page_config.relative_epochs(ends, epochs, 20).tolist() == [4, 8, 16]
    assert page_config.relative_epochs(ends, epochs, 10).tolist() == [4, 8, 10]
    assert page_config.relative_epochs(ends, torch.tensor(1), 20).tolist() == [1, 1, 2]
    assert page_config.relative_epochs(ends, torch.tensor(30), 20).tolist() == [15, 30, 30]
    assert page_config.relative_lr(ends, rate, 0.001, 0.1).tolist() == pytest.approx(
        [0.002, 0.02, 0.1]
    )
    assert page_config.relative_lr(ends, rate, 0.01, 1.0).tolist() == pytest.approx(
        [0.01, 0.02, 0.2]
    )
    assert page_config.relative_lr(
        ends, torch.tensor(0.5).double(), 0.001, 0.1
    ).tolist() == pytest.approx([0.05, 0.5, 0.5])
    assert page_config.error_exponent(ends).tolist() == [0.0, 0.5, 1.0]


def test_the_map_of_the_authors_code_means_the_corner_for_an_untrained_actor() -> None:
    """A fault that `authors-code` keeps: tanh = 0 is already the largest rate and 20 epochs."""
    start, zero = (
        LocalHParams(torch.tensor(1), torch.tensor(0.5, dtype=torch.float64)),
        torch.zeros(2, dtype=torch.float64),
    )
    expected = {"authors-code": (20, 0.1), "paper": (11, 0.01), "relative": (1, 0.5)}
    task, chosen = small_task(), torch.tensor(False)
    for reading, (epochs, lr) in expected.items():
        method = Page(reading=reading)
        train = method.to_hparams(method.stored_action(zero, chosen, task), start, task)
        assert (int(train.epochs), float(train.lr)) == (epochs, pytest.approx(lr))
    authors_code = Page(reading="authors-code")
    assert authors_code.stored_action(zero, chosen, task).tolist() == pytest.approx([20.0, 0.1])
    config = authors_code.agent_config(task)
    assert (config.normalise, config.critic_lr, config.noise_dt) == (False, 0.005, 0.01)


def test_the_range_of_rates_is_the_authors_of_the_task() -> None:
    task = small_task()
    expected = {
        "synthetic": (0.001, 0.1),
        "cifar100": (0.01, 0.2),
        "tinyimagenet": (0.001, 0.1),
        "shakespeare": (0.01, 1.0),
        "fmnist": (0.001, 0.1),
    }
    for name, lr_range in expected.items():
        task.info = replace(task.info, name=name)
        assert Page().lr_range(task) == lr_range
        assert Page(lr_max=0.5).lr_range(task) == (lr_range[0], 0.5)


def test_the_readings_of_the_paper_have_one_agent_for_each_client() -> None:
    shares = {reading: Page(reading=reading).shares_agent for reading in page.VARIANTS}
    assert shares == {"relative": True, "paper": False, "authors-code": False}
    assert Page(reading="paper", agents="shared").shares_agent


def test_states_and_rewards_on_the_training_rows_are_the_papers_D_i() -> None:
    method, task = Page(**PAPER, measured_on="train"), small_task(val_share=0.0)
    sim = simulate(method, task, 1)
    ids, held = torch.arange(6), sim.store.state["agent"]
    received = task.evaluate_stack(ids, everybody(sim.initial_params), "train")["acc"]
    trained = task.evaluate_stack(ids, sim.store.local_params, "train")["loss"]
    assert largest_difference(held["last_state"].squeeze(1), received) < 1e-12
    assert largest_difference(held["last_reward"], 1 / trained.clamp(min=MIN_LOSS)) < 1e-9


def test_rates_are_those_of_table_7() -> None:
    config = Page(agents="per-client").agent_config(small_task())
    assert (config.critic_lr, config.actor_lr, config.tau) == (0.01, 0.001, 0.01)
    task = small_task()
    task.info = replace(task.info, name="shakespeare")
    assert Page().agent_config(task).actor_lr == pytest.approx(0.0005)
    assert Page(agent_rate=0.2).agent_config(task).critic_lr == 0.2
    assert set(CRITIC_LR) == {"synthetic", "cifar100", "tinyimagenet", "shakespeare"}


def test_transitions_are_acc_of_received_decision_and_inverse_loss_of_trained() -> None:
    method, task = Page(**PAPER), small_task()
    sim = simulate(method, task, 1)
    ids = torch.arange(task.info.num_clients)
    received_acc = task.evaluate_stack(ids, everybody(sim.initial_params), "val")["acc"]
    held = sim.store.state["agent"]
    assert largest_difference(held["last_state"].squeeze(1), received_acc) < 1e-12
    trained_loss = task.evaluate_stack(ids, sim.store.local_params, "val")["loss"]
    assert largest_difference(held["last_reward"], 1 / trained_loss.clamp(min=MIN_LOSS)) < 1e-9
    assert (
        sim.logs[0].decisions["epochs"]
        == page_config.absolute_epochs(held["last_action"][:, 0], 20).tolist()
    )
    assert int(held["ddpg"]["num_stored"].sum()) == 0  # the transition closes a round later

    sim.run_round()
    memory = sim.store.state["agent"]["ddpg"]
    assert memory["num_stored"].tolist() == [1] * 6
    assert largest_difference(memory["buffer"]["state"][:, 0, 0], received_acc) < 1e-12
    assert (
        largest_difference(memory["buffer"]["reward"][:, 0], 1 / trained_loss.clamp(min=MIN_LOSS))
        < 1e-9
    )
    again = sim.store.state["agent"]["last_state"]
    assert largest_difference(memory["buffer"]["next_state"][:, 0], again) == 0.0


def test_the_server_sees_every_upload_and_is_paid_by_its_own_weights() -> None:
    method, task = Page(**PAPER), small_task()
    sim = simulate(method, task, 1)
    uploads = sim.store.local_params
    accs = task.evaluate_server(uploads, "public")["acc"]
    state = sim.server_state["server_agent"]
    assert largest_difference(state["last_state"], accs) < 1e-12
    p = torch.tensor(sim.logs[0].logged["p"], dtype=torch.float64)
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    assert bool((p > 0).all())
    f = task.evaluate_stack(torch.arange(6), uploads, "val")["loss"]
    assert float(state["last_reward"]) == pytest.approx(
        float(1 / (page_config.softmax_weights(state["last_action"]) @ f)), rel=1e-9
    )
    mean = {
        k: torch.tensordot(page_config.softmax_weights(state["last_action"]), v, 1)
        for k, v in uploads.items()
    }
    assert largest_difference(sim.params, mean) < 1e-12  # equation (5)


@pytest.mark.parametrize("controls", ["alpha", "eta", "alpha,eta", "p", "alpha,eta,p", "eta,p"])
def test_agents_decide_only_the_named_controls(controls: str) -> None:
    task = small_task()
    sim = simulate(Page(controls=controls, **PAPER), task, 4)
    factors = controls.split(",")
    last = sim.logs[-1]
    assert (last.train["epochs"].min != last.train["epochs"].max) == ("alpha" in factors)
    assert (last.train["lr"].min != last.train["lr"].max) == ("eta" in factors)
    assert ("p" in last.logged) == ("p" in factors)
    if "alpha" not in factors:
        assert last.train["epochs"].mean == task.info.training.epochs


@pytest.mark.parametrize(
    "method",
    [
        Page(**PAPER),
        Page(**AUTHORS_CODE),
        Page(**PAPER, base="scaffold", controls="alpha,eta"),
        *(kind(**SHORT, agents="per-client") for kind in (Page, FreeWeights, RewardLevel)),
    ],
)
def test_learning_agents_run_alike_on_both_executors(method: Page) -> None:
    loop, stacked = (
        simulate(method, small_task(samples=24), 10, executor) for executor in ("loop", "stacked")
    )
    updates = stacked.store.state["agent"]["ddpg"]["num_updates"]
    assert int(updates.min()) == 10 - method.learning_starts(10)
    if method.variant.authors_code:  # rewards up to 1e5 are in the critics: compare what they do
        loop, stacked = (
            {"params": sim.params, "action": sim.store.state["agent"]["last_action"]}
            for sim in (loop, stacked)
        )
        assert largest_difference(loop, stacked) < 1e-9
        return
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7


def test_the_seed_decides_and_agents_differ() -> None:
    first, again, other = (
        simulate(Page(**PAPER), small_task(), 3, seed=seed) for seed in (0, 0, 1)
    )
    assert largest_difference(first.state_dict(), again.state_dict()) == 0.0
    nets = first.store.state["agent"]["ddpg"]["actor"]
    assert float((nets[0] - nets[1]).abs().max()) > 0.1
    assert float((nets - other.store.state["agent"]["ddpg"]["actor"]).abs().max()) > 0.1


def test_absent_clients_keep_their_agent_and_their_place_in_the_servers_state() -> None:
    sim = simulate(Page(**PAPER), small_task(), 1, participation=0.5)
    absent = [k for k in range(6) if k not in sim.store.ids.tolist()]
    assert len(absent) == 3
    assert sim.server_state["server_agent"]["upload_accs"][absent].tolist() == [0.0] * 3
    assert len(sim.logs[0].logged["p"]) == 3
    assert sum(sim.logs[0].logged["p"]) == pytest.approx(1.0, abs=1e-5)


def test_the_authors_code_pays_the_server_by_the_aggregates_loss_and_shows_it_the_last_round() -> (
    None
):
    task = small_task()
    sim = simulate(Page(**AUTHORS_CODE), task, 1)
    loss = task.evaluate_server({k: v.unsqueeze(0) for k, v in sim.params.items()}, "test")["loss"]
    assert float(sim.server_state["server_agent"]["last_reward"]) == pytest.approx(
        float(1 / (loss + 1e-5))
    )
    assert sim.server_state["server_agent"]["last_state"].tolist() == [0.0] * 6
    assert float(sim.server_state["server_agent"]["upload_accs"].min()) > 0.0


def test_the_game_ends_when_neither_utility_evolves() -> None:
    history = page.init_history(3)
    losses = [1.0, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]
    ends = []
    for loss in losses:
        _, history = page.record_utilities(history, torch.tensor([loss]), torch.tensor([0.3]), 0.01)
        ends.append(page.has_converged(history, 0.01))
    assert ends == [False] * 7 + [True]
    # A change of one per cent between the windows' means, and a hair more or less.
    for factor, expected in ((1.0099, True), (1.0102, False)):
        history = page.init_history(2)
        for loss in (0.5, 0.5, 0.5 / factor, 0.5 / factor):
            _, history = page.record_utilities(
                history, torch.tensor([loss]), torch.tensor([loss]), 0.01
            )
        assert page.has_converged(history, 0.01) is expected
        assert page.has_converged(history, 0.01, first_round=1) is False


def test_a_run_stops_at_the_equilibrium_and_says_so() -> None:
    method = Page(warmup=0, window=2, tolerance=1e9)
    logs = simulate(method, small_task(), 4).logs
    assert [log.stop is not None for log in logs] == [False, False, False, True]
    assert "equilibrium" in logs[-1].stop


def test_bias_to_the_server_tilts_the_weights_to_where_the_global_model_errs() -> None:
    task = small_task()
    plain, biased = (
        simulate(Page(bias=bias, control="zero", **SHORT), task, 1) for bias in ("1:1", "100:1")
    )
    error = (
        1 - task.evaluate_stack(torch.arange(6), everybody(plain.initial_params), "train")["acc"]
    )
    tilted = torch.tensor(plain.logs[0].logged["p"]).double() * (error + ERROR_OFFSET) ** 2
    expected = (tilted / tilted.sum()).tolist()
    assert biased.logs[0].logged["p"] == pytest.approx(expected, rel=1e-4)


def test_bias_to_the_clients_adds_a_last_touch_and_leaves_the_global_model_alone() -> None:
    task = small_task()
    plain, biased = (simulate(Page(bias=bias, **SHORT), task, 3) for bias in ("1:1", "1:10"))
    assert largest_difference(plain.params, biased.params) == 0.0
    assert plain.logs[-1].personal == plain.logs[-1].trained
    assert biased.logs[-1].personal != biased.logs[-1].trained


def test_plain_scaling_of_rewards_changes_nothing_once_they_are_standardised() -> None:
    """Why bias is not the paper's scaling: standardised rewards do not show it."""
    config = Page(**PAPER).agent_config(small_task())
    agent = agents.init_state(config, 1, 2)["ddpg"]
    for k in range(40):
        u = torch.rand(5, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        agent = ddpg.store(agent, u[:1], u[1:3], u[3], u[4:5], torch.tensor(True))
    scaled = {**agent, "buffer": {**agent["buffer"], "reward": 10 * agent["buffer"]["reward"]}}
    draws = torch.rand(
        1, config.batch, generator=torch.Generator().manual_seed(99), dtype=torch.float64
    )
    one, other = ddpg.learn(config, agent, draws), ddpg.learn(config, scaled, draws)
    assert largest_difference(one["actor"], other["actor"]) < 1e-9


@pytest.mark.parametrize("reading", ["paper", "authors-code"])
def test_in_the_papers_readings_the_bias_scales_the_rewards_that_agents_learn_from(
    reading: str,
) -> None:
    task = small_task()
    expected = {"1:1": (1.0, 1.0), "1:10": (10.0, 1.0), "10:1": (1.0, 10.0), "100:1": (1.0, 100.0)}
    for bias, scales in expected.items():
        method = Page(reading=reading, bias=bias)
        found = [method.agent_config(task, is_server=is_server) for is_server in (False, True)]
        assert tuple(config.reward_scale for config in found) == pytest.approx(scales)
        assert not method.uses_errors
    assert Page(bias="1:10").agent_config(task).reward_scale == 1.0
    plain, biased = (
        simulate(Page(reading=reading, bias=b, **SHORT), task, 6) for b in ("1:1", "1:10")
    )
    critics = [sim.store.state["agent"]["ddpg"]["critic"] for sim in (plain, biased)]
    assert largest_difference(*critics) > 1e-6
    if reading == "paper":  # in the authors' code both stay in the corner: the models are the same
        assert largest_difference(plain.params, biased.params) > 0.0


def test_scaled_rewards_are_the_same_as_rewards_that_were_stored_scaled() -> None:
    """Where nothing is standardised, as in the authors' code."""
    config = ddpg.Config(normalise=False, learning_starts=1)
    agent = agents.init_state(config, 1, 2)["ddpg"]
    for k in range(4):
        u = torch.rand(5, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        agent = ddpg.store(agent, u[:1], u[1:3], u[3], u[4:5], torch.tensor(True))
    scaled = {**agent, "buffer": {**agent["buffer"], "reward": 10 * agent["buffer"]["reward"]}}
    draws = torch.rand(9, 32, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    one = ddpg.learn(replace(config, reward_scale=10.0), agent, draws)
    other = ddpg.learn(config, scaled, draws)
    assert largest_difference(one["critic"], other["critic"]) < 1e-12
    assert largest_difference(one["critic"], ddpg.learn(config, agent, draws)["critic"]) > 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bias": "ten"}, "bias is"),
        ({"bias": "1:0"}, "bias is"),
        ({"bias": "-1:1"}, "bias is"),
        ({"bias": "1000:1"}, "bias is"),
        ({"bias": "10:1", "controls": "eta"}, "through the weights"),
        ({"bias": "1:10", "base": "ditto"}, "personal models"),
        ({"controls": "alpha,gamma"}, "controls is"),
        ({"controls": ""}, "controls is"),
        ({"lr_min": 0.2}, "lr_min"),
        ({"reading": "around"}, "reading is"),
        ({"control": "zeros"}, "control is"),
        ({"reading": "authors-code", "agents": "shared"}, "leave --agents out"),
        ({"warmup": -1}, "warmup"),
        ({"base": "page"}, "both would decide"),
        ({"base": "scaffold"}, "sound under its own"),
        ({"base": "fedper"}, "keeps a part"),
        ({"base": "nothing"}, "unknown method"),
    ],
)
def test_what_is_unsound_is_refused_with_a_reason(options: dict[str, Any], words: str) -> None:
    task = small_task()
    with pytest.raises(UsageError, match=words):
        Page(**options).check(task, task.info.training)


def test_no_validation_data_is_refused_unless_test_data_pay() -> None:
    task = small_task(val_share=0.0)
    with pytest.raises(UsageError, match="val_share"):
        Page().check(task, task.info.training)
    Page(**AUTHORS_CODE).check(task, task.info.training)


def test_dropped_clients_leave_the_weights_a_simplex() -> None:
    task = small_task()
    sim = simulate(Page(**PAPER), task, 1)
    s = Server(task, task.info.training, sim.params, sim.server_state, 0, 2, 2)
    ids = torch.tensor([1, 4])
    uploads = {k: v[ids] for k, v in sim.store.local_params.items()}
    losses: dict[str, Tensor] = {
        name: torch.ones(2, dtype=torch.float64) for name in ("received_loss", "trained_loss")
    }
    p, state = Page(**PAPER).aggregation_weights(s, ids, ClientUpdate(uploads, {}, losses))
    assert isinstance(p, Tensor)
    assert float(p.sum()) == pytest.approx(1.0)
    assert (
        state["server_agent"]["upload_accs"][[0, 2, 3, 5]].tolist()
        == sim.server_state["server_agent"]["upload_accs"][[0, 2, 3, 5]].tolist()
    )
