"""The four always-x identities, bytes, block weights and probes by hand, what is refused, and
composition.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.methods import find_method
from equipoise.methods.fedpolicy import state
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
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


def test_a_probe_is_billed_for_all_that_it_downloads_and_for_its_scores() -> None:
    """Seven rounds are held for one each: everybody probes in all but the last one."""
    task = small_task()
    logs = simulate(FedPolicy(policy="trained"), task, 7).logs
    words = 2  # its part, and whether it probes
    for log in logs[:-1]:
        assert log.logged["probes"] == 6
        assert log.bytes.down == 6 * (sum(sizes(task)) + words)
    last = FOUR.membership[torch.tensor(logs[-1].logged["part"]).long()]
    assert logs[-1].logged["probes"] == 0
    assert logs[-1].bytes.down == int((last * torch.tensor(sizes(task))).sum()) + 6 * words
    assert logs[-1].bytes.up == 6 * (sum(sizes(task)) + 4 * 8)  # four scores


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


@pytest.mark.parametrize("options", [{}, {"policy": "trained"}, {"policy": "random"}])
def test_both_executors_agree_on_joint(options: dict[str, Any]) -> None:
    """What autopilot measures in each client is of the model that the client really starts from."""
    method = Joint(**options)
    assert method.inner == find_method("autopilot")()
    loop, stacked = (
        simulate(method, small_task(), 8, executor) for executor in ("loop", "stacked")
    )
    assert largest_difference(loop.state_dict(), stacked.state_dict()) < 1e-7
    if options != {"policy": "trained"}:
        assert len({part for log in stacked.logs for part in log.logged["part"]}) > 1
    assert stacked.logs[-1].train["epochs"].min == 8
    assert stacked.logs[-1].train["lr"].mean < TRAINING.lr  # it decays


def test_bad_options_are_refused() -> None:
    task = small_task()
    for options, word in (
        ({"policy": "traind"}, "did you mean 'trained'"),
        ({"parts": "full"}, "parts"),
        ({"parts": "backbone,head"}, "parts"),
        ({"block_weights": "maybe"}, "block_weights"),
        ({"staleness_decay": 0.0}, "staleness_decay"),
        (
            {"policy": "trained", "policy_file": "no-such-file.json"},
            "policy_file is 'no-such-file.json': there is no such file",
        ),
        ({"policy_file": "policy.json"}, "policy gate reads no file"),
        ({"policy": "full", "policy_file": "policy.json"}, "policy full reads no file"),
        ({"base_options": "momentum=1"}, "unknown option 'momentum' of 'fedavgm'"),
        ({"base": "fedprox", "base_options": "mu=big"}, "must be a number"),
    ):
        with pytest.raises(UsageError, match=word):
            FedPolicy(**options).check(task, task.info.training)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="val_share"):
        FedPolicy(policy="trained").check(small_task(val_share=0.0), task.info.training)
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


def test_blocks_that_nobody_installs_stay() -> None:
    task = small_task()
    run = simulate(FedPolicy(policy="none", block_weights="on"), task, 2)
    assert largest_difference(run.params, task.init_params(0)) == 0
    run = simulate(FedPolicy(policy="backbone", block_weights="on"), task, 2)
    moved = {
        name for name, value in task.init_params(0).items() if (run.params[name] != value).any()
    }
    assert moved == set(task.info.blocks["backbone"])


def test_ages_follow_what_was_installed() -> None:
    client_table = state.init_client_table(3, FOUR)
    client_table = state.record_parts(
        client_table, torch.tensor([0, 2]), FOUR, torch.tensor([0, 1]), 4
    )
    client_table = state.record_parts(client_table, torch.tensor([0]), FOUR, torch.tensor([2]), 6)
    assert state.block_ages(client_table, torch.arange(3), 7).tolist() == [[3, 1], [7, 7], [3, 7]]


def test_with_staleness_decay_one_it_is_plain_aggregation() -> None:
    task = small_task()
    plain = simulate(FedPolicy(policy="random", base="fedavg", block_weights="off"), task, 4)
    synced = simulate(
        FedPolicy(policy="random", base="fedavg", block_weights="on", staleness_decay=1.0), task, 4
    )
    aware = simulate(FedPolicy(policy="random", base="fedavg", block_weights="on"), task, 4)
    assert largest_difference(plain.params, synced.params) < 1e-12
    assert largest_difference(plain.params, aware.params) > 1e-6


# --- probes ---------------------------------------------------------------------------------------


def test_the_probe_scores_what_would_be_held_before_training() -> None:
    task, ids = small_task(), torch.arange(6)
    sim = FederatedSimulation(
        FedPolicy(policy="trained"),
        task,
        task.info.training,
        RoundLoopConfig(4, 0, 1.0, "stacked", 4, True),
    )
    sim.run_round()
    own = sim.store.local_params
    shared = {name: w.expand(6, *w.shape) for name, w in sim.params.items()}
    sim.run_round()
    scores = sim.store.state["scores"]
    for number, (backbone, head) in enumerate(
        [(shared, shared), (shared, own), (own, shared), (own, own)]
    ):
        model = {n: (backbone if n in task.info.blocks["backbone"] else head)[n] for n in own}
        expected = task.evaluate_stack(ids, model, "val")["acc"]
        assert largest_difference(scores[:, number], expected) < 1e-12
    assert largest_difference(scores, sim.server_state["policy_state"]["scores"]) == 0


def test_what_the_server_keeps_stays_finite() -> None:
    """A part that is not allowed has a value of minus infinity; such a state would end the run."""
    for policy in ("gate", "trained", "dqn"):
        done = simulate(FedPolicy(policy=policy, parts="full,head"), small_task(), rounds=7)
        assert [log.skipped for log in done.logs] == [None] * 7
        assert {part for log in done.logs for part in log.logged["part"]} <= {0, 2}


def test_how_clients_train_is_left_to_the_base() -> None:
    assert "train" not in FedPolicy().overridden_hooks
    assert "train" in FedPolicy(base="fedprox").overridden_hooks
