"""The four always-x identities, bytes, block weights and probes by hand, what is refused, and
composition.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.clock.devices import Device, DevicePopulation
from equipoise.core import Server
from equipoise.methods import find_method
from equipoise.methods.fedpolicy import policies, state
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.policies import FULL_ROUNDS
from equipoise.methods.joint import Joint
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import TRAINING, largest_difference, simulate, small_task

FOUR = state.BlockSets()
SAME = {"full": "fedavg", "backbone": "fedper", "head": "lgfedavg", "none": "local"}


def sizes(task: Any) -> list[int]:
    start = task.init_params(0)
    return [sum(start[name].nbytes for name in task.info.blocks[block]) for block in FOUR.blocks]


@pytest.mark.parametrize(
    ("executor", "processes", "clients"), [("loop", 1, 6), ("stacked", 1, 110), ("stacked", 2, 110)]
)
@pytest.mark.parametrize(("policy", "same"), [("full", "fedavg"), ("backbone", "fedper")])
def test_fixed_parts_from_the_command_line_are_known_methods_to_the_bit(
    tmp_path: Path, policy: str, same: str, executor: str, processes: int, clients: int
) -> None:
    """110 clients are two chunks, in single precision as users run them."""
    shared = f"--task synthetic --model mlp --samples 24 --epochs 1 --rounds 2 --clients {clients}"
    how = f"--executor {executor} --processes {processes} --participation 0.95"
    for method in (f"fedpolicy --policy {policy}", same):
        out = str(tmp_path / method.split()[0])
        assert main(["run", "--method", *f"{method} {shared} {how} --out {out}".split()]) == 0
    ours = tmp_path / "fedpolicy" / "models"
    theirs = tmp_path / same / "models"
    global_file = "global.safetensors" if policy == "full" else "shared.safetensors"
    for file, reference in (
        ("personal.safetensors", "personal.safetensors"),
        ("global.safetensors", global_file),
    ):
        found = load_file(ours / file)
        expected = load_file(theirs / reference)
        assert expected
        for name, value in expected.items():
            assert torch.equal(found[name], value), (reference, name)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("policy", SAME)
def test_always_the_same_part_is_a_known_method_to_the_bit(
    policy: str, participation: float, executor: str
) -> None:
    task = small_task()
    ours = simulate(FedPolicy(policy=policy), task, 4, executor, participation)
    theirs = simulate(find_method(SAME[policy])(), task, 4, executor, participation)
    assert largest_difference(ours.store.local_params, theirs.store.local_params) == 0
    assert [log.bytes.down for log in ours.logs] == [log.bytes.down for log in theirs.logs]
    if policy == "full":
        assert largest_difference(ours.params, theirs.params) == 0
        assert [log.bytes for log in ours.logs] == [log.bytes for log in theirs.logs]


def test_only_what_is_sent_is_billed() -> None:
    task = small_task()
    sim = simulate(FedPolicy(policy="random", parts="full,backbone,head,none"), task, 3)
    for log in sim.logs:
        chosen = FOUR.membership[torch.tensor(log.logged["part"]).long()]
        assert log.bytes.down == int((chosen * torch.tensor(sizes(task))).sum())
        assert sorted(set(log.logged["part"])) == [
            0,
            1,
            2,
            3,
        ]  # stratified: six clients, every part


def test_a_probe_is_billed_for_all_that_it_downloads_and_for_its_own_words() -> None:
    task = small_task()
    log = simulate(FedPolicy(policy="probe"), task, FULL_ROUNDS + 3).logs[-1]
    words = (
        3 + 2 * 4 * 4
    )  # its part, whether it probes and chooses, and its shrinkage and prior values
    assert log.bytes.down == 6 * (sum(sizes(task)) + words)
    assert log.bytes.up == 6 * (sum(sizes(task)) + 1 + 4 * 8)  # its choice and four scores


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("scaffold", "one whole model"),
        ("feddyn", "one whole model"),
        ("fedala", "installs"),
        ("fedper", "no choice is left"),
        ("fedbabu", "no choice is left"),
        ("local", "no choice is left"),
        ("fedpolicy", "installs"),
    ],
)
def test_unsound_bases_are_refused_with_a_reason(base: str, why: str) -> None:
    task = small_task()
    with pytest.raises(UsageError, match=why):
        FedPolicy(base=base).check(task, task.info.training)


def test_a_controller_over_an_unsound_base_is_refused_too() -> None:
    task = small_task()
    with pytest.raises(UsageError, match="one whole model"):
        Joint(base="page", base_options="base=scaffold controls=eta").check(
            task, task.info.training
        )
    with pytest.raises(UsageError, match="decides how clients train"):
        Joint(base="fedprox").check(task, task.info.training)


@pytest.mark.parametrize("base", ["fedprox", "fedavgm", "ditto", "pfedme", "fedrod", "dapfl"])
def test_sound_bases_run(base: str) -> None:
    sim = simulate(FedPolicy(base=base, policy="random", block_weights="on"), small_task(), 3)
    assert not any(log.dropped for log in sim.logs)


def test_full_over_a_base_is_the_base() -> None:
    task = small_task()
    ours = simulate(
        FedPolicy(base="fedavgm", base_options="server_momentum=0.5", policy="full"), task, 3
    )
    theirs = simulate(find_method("fedavgm")(server_momentum=0.5), task, 3)
    assert largest_difference(ours.params, theirs.params) == 0
    for controller in ("autopilot", "page"):
        joint = simulate(Joint(base=controller, policy="full"), task, 3)
        alone = simulate(find_method(controller)(), task, 3)
        assert largest_difference(joint.params, alone.params) == 0


@pytest.mark.parametrize("options", [{}, {"policy": "random", "block_weights": "on"}])
def test_both_executors_agree_on_joint(options: dict[str, Any]) -> None:
    """What autopilot measures in each client is of the model that the client really starts from."""
    method = Joint(**options)
    assert method.inner == find_method("autopilot")()
    loop, stacked = (
        simulate(method, small_task(), FULL_ROUNDS + 3, executor)
        for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7
    assert len({part for log in stacked.logs for part in log.logged["part"]}) > 1
    assert stacked.logs[-1].train["epochs"].min == 8
    assert stacked.logs[-1].train["lr"].mean < TRAINING.lr  # it decays


def test_bad_options_are_refused() -> None:
    task = small_task()
    for options, word in (
        ({"policy": "learnt"}, "did you mean 'learned'"),
        ({"parts": "full"}, "parts"),
        ({"parts": "backbone,head"}, "parts"),
        ({"block_weights": "maybe"}, "block_weights"),
        ({"staleness_decay": 0.0}, "staleness_decay"),
        ({"probe_every": 0}, "probe_every"),
        ({"policy_gamma": 1.0}, "policy_gamma"),
        ({"base_options": "momentum=1"}, "unknown option 'momentum' of 'fedavg'"),
        ({"base": "fedprox", "base_options": "mu=big"}, "must be a number"),
    ):
        with pytest.raises(UsageError, match=word):
            FedPolicy(**options).check(task, task.info.training)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="val_share"):
        FedPolicy().check(small_task(val_share=0.0), task.info.training)
    with pytest.raises(UsageError, match="one layer"):
        FedPolicy().check(small_task("linear"), task.info.training)


# --- block weights --------------------------------------------------------------------------------


def test_block_weights_by_hand() -> None:
    task = small_task(clients=2)
    fresh = state.staleness_weight(torch.tensor([[0, 5], [1, 5]]), 0.5)
    weights = FOUR.block_weights(task, torch.tensor([0.5, 0.5], dtype=torch.float64), fresh)
    for name in task.info.blocks["backbone"]:
        assert weights[name].flatten().tolist() == pytest.approx([2 / 3, 1 / 3])
    for name in task.info.blocks["head"]:  # all are old alike
        assert weights[name].flatten().tolist() == pytest.approx([0.5, 0.5])
    again = FOUR.block_weights(task, weights, torch.ones(2, 2))
    assert largest_difference(again, weights) < 1e-15


def test_a_stale_block_stays() -> None:
    task = small_task()
    before = task.init_params(0)
    after = {name: w + 1 for name, w in before.items()}
    moved = FOUR.damp_stale_blocks(
        task, before, after, torch.tensor([[1.0, 0.1], [0.5, 0.1]], dtype=torch.float64)
    )
    for name in task.info.blocks["backbone"]:
        assert largest_difference(moved[name], after[name]) == 0
    for name in task.info.blocks["head"]:
        assert largest_difference(moved[name], before[name] + 0.4) < 1e-12


def test_ages_follow_what_was_installed() -> None:
    client_table = state.init_client_table(3, FOUR)
    client_table = state.record_parts(
        client_table, torch.tensor([0, 2]), FOUR, torch.tensor([0, 1]), 4
    )
    client_table = state.record_parts(client_table, torch.tensor([0]), FOUR, torch.tensor([2]), 6)
    assert state.block_ages(client_table, torch.arange(3), 7).tolist() == [[3, 1], [7, 7], [3, 7]]
    assert client_table["full_round"].tolist() == [4, 0, 0]


def test_with_staleness_decay_one_and_equal_sizes_it_is_plain_aggregation() -> None:
    task = small_task(size_sigma=0.0)
    plain = simulate(FedPolicy(policy="random", block_weights="off"), task, 4)
    synced = simulate(FedPolicy(policy="random", block_weights="on", staleness_decay=1.0), task, 4)
    aware = simulate(FedPolicy(policy="random", block_weights="on"), task, 4)
    assert largest_difference(plain.params, synced.params) < 1e-12
    assert largest_difference(plain.params, aware.params) > 1e-6


# --- record ---------------------------------------------------------------------------------------


def test_rewards_by_hand() -> None:
    client_table = state.init_client_table(3, FOUR) | state.init_report_table(3, FOUR)
    ids, zero = torch.arange(3), torch.zeros(3, dtype=torch.float64)
    first = torch.tensor([[1.0, 0.5, 0, 0, 0]] * 3, dtype=torch.float64)
    client_table = state.record_reports(client_table, ids, first, zero, 1)
    assert client_table["reward"].tolist() == [0, 0, 0]  # nothing to compare with
    second = torch.tensor(
        [[0.5, 0.7, 0, 0, 0], [1.0, 0.5, 0, 0, 0], [9.0, 0.5, 0, 0, 0]], dtype=torch.float64
    )
    client_table = state.record_reports(
        client_table, ids, second, torch.tensor([0.01, 0.0, 0.0], dtype=torch.float64), 2
    )
    plain = torch.tensor(
        [0.2 + 0.05 - 0.01, 0.0, -0.1], dtype=torch.float64
    )  # the loss's change is bounded by 1
    assert client_table["reward"].tolist() == pytest.approx((plain - plain.mean()).tolist())
    assert client_table["gain"][0].tolist() == pytest.approx([0.5, 0.2])


def test_a_rare_report_tells_of_gains_a_round_beside_the_others_latest() -> None:
    client_table = state.init_report_table(2, FOUR)
    nothing = torch.zeros(2, dtype=torch.float64)
    for round, acc in ((1, 0.5), (2, 0.6)):
        report = torch.tensor([[0, acc, 0, 0, 0]] * 2, dtype=torch.float64)
        client_table = state.record_reports(client_table, torch.arange(2), report, nothing, round)
    late = torch.tensor([[0, 0.8, 0, 0, 0]], dtype=torch.float64)
    client_table = state.record_reports(client_table, torch.tensor([1]), late, nothing[:1], 6)
    assert client_table["gain"][:, 1].tolist() == pytest.approx([0.1, 0.05])  # 0.2 in four rounds
    assert client_table["reward"].tolist() == pytest.approx([0.0, 0.05 - 0.075])


def test_divergence_and_cosine_by_hand() -> None:
    task, ids = small_task(clients=2), torch.arange(2)
    zeros = {name: torch.zeros_like(w) for name, w in task.init_params(0).items()}
    after = {name: torch.ones_like(w) for name, w in zeros.items()}
    stack = {
        name: torch.stack([3 * torch.ones_like(w), -torch.ones_like(w)])
        for name, w in zeros.items()
    }
    client_table = state.record_similarity(
        state.init_report_table(2, FOUR), ids, FOUR, task, zeros, stack, after
    )
    assert client_table["similarity"].tolist() == [
        pytest.approx([2, 2, 1, 1]),
        pytest.approx([2, 2, -1, -1]),
    ]


# --- probes ---------------------------------------------------------------------------------------


def test_part_values_by_hand() -> None:
    scores, shrinkage = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.5, 0.5, 0.5, 1.0])
    value = policies.part_values(scores, shrinkage, torch.tensor([0.02, 0.01, 0.01, 0.0]))
    assert value.tolist() == pytest.approx([0.02 - 0.15, 0.01 - 0.1, 0.01 - 0.05, 0.0])


def test_a_slow_link_makes_a_download_dear() -> None:
    """Downloads at 8 and 2 Mbit/s, as many of each: 0.4 and 1.6 times the mean, so the whole costs
    0.004 and 0.016.
    """
    task = small_task()
    devices = DevicePopulation(
        (Device("quick", 1.0, 1.0, down=8.0), Device("slow", 1.0, 1.0, down=2.0)), 3
    )
    task.info = replace(task.info, devices=devices)
    ids, start = torch.arange(task.info.num_clients), task.init_params(0)
    slow = torch.from_numpy(task.info.devices.class_index(ids.numpy()) == 1)
    assert 0 < int(slow.sum()) < len(ids)
    method = FedPolicy(download_cost=0.01, probe_bonus=0.0)
    policy = method.agent
    assert isinstance(policy, policies.PredictiveProbing)
    s = Server(task, task.info.training, start, method.init_server(task, start), 0, 1, 10)
    value = policy.prior_values(s, ids)
    share = torch.tensor([*sizes(task)]).double() / sum(sizes(task))
    for part, cost in ((0, 1.0), (1, float(share[0])), (2, float(share[1])), (3, 0.0)):
        wanted = [-cost * (0.016 if waits else 0.004) for waits in slow.tolist()]
        assert value[:, part].tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_probe_scores_what_would_be_held_before_training() -> None:
    task, ids = small_task(), torch.arange(6)
    sim = simulate(FedPolicy(policy="probe"), task, 1)
    own, shared = (
        sim.store.local_params,
        {name: w.expand(6, *w.shape) for name, w in sim.params.items()},
    )
    old = sim.store.state["probe"]["scores"]
    sim.run_round()
    seen = sim.store.state["probe"]
    for number, (backbone, head) in enumerate(
        [(shared, shared), (shared, own), (own, shared), (own, own)]
    ):
        model = {n: (backbone if n in task.info.blocks["backbone"] else head)[n] for n in own}
        result = task.evaluate_stack(ids, model, "val")
        score = 1 - result["acc"] + 0.02 * result["loss"].clamp(max=3)
        assert (
            largest_difference(seen["scores"][:, number], 0.7 * old[:, number] + 0.3 * score)
            < 1e-12
        )


def test_a_client_probes_only_when_asked_and_is_billed_for_it_then() -> None:
    task, spared = small_task(), 0
    method = FedPolicy(policy="learned", parts="full,backbone,head,none", probe_bonus=0.0)
    sim = FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(20, 0, 1.0, "stacked", 20, True)
    )
    for round in range(1, 21):
        old = sim.store.state["probe"]["scores"] if round > 1 else torch.zeros(6, 4)
        log = sim.run_round()
        seen, policy_state, client_table = (
            sim.store.state["probe"],
            sim.server_state["policy_state"],
            sim.server_state["client_table"],
        )
        asked = policy_state["probe_requested"]
        assert torch.equal(seen["probe_round"] == round, asked)
        assert torch.equal(seen["probe_round"], policy_state["probe_round"])
        assert largest_difference(seen["scores"], policy_state["scores"]) == 0
        assert torch.equal(seen["scores"][~asked], old[~asked].double())
        sent = FOUR.membership[client_table["assigned_part"]] | asked[:, None]
        words = 3 + 2 * 4 * 4
        assert log.bytes.down == int((sent * torch.tensor(sizes(task))).sum()) + 6 * words
        assert log.logged["probes"] == int(asked.sum()) >= (round == FULL_ROUNDS) * 6
        spared += int((~sent).sum())
    assert spared > 0


def test_pauses_between_probes_grow_while_they_confirm_and_a_surprise_ends_them() -> None:
    method = FedPolicy(policy="learned", probe_every=4)
    rounds = RoundLoopConfig(60, 0, 1.0, "stacked", 60, True)
    task = small_task()
    sim = FederatedSimulation(method, task, task.info.training, rounds)
    before = torch.full((6,), 2)
    grew = shrank = 0
    for _ in range(30):
        sim.run_round()
        policy_state, client_table = (
            sim.server_state["policy_state"],
            sim.server_state["client_table"],
        )
        confirmed = policy_state["client_chooses"] & (
            client_table["installed_part"] == client_table["assigned_part"]
        )
        due = torch.where(confirmed, (2 * before).clamp(max=4), 2)
        assert torch.equal(
            policy_state["probe_interval"],
            torch.where(policy_state["probe_requested"], due, before),
        )
        grew, shrank = (
            grew + int((policy_state["probe_interval"] > before).sum()),
            shrank + int((policy_state["probe_interval"] < before).sum()),
        )
        before = policy_state["probe_interval"]
    assert grew > 0
    assert shrank > 0


def test_pooled_evidence_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "ROW_VARIANCE", 0.4)
    task = small_task(clients=2, size_sigma=0.0)
    rows = int(task.num_rows(torch.arange(2), "val")[0])
    method = FedPolicy(policy="learned", probe_bonus=0.01, download_cost=0.0)
    policy_state = method.agent.init(2)
    policy_state["probe_round"] = torch.ones(2, dtype=torch.int64)
    apart = (
        2 * 0.4 / rows
    ) ** 0.5  # for the head the clients' variance is twice the noise's, for the others it is 0
    policy_state["scores"] = torch.tensor(
        [[0.5, 0.5, 0.4 + apart, 0.4], [0.5, 0.5, 0.4 - apart, 0.4]], dtype=torch.float64
    )
    server = Server(task, task.info.training, task.init_params(0), {}, 0, 7, 60)
    shrinkage, prior_value = method.agent.empirical_bayes(server, policy_state, torch.arange(2))  # type: ignore[attr-defined]
    assert shrinkage[0].tolist() == pytest.approx([0, 0, 0.5, 0])
    assert prior_value[0].tolist() == pytest.approx([0.02 - 0.1, 0.01 - 0.1, 0.01, 0.0])


def test_those_whose_own_evidence_is_for_it_keep_the_backbone_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies, "MIN_SHARER_FRACTION", 0.5)
    agent = FedPolicy(policy="learned").agent
    full, backbone, head = 0, 1, 2
    own = torch.tensor([[0.3, 0, 0, 0], [0, 0.1, 0, 0], [0, 0, 0.1, 0], [0.2, 0, 0.12, 0]])
    assert agent.forced_sharers(own, torch.full((4,), head)).tolist() == [True, True, False, False]  # type: ignore[attr-defined]
    assert agent.forced_sharers(own, torch.tensor([head, full, head, backbone])).sum() == 0  # type: ignore[attr-defined]
    monkeypatch.setattr(policies, "MIN_SHARER_FRACTION", 1.0)  # but nobody against its own evidence
    assert agent.forced_sharers(own, torch.full((4,), head)).tolist() == [True, True, False, True]  # type: ignore[attr-defined]


def test_in_the_calm_nobody_probes_and_nothing_changes() -> None:
    task = small_task()
    sim = FederatedSimulation(
        FedPolicy(policy="learned"),
        task,
        task.info.training,
        RoundLoopConfig(20, 0, 1.0, "stacked", 20, True),
    )
    logs = [sim.run_round() for _ in range(20)]
    last = [log.logged for log in logs[16:]]  # the last 15 %, and the round before
    assert all(note["part"] == last[0]["part"] for note in last)
    assert not any(note["probes"] for note in last[1:])
    assert any(log.logged["probes"] for log in logs)


def test_what_the_server_keeps_stays_finite() -> None:
    """Parts that are not allowed have a value of minus infinity; a state with such a number would
    end the run.
    """
    done = simulate(FedPolicy(), small_task(), rounds=7)
    assert [log.skipped for log in done.logs] == [None] * 7


def test_how_clients_train_is_left_to_the_base() -> None:
    assert "train" not in FedPolicy().overridden_hooks
    assert "train" in FedPolicy(base="fedprox").overridden_hooks
