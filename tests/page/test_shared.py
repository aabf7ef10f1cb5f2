"""PAGE with one agent for all clients: equivariance, transitions by hand, cohorts, cost."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies.readings import Absolute, FreeWeights, RewardLevel
from equipoise.core import ClientUpdate, Server
from equipoise.methods.page import agents
from equipoise.methods.page import page as page_config
from equipoise.methods.page.agents import SERVER_UPDATES, SetPolicy
from equipoise.methods.page.page import MIN_LOSS, NOISE_DECAY_ROUNDS, Page
from equipoise.rl import ddpg
from equipoise.rl.nn import add_to_buffer, unflatten
from equipoise.utils.pytree import tree_bytes
from helpers import largest_difference, simulate, small_task

SHORT: dict[str, Any] = {"warmup": 2, "window": 0}
PAPER: dict[str, Any] = {**SHORT, "reading": "paper", "agents": "shared"}
CONFIG = SetPolicy(Page(**PAPER)).agent_config(ddpg.Config())


def everybody(tree: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.expand(6, *value.shape) for name, value in tree.items()}


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_agent(config: ddpg.Config) -> Any:
    """An agent whose last layer is not near zero, so that scores differ."""
    sizes = 2 * agents.NUM_FEATURES, 1
    agent = ddpg.init(config, *sizes, rand(ddpg.init_draws(config, *sizes)))
    return {**agent, "actor": rand(len(agent["actor"]), seed=1) - 0.5}


def some_features(clients: int) -> Tensor:
    return agents.client_features(*rand(3, clients, seed=2), torch.arange(clients) + 20)


# --- the server's net ----------------------------------------------------------------------------


def test_features_are_the_clients_own_and_the_cohorts_mean() -> None:
    acc, received, trained = torch.tensor(
        [[0.2, 0.4], [1.0, 2.0], [0.5, 0.25]], dtype=torch.float64
    )
    seen = agents.client_features(acc, received, trained, torch.tensor([10, 40]))
    assert seen[1].tolist() == pytest.approx(
        [
            0.4,
            math.log(2),
            math.log(0.25),
            math.log(40),
            0.3,
            math.log(2) / 2,
            math.log(0.125) / 2,
            math.log(20),
        ]
    )
    assert torch.equal(seen[0, 4:], seen[1, 4:])


def test_permuting_clients_permutes_their_weights() -> None:
    config = CONFIG
    agent, order = some_agent(config), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    parts = *rand(3, 7, seed=2), torch.arange(7) + 20
    p, permuted = (
        page_config.softmax_weights(
            agents.client_scores(config, agent, agents.client_features(*each))
        )
        for each in (parts, [part[order] for part in parts])
    )
    assert float(p.max() / p.min()) > 1.05  # else there is nothing to permute
    assert largest_difference(p[order], permuted) < 1e-12


def test_with_noise_too_a_clients_weight_is_its_own_wherever_it_stands() -> None:
    task = small_task()
    sim = simulate(Page(**PAPER), task, 3)
    s = Server(task, task.info.training, sim.params, sim.server_state, 0, 4, 9)
    config, order = CONFIG, torch.tensor([2, 5, 0, 1, 4, 3])
    player = {
        **sim.server_state["server_agent"],
        "ddpg": {**some_agent(config), "num_updates": torch.tensor(1)},
    }
    seen = some_features(6)
    one, _ = agents.act_and_learn_on_set(s, config, player, torch.arange(6), seen, False)
    other, _ = agents.act_and_learn_on_set(s, config, player, order, seen[order], False)
    still, after = agents.act_and_learn_on_set(
        s, replace(config, sigma=0.0), player, torch.arange(6), seen, False
    )
    assert largest_difference(one[order], other) < 1e-12
    assert largest_difference(one, still) > 0.01
    assert largest_difference(still, agents.client_scores(config, after["ddpg"], seen)) < 1e-12


def test_identical_clients_get_identical_weights() -> None:
    config = CONFIG
    seen = some_features(5)[[0, 1, 0, 2, 0]]
    score = agents.client_scores(config, some_agent(config), seen)
    assert float((score[[0, 2]] - score[4]).abs().max()) < 1e-12
    assert float((score[0] - score[1]).abs()) > 1e-3
    alike = page_config.softmax_weights(
        agents.client_scores(config, some_agent(config), some_features(1).expand(8, -1))
    )
    assert alike.tolist() == pytest.approx([1 / 8] * 8, abs=1e-12)


def test_the_value_of_a_cohort_knows_neither_order_nor_copies() -> None:
    config = CONFIG
    agent, seen, action = some_agent(config), some_features(3), rand(3, 1, seed=3)
    critic = unflatten(agent["critic"], ddpg._critic_shapes(config, 2 * agents.NUM_FEATURES, 1))

    def value(rows: list[int]) -> float:
        return float(ddpg._critic(critic, seen[rows].unsqueeze(0), action[rows].unsqueeze(0))[0])

    alone = [float(ddpg._critic(critic, seen[[k]], action[[k]])[0]) for k in range(3)]
    assert value([0, 1, 2]) == pytest.approx(sum(alone) / 3)
    assert value([2, 0, 1]) == pytest.approx(value([0, 1, 2]))
    assert value([0, 0, 1, 1, 2, 2]) == pytest.approx(value([0, 1, 2]))


def test_all_members_share_one_scale() -> None:
    """A scale for each place in the memory would tell the places apart."""
    config = ddpg.Config(buffer_size=4, set_size=3)
    agent = ddpg.init(config, 2, 1, rand(ddpg.init_draws(config, 2, 1)))
    held = rand(2, 3, 2, seed=5)
    agent["buffer"]["state"][:2] = held
    exported = ddpg.export_policy(config, {**agent, "num_stored": torch.tensor(2)})
    rows = held.reshape(6, 2)
    assert largest_difference(exported["mean"], rows.mean(0)) < 1e-12
    assert largest_difference(exported["std"], rows.std(0, correction=0)) < 1e-12


@pytest.mark.parametrize("size", [1, 5, 8, 100])
def test_the_memory_keeps_members_evenly(size: int) -> None:
    for u in (0.0, 0.4, 0.999):
        counts = torch.bincount(
            agents.even_sample(size, 8, torch.tensor([u], dtype=torch.float64)), minlength=size
        )
        assert int(counts.sum()) == 8
        assert int(counts.max() - counts.min()) <= 1
    assert (
        int(agents.even_sample(size, 8, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).max())
        == size - 1
    )


def test_the_actor_learns_to_prefer_whom_the_reward_prefers() -> None:
    """Pay by the weight of clients with a low loss: scores must come to follow minus the loss."""
    config = ddpg.Config(
        gamma=0.0, batch=32, steps=1, buffer_size=256, learning_starts=1, set_size=8, noise="none"
    )
    agent = ddpg.init(
        config,
        2 * agents.NUM_FEATURES,
        1,
        rand(ddpg.init_draws(config, 2 * agents.NUM_FEATURES, 1)),
    )
    for k in range(256):
        seen, action = (
            agents.client_features(*rand(3, 8, seed=k), torch.full((8,), 20)),
            2 * rand(8, seed=1000 + k) - 1,
        )
        reward = -(page_config.softmax_weights(action) @ seen[:, 2])
        row = {"state": seen, "action": action.unsqueeze(-1), "reward": reward, "next_state": seen}
        agent = add_to_buffer(agent, {name: value.unsqueeze(0) for name, value in row.items()})
    for k in range(150):
        agent = ddpg.learn(config, agent, rand(1, 32, seed=k))
    seen = agents.client_features(*rand(3, 50, seed=5000), torch.full((50,), 20))
    both = torch.stack([agents.client_scores(config, agent, seen), seen[:, 2]])
    assert float(torch.corrcoef(both)[0, 1]) < -0.7


# --- a run ---------------------------------------------------------------------------------------


def test_transitions_by_hand() -> None:
    method, task = Page(**PAPER), small_task()
    sim = simulate(method, task, 1)
    ids, uploads = torch.arange(6), sim.store.local_params
    before = task.evaluate_stack(ids, everybody(sim.initial_params), "val")
    trained = task.evaluate_stack(ids, uploads, "val")
    back = task.evaluate_stack(ids, everybody(sim.params), "val")
    held = sim.store.state["agent"]
    first = before["acc"].unsqueeze(1)
    assert largest_difference(held["last_state"], first) < 1e-12
    assert (
        sim.logs[0].decisions["epochs"]
        == page_config.absolute_epochs(held["last_action"][:, 0], 20).tolist()
    )

    # The server: its weights, what it saw, what it is paid.
    follower = sim.server_state["server_agent"]
    seen = agents.client_features(
        trained["acc"], before["loss"], trained["loss"], task.num_examples(ids)
    )
    p = torch.tensor(sim.logs[0].logged["p"], dtype=torch.float64)
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(follower["last_reward"]) == pytest.approx(
        float(1 / (p @ trained["loss"])), rel=1e-4
    )
    mean = {name: torch.tensordot(p, value, 1) for name, value in uploads.items()}
    assert largest_difference(sim.params, mean) < 1e-4  # the log has six digits
    kept = (follower["last_state"].unsqueeze(1) - seen).abs().sum(-1).min(1)
    assert float(kept.values.max()) < 1e-9
    assert set(kept.indices.tolist()) == set(range(6))
    assert (
        largest_difference(
            page_config.softmax_weights(follower["last_action"][:, 0]),
            page_config.softmax_weights(p[kept.indices].log10()),
        )
        < 1e-4
    )

    sim.run_round()
    leader = sim.server_state["client_agent"]
    assert int(leader["num_stored"]) == 6
    memory = {name: value[:6] for name, value in leader["buffer"].items()}
    assert largest_difference(memory["state"], first) < 1e-12
    assert largest_difference(memory["action"], held["last_action"]) == 0.0
    assert largest_difference(memory["reward"], 1 / trained["loss"].clamp(min=MIN_LOSS)) < 1e-9
    assert largest_difference(memory["next_state"][:, 0], back["acc"]) < 1e-12
    server = sim.server_state["server_agent"]["ddpg"]
    assert int(server["num_stored"]) == 1
    assert torch.equal(server["buffer"]["state"][0], follower["last_state"])
    assert float(server["buffer"]["reward"][0]) == float(follower["last_reward"])
    assert torch.equal(
        server["buffer"]["next_state"][0], sim.server_state["server_agent"]["last_state"]
    )


@pytest.mark.parametrize(
    "method",
    [Page(**PAPER), *(kind(**SHORT) for kind in (Page, Absolute, RewardLevel, FreeWeights))],
)
def test_learning_agents_run_alike_on_both_executors(method: Page) -> None:
    loop, stacked = (
        simulate(method, small_task(samples=24), 14, executor) for executor in ("loop", "stacked")
    )
    state = stacked.server_state
    agent = method.client_policy.agent_config(small_task())
    turns = 14 - math.ceil(
        agent.learning_starts / 6
    )  # it waits for so many transitions, of which each round but the first has 6
    assert int(state["client_agent"]["num_updates"]) == agent.steps * turns
    follower = state["server_agent"]["ddpg"]
    assert int(follower["num_updates"]) >= SERVER_UPDATES * (14 - 3)
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7


def test_chance_decides_in_the_box_until_the_agent_has_learned() -> None:
    """The warm-up is over, but too few transitions came up to learn from."""
    task = small_task()
    early = simulate(Page(warmup=1, window=0, reading="paper", agents="shared"), task, 8, seed=5)
    spent = torch.tensor(
        [epochs for log in early.logs for epochs in log.decisions["epochs"]]
    ).double()
    assert int(early.server_state["client_agent"]["num_updates"]) == 0
    assert int(early.server_state["client_agent"]["num_stored"]) == 42
    assert float(spent.std()) > 4.5  # of uniform numbers from 1 to 20 it is 5.8
    near = simulate(Page(warmup=1, window=0), task, 8, seed=5)
    assert all(epochs == task.info.training.epochs for epochs in near.logs[-1].decisions["epochs"])


def test_cohorts_change_and_a_transition_closes_when_its_client_returns() -> None:
    task = small_task()
    sim = simulate(Page(**PAPER), task, 8, participation=0.5)
    turns = torch.zeros(6, dtype=torch.int64)
    for log in sim.logs:
        turns[log.ids] += 1
        assert len(log.logged["p"]) == 3
        assert sum(log.logged["p"]) == pytest.approx(1.0, abs=1e-5)
        assert min(log.logged["p"]) > 0
    held = sim.store.state["agent"]["num_turns"]
    assert held.tolist() == turns[torch.from_numpy(sim.store.ids)].tolist()
    assert int(sim.server_state["client_agent"]["num_stored"]) == int(
        (turns - 1).clamp(min=0).sum()
    )
    assert (
        int(sim.server_state["server_agent"]["ddpg"]["num_stored"]) == 7
    )  # the server's closes with any next cohort


def test_nothing_at_the_server_grows_with_the_clients() -> None:
    small, large = (simulate(Page(**PAPER), small_task(clients=n), 1) for n in (6, 30))
    assert tree_bytes(small.server_state) == tree_bytes(large.server_state)


def test_only_some_of_the_asked_reply() -> None:
    task, method = small_task(), Page(**PAPER)
    sim = simulate(method, task, 2)
    s = Server(task, task.info.training, sim.params, sim.server_state, 0, 3, 3)
    metrics = {
        "received_loss": torch.ones(1),
        "trained_loss": torch.ones(1).double(),
        "trained_acc": torch.ones(1),
    }
    metrics |= {f"agent_{k}": v[:1] for k, v in sim.store.state["agent"]["transition"].items()}
    uploads = {k: v[:1] for k, v in sim.store.local_params.items()}
    p, state = method.aggregation_weights(s, torch.tensor([4]), ClientUpdate(uploads, {}, metrics))
    assert isinstance(p, Tensor)
    assert p.tolist() == [1.0]
    s.state = state
    state = method.learn(s, torch.tensor([4]), ClientUpdate(uploads, {}, metrics))
    assert (
        int(state["client_agent"]["num_stored"])
        == int(sim.server_state["client_agent"]["num_stored"]) + 1
    )


def test_the_actor_and_the_transitions_are_billed() -> None:
    task = small_task()
    sim = simulate(Page(**PAPER), task, 1)
    plain = simulate(Page(**PAPER, controls="p"), task, 1)
    actor = tree_bytes(
        ddpg.export_policy(
            Page(**PAPER).client_policy.agent_config(task), sim.server_state["client_agent"]
        )
    )
    ours, theirs = sim.logs[0].bytes, plain.logs[0].bytes
    down, up = ours.down - theirs.down, ours.up - theirs.up
    assert down == 6 * (actor + 1)
    assert up == 6 * (8 * (1 + 2 + 1 + 1) + 1)


@pytest.mark.parametrize("controls", ["alpha", "eta", "alpha,eta", "p", "eta,p"])
def test_agents_decide_only_the_named_controls(controls: str) -> None:
    task = small_task()
    last = simulate(Page(controls=controls, **PAPER), task, 4).logs[-1]
    factors = controls.split(",")
    assert (last.train["epochs"].min != last.train["epochs"].max) == ("alpha" in factors)
    assert (last.train["lr"].min != last.train["lr"].max) == ("eta" in factors)
    assert ("p" in last.logged) == ("p" in factors)


def test_it_sits_on_scaffold_without_p_and_keeps_its_memory() -> None:
    sim = simulate(Page(base="scaffold", controls="alpha,eta", **SHORT), small_task(), 4)
    variates = sim.store.state["base"]["c"]
    for name, c in sim.server_state["base"]["c"].items():
        assert largest_difference(c, variates[name].mean(0)) < 1e-12


def test_noise_fades_over_the_run_and_in_the_box_as_in_the_paper() -> None:
    box = Page(warmup=10, reading="paper", agents="shared").client_policy
    assert [
        box.noise_std(t, 900)
        for t in (1, 10, 10 + NOISE_DECAY_ROUNDS // 2, 10 + NOISE_DECAY_ROUNDS, 800)
    ] == pytest.approx([0.2, 0.2, 0.1, 0, 0])
    assert [Page().client_policy.noise_std(t, 100) for t in (0, 50, 100)] == pytest.approx(
        [0.2, 0.1, 0.0]
    )
