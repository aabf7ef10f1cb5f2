"""Schedules of parts: rounds by hand, known methods as limits, executors, resume, bad texts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.methods import find_method
from equipoise.methods.fedpolicy import policies, state
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.utils.errors import UsageError
from helpers import largest_difference, simulate, small_task


def parts_of(policy: str, rounds: int) -> list[str]:
    agent = FedPolicy(policy=policy).agent
    assert isinstance(agent, policies.SchedulePolicy)
    return [agent.part_at(round, rounds) for round in range(1, rounds + 1)]


def test_rounds_by_hand() -> None:
    assert parts_of("full:0.8,none", 5) == ["full"] * 4 + ["none"]
    assert parts_of(" head:0.2 , full:0.5,backbone", 10) == (
        ["head"] * 2 + ["full"] * 5 + ["backbone"] * 3
    )
    assert parts_of("full:0.8,none", 1) == ["full"]  # 0.8 rounds are one
    assert parts_of("full", 3) == ["full"] * 3
    assert parts_of("full:0.1,full:0.2,none", 10) == ["full"] * 3 + ["none"] * 7


@pytest.mark.parametrize("executor", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("policy", "same"),
    [("full:0.5,full", "fedavg"), ("backbone:0.3,backbone", "fedper"), ("none:0.5,none", "local")],
)
def test_a_schedule_of_one_part_is_a_known_method_to_the_bit(
    policy: str, same: str, executor: str
) -> None:
    ours = simulate(FedPolicy(policy=policy, base="fedavg"), small_task(), 4, executor, 0.5)
    theirs = simulate(find_method(same)(), small_task(), 4, executor, 0.5)
    assert largest_difference(ours.store.local_params, theirs.store.local_params) == 0


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_until_the_change_it_is_fedavg_and_afterwards_clients_keep_their_own(executor: str) -> None:
    task = small_task()
    ours = simulate(FedPolicy(policy="full:0.5,none"), task, 4, executor)
    whole = sum(value.nbytes for value in task.init_params(0).values())
    assert [log.bytes.down for log in ours.logs] == [6 * whole, 6 * whole, 0, 0]
    assert [set(log.logged["part"]) for log in ours.logs] == [{0}, {0}, {3}, {3}]
    fedavg = simulate(find_method("fedavg")(), task, 4, executor)
    assert ours.logs[1].bytes == fedavg.logs[1].bytes


def test_processes_and_executors_agree_to_the_bit(tmp_path: Path) -> None:
    """As a user types it; 110 clients are two chunks."""
    shared = "--task synthetic --model mlp --samples 24 --epochs 1 --rounds 4 --clients 110"
    for processes in (1, 2):
        how = f"--executor stacked --processes {processes} --out {tmp_path / str(processes)}"
        arguments = ["run", "--method", "fedpolicy", "--policy", "full:0.5,backbone"]
        assert main([*arguments, *shared.split(), *how.split()]) == 0
    for file in ("personal.safetensors", "global.safetensors"):
        one = load_file(tmp_path / "1" / "models" / file)
        two = load_file(tmp_path / "2" / "models" / file)
        assert all(torch.equal(two[name], value) for name, value in one.items())


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("full:0.8,non", ["'non' is none of full, backbone, head, none", "did you mean 'none'"]),
        ("full:0.8", ["is the last part and lasts to the end"]),
        ("full:0.8 none", ["'full:0.8 none' has blanks: put commas between the parts"]),
        ("full,none", ["'full' must be a part and its share"]),
        ("full:x,none", ["'full:x' must be a part and its share"]),
        ("full:-0.5,none", ["'full:-0.5' must be"]),
        ("full:nan,none", ["'full:nan' must be"]),
        ("full:0.6,head:0.4,none", ["the shares sum to 1"]),
        ("full:0.8,", ["'' is none of"]),
        ("ful:2,non", ["'ful' is none of", "'non' is none of", "the shares sum to 2"]),
        ("traind", ["did you mean 'trained'"]),
    ],
)
def test_mistakes_are_named_all_at_once(policy: str, words: list[str]) -> None:
    task = small_task()
    with pytest.raises(UsageError) as caught:
        FedPolicy(policy=policy).check(task, task.info.training)
    assert all(word in str(caught.value) for word in words)


def test_a_mistake_on_the_command_line_ends_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["run", "--method", "fedpolicy", "--policy", "full:0.8", "--out", str(out)]
    assert main([*arguments, "--task", "synthetic", "--model", "mlp"]) == 2
    assert "leave out its share" in capsys.readouterr().err
    assert not out.exists()


def test_sets_of_the_users_blocks_may_be_scheduled() -> None:
    sets = state.BlockSets(("full", "backbone", "none"))
    assert policies.parse_schedule("full:0.5,backbone", sets) == (("full", 0.5), ("backbone", 1.0))
    with pytest.raises(UsageError, match="'head' is none of"):
        policies.parse_schedule("full:0.5,head", sets)
