"""Any number of blocks: what travels, what moves, what is installed; and FedPolicy's choice among
sets of them.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise.cli import main
from equipoise.core import Method
from equipoise.data.datasets.synthetic import Synthetic, SyntheticConfig
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedbabu import FedBabu
from equipoise.methods.fedper import FedPer
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.methods.fedpolicy.state import BlockSets
from equipoise.methods.fedrep import FedRep
from equipoise.methods.lgfedavg import LgFedAvg
from equipoise.records.run_dir import RunFolder
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes
from helpers import SMALL, TRAINING, largest_difference, simulate

THREE = "base=0.* middle=2.* top=4.*"


def deep_task(blocks: str = THREE, **options: object) -> ExamplesTask:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    data = Synthetic(SyntheticConfig(**{**SMALL, **options}), 0)
    task = ExamplesTask("synthetic", net, data, TRAINING, torch.float64)
    return task.with_network("", "", blocks, 0) if blocks else task


def share_of(task: ExamplesTask, *blocks: str) -> int:
    start = task.init_params(0)
    return tree_bytes({name: start[name] for block in blocks for name in task.info.blocks[block]})


@pytest.mark.parametrize("method", [FedAvg, FedPer, LgFedAvg, FedRep, FedBabu, FedPolicy])
def test_without_a_head_by_name_the_last_block_is_it(method: type[Method]) -> None:
    """Three blocks of which the last is the head give the numbers of two."""
    three, two = (
        simulate(method(), deep_task()),
        simulate(method(), deep_task("backbone=0.*,2.* head=4.*")),
    )
    assert largest_difference(three.params, two.params) == 0
    assert [log.bytes for log in three.logs] == [log.bytes for log in two.logs]


@pytest.mark.parametrize(
    ("keep", "travels"), [("middle", ("base", "top")), ("base, top", ("middle",))]
)
def test_the_user_says_what_stays(keep: str, travels: tuple[str, ...]) -> None:
    task = deep_task()
    done = simulate(FedPer(keep=keep), task, rounds=2)
    assert (
        done.logs[0].bytes.up
        == done.logs[0].bytes.down
        == task.info.num_clients * share_of(task, *travels)
    )
    for block, names in task.info.blocks.items():
        for name in names:
            moved = not torch.equal(done.params[name], task.init_params(0)[name])
            assert moved == (block in travels)
            assert not torch.equal(
                done.store.local_params[name][0], done.store.local_params[name][1]
            )


def test_fedbabu_moves_what_travels_and_nothing_else() -> None:
    task = deep_task()
    done, start = simulate(FedBabu(keep="middle"), task), task.init_params(0)
    for name in task.info.blocks["middle"]:
        assert torch.equal(done.params[name], start[name])
        assert torch.equal(
            done.store.local_params[name], start[name].expand_as(done.store.local_params[name])
        )


def test_sets_of_blocks_by_hand() -> None:
    parts = BlockSets.parse("full,base+middle,top")
    assert parts.names == ("full", "base+middle", "top", "none")
    assert parts.blocks == ("base", "middle", "top")
    assert parts.membership.tolist() == [
        [True] * 3,
        [True, True, False],
        [False, False, True],
        [False] * 3,
    ]
    assert parts.membership_of(torch.tensor(1)).tolist() == [True, True, False]


@pytest.mark.parametrize("policy", ["random", "gate", "full:0.5,base"])
def test_every_policy_chooses_among_sets_and_is_billed_for_them(policy: str) -> None:
    task = deep_task()
    method = FedPolicy(policy=policy, parts="full,base,base+middle,middle+top", block_weights="on")
    loop, stacked = (simulate(method, task, rounds=4, executor=e) for e in ("loop", "stacked"))
    assert largest_difference(loop.params, stacked.params) < 1e-9
    sizes = torch.tensor([share_of(task, block) for block in method.sets.blocks])
    for log in stacked.logs:
        chosen = torch.tensor(log.logged["part"]).long()
        assert int(chosen.max()) < 4
        least = int((method.sets.membership[chosen].long() @ sizes).sum())
        assert log.bytes.down >= least
        if policy != "gate":
            assert log.bytes.down == least


def test_a_trained_policy_refuses_other_parts_and_says_what_to_do() -> None:
    task, method = deep_task(), FedPolicy(policy="trained", parts="full,base,middle+top")
    with pytest.raises(UsageError, match=r"choose another policy, such as full:0\.8,middle"):
        method.check(task, task.info.training)


def test_a_probe_scores_what_each_set_would_give() -> None:
    task, method = deep_task(), FedPolicy(policy="gate", parts="full,base,middle+top")
    run = FederatedSimulation(
        method, task, task.info.training, RoundLoopConfig(3, 0, 1.0, "stacked", 3, True)
    )
    run.run_round()
    local, received = run.store.local_params, run.params
    run.run_round()
    seen = run.store.state["scores"]
    for k in range(task.info.num_clients):
        for part, takes in enumerate(method.sets.membership.tolist()):
            sent = {
                n
                for block, take in zip(method.sets.blocks, takes, strict=True)
                if take
                for n in task.info.blocks[block]
            }
            model = {name: received[name] if name in sent else local[name][k] for name in received}
            assert float(task.evaluate(torch.tensor(k), model, "val")["acc"]) == pytest.approx(
                float(seen[k, part])
            )


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ("base=0.* top=4.*", "leave out 2.weight, 2.bias"),
        ("base=0.*,2.* rest=2.*,4.*", "overlap in 2.weight, 2.bias"),
        (
            "base=conv.* rest=*",
            r"pattern 'conv.\*' of block 'base' matches no parameter; the model has 0.weight",
        ),
        ("base", "write name=pattern"),
        ("base=0.* base=2.* top=4.*", "given twice"),
    ],
)
def test_blocks_that_do_not_fit_are_one_sentence(blocks: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        deep_task(blocks)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            FedPer(keep="midle"),
            "keep names block 'midle', and the model's blocks are base, middle, top.*middle",
        ),
        (FedPer(keep="base,middle,top"), "must leave some blocks"),
        (FedPolicy(parts="full,bas"), "parts names block 'bas'"),
        (FedPolicy(parts="full,base+middle"), "parts leaves out block 'top'"),
        (FedPolicy(parts="full,base+middle+top"), "one set of blocks twice"),
        (FedPolicy(parts="full,base,middle+top", policy="backbone"), "must be one of gate"),
    ],
)
def test_methods_that_name_other_blocks_are_refused(method: Method, words: str) -> None:
    task = deep_task()
    with pytest.raises(UsageError, match=words):
        method.check(task, task.info.training)


def test_declared_blocks_of_a_module_may_be_any() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    net.blocks = {"weights": ("0.weight", "2.weight"), "biases": ("0.bias", "2.bias")}  # type: ignore[assignment]
    task = ExamplesTask("synthetic", net, Synthetic(SyntheticConfig(**SMALL), 0), TRAINING)
    assert task.info.blocks == net.blocks
    net.blocks = {"weights": ("0.weight", "2.weight"), "biases": ("0.bias",)}  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"leave out 2\.bias"):
        ExamplesTask("synthetic", net, Synthetic(SyntheticConfig(**SMALL), 0), TRAINING)


def test_the_command_line_names_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "run",
        "--task",
        "synthetic",
        "--clients",
        "4",
        "--rounds",
        "2",
        "--model",
        "mlp",
        "--classes",
        "10",
        "--quiet",
    ]
    out = ["--out", str(tmp_path / "run")]
    assert (
        main([*given, *out, "--method", "fedper", "--blocks", "w=*.weight b=*.bias", "--keep", "w"])
        == 0
    )
    assert RunFolder(tmp_path / "run").records()[0].bytes.up == 4 * 4 * (64 + 10)
    assert main([*given, "--out", str(tmp_path / "no"), "--blocks", "w=*.weigth b=*"]) == 2
    assert "matches no parameter" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    assert (
        main(["run", "--task", "two-state", "--out", str(tmp_path / "no"), "--blocks", "a=*"]) == 2
    )
    assert "no network to shape" in capsys.readouterr().err
