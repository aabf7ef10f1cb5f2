"""Policies of autopilot: weights by hand, from the shipped file or a user's own, and how they are trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.core.errors import UsageError
from equipoise.core.files import write_tensors
from equipoise.methods import policies
from equipoise.methods.autopilot import Autopilot
from equipoise.methods.steering import RULE, SEEN
from equipoise.runs import train_policy
from equipoise.runs.train_policy import SPREAD, STEP, Search, train
from helpers import largest_difference, simulate, small_task


def weights(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_with_the_rules_weights_is_the_rule_to_the_bit(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    policies.write(file, weights(*RULE), {})
    rule, same = (simulate(Autopilot(policy=policy), small_task(), 4) for policy in ("rule", str(file)))
    assert largest_difference(rule.state(), same.state()) == 0.0


def test_the_weights_stay_with_the_run_when_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    policies.write(file, weights(*RULE), {})
    sim = simulate(Autopilot(policy=str(file)), small_task(), 2)
    policies.write(file, weights(*[5.0] * len(SEEN)), {})
    assert sim.server_state["row"].tolist() == list(RULE)


def test_the_shipped_policy_is_one_and_no_rule() -> None:
    row = policies.row("learned")
    assert row.shape == (len(SEEN),)
    assert row.tolist() != list(RULE)


@pytest.mark.parametrize(
    ("tensors", "about", "wrong"),
    [
        ({"rate": weights(*RULE)}, {}, "no policy of this version"),
        ({"rate": weights(*RULE[:-1])}, {"seen": " ".join(SEEN)}, "no policy of this version"),
        ({"weight": weights(*RULE)}, {"seen": " ".join(SEEN)}, "no policy of this version"),
        ({"rate": weights(*[float("nan")] * len(SEEN))}, {"seen": " ".join(SEEN)}, "not a number"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, tensors: Any, about: dict[str, str], wrong: str) -> None:
    file = tmp_path / "other.safetensors"
    write_tensors(file, tensors, about)
    with pytest.raises(UsageError, match=wrong):
        policies.row(str(file))


def test_a_policy_that_is_nowhere_is_refused_before_any_work(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert main(["run", "--method", "autopilot", "--policy", "lerned", "--out", str(out)]) == 2
    assert "policy is 'lerned': must be rule, learned or a file" in capsys.readouterr().err
    assert not out.exists()


# --- training -------------------------------------------------------------------------------------------------------


@pytest.fixture
def slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations whose score is a known function of the weights: the sum of the first two."""
    monkeypatch.setattr(train_policy, "played", lambda options, w: float(w[0] + w[1]))


@pytest.mark.usefixtures("slope")
def test_a_generation_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    assert train(Search(generations=1, directions=1), out, minutes=1, processes=1) == 1
    d = np.random.default_rng([0, 0]).standard_normal((1, len(SEEN)))[0]
    gain = SPREAD * (d[0] + d[1])  # scores are the centre's plus and minus this, and so is their deviation
    expected = np.array(RULE) + STEP / abs(gain) * 2 * gain * d
    assert policies.read(out)[0].tolist() == pytest.approx(expected.tolist())


@pytest.mark.usefixtures("slope")
def test_training_climbs_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    train(Search(generations=30), whole, 1, 1)
    for generations in (10, 10, 30):
        train(Search(generations=generations), parts, 1, 1)
    assert policies.read(whole)[0].tolist() == policies.read(parts)[0].tolist()
    row = policies.read(whole)[0]
    assert float(row[0] + row[1]) > sum(RULE[:2]) + 1


@pytest.mark.usefixtures("slope")
def test_no_generation_begins_after_the_time(tmp_path: Path) -> None:
    assert train(Search(), tmp_path / "policy.safetensors", minutes=0, processes=1) == 0


@pytest.mark.usefixtures("slope")
def test_a_file_of_another_search_is_not_continued(tmp_path: Path) -> None:
    out = tmp_path / "policy.safetensors"
    train(Search(generations=1), out, 1, 1)
    with pytest.raises(UsageError, match="was trained with seed 0"):
        train(Search(seed=1), out, 1, 1)


def test_federations_are_new_in_every_generation_and_the_same_for_a_seed() -> None:
    drawn = [train_policy.federation(0, generation, k) for generation in range(3) for k in range(3)]
    assert len({tuple(options.values()) for options in drawn}) == 9
    assert drawn[4] == train_policy.federation(0, 1, 1)


def test_the_command_as_a_user_types_it(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = train_policy.federation(0, 0, 0) | {"clients": 3, "rounds": 2, "samples": 30, "model": "linear"}
    monkeypatch.setattr(train_policy, "federation", lambda *place: small)
    out = tmp_path / "policy.safetensors"
    words = "--generations 1 --directions 1 --federations 1 --processes 1".split()
    assert main(["train-policy", "--out", str(out), *words]) == 0
    assert "1 of 1 generations" in capsys.readouterr().out
    assert simulate(Autopilot(policy=str(out)), small_task(), 1).done == 1


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--directions 0", "directions is 0: must be a whole number of at least 1"),
        ("--processes 0", "processes is 0: must be at least 1"),
        ("--out nowhere/policy.safetensors", "there is no folder 'nowhere'"),
        ("--direction 3", "unknown argument '--direction'"),
    ],
)
def test_bad_input_is_one_sentence(words: str, wrong: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train-policy", *words.split()]) == 2
    told = capsys.readouterr().err
    assert wrong in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_policy(tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    for out, processes in ((one, 1), (two, 2)):
        train(Search(generations=1, directions=1, federations=1), out, 10, processes)
    assert policies.read(one)[0].tolist() == policies.read(two)[0].tolist()
