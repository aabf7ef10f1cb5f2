"""Rules of a node's owner: what may leave, how often, and a dry run that shows it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.cli import main
from equipoise.flower import codec, egress
from equipoise.flower.config import NodeConfig
from equipoise.flower.egress import EgressCounter, EgressRules
from equipoise.flower.node import Node
from equipoise.methods.fedavg import FedAvg
from equipoise.utils.errors import UsageError
from flower.test_agreement import SITES, rows, write
from flower.test_remote import Here, federate
from helpers import largest_difference, small_task


def node_toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return file


def with_rules(wire: Here, client: int, folder: Path, rules: EgressRules) -> Node:
    """Give one node rules."""
    node = wire.nodes[client]
    node.config = NodeConfig(client, folder / f"{client}", "", rules=rules)
    return node


def test_rules_are_read_from_the_owner_s_file(tmp_path: Path) -> None:
    file = node_toml(tmp_path, '[egress]\nmetrics = ["auc"]\nmin_count = 20\nsamples = false\n')
    table = {"client-id": 0, "state-dir": "/tmp/x", "rules": str(file)}
    expected = EgressRules(metrics=("auc",), min_count=20, samples=False)
    assert NodeConfig.from_dict(table).rules == expected
    assert NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x"}).rules == EgressRules()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[egress]\nmetric = []\n", "unknown field `metric`"),
        ("[egress]\nmin_count = -1\n", "min_count"),
        ("[egress]\nrounds_per_day = 0\n", "rounds_per_day"),
        ("[egress]\n[other]\n", "must have one table"),
        ("[egress\n", "are wrong"),
        ("metrics = 1\n", "must have one table"),
    ],
)
def test_wrong_rules_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        EgressRules.load(node_toml(tmp_path, text))
    with pytest.raises(UsageError, match="cannot be read"):
        EgressRules.load(tmp_path / "none.toml")


def test_a_relative_path_of_rules_is_refused() -> None:
    with pytest.raises(UsageError, match=r"absolute path of a node.toml"):
        NodeConfig.from_dict({"client-id": 0, "state-dir": "/tmp/x", "rules": "node.toml"})


def test_withheld_scores_are_nan_and_named_and_the_model_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = small_task("mlp")
    free = federate(FedAvg(), task, Here(FedAvg(), task, tmp_path / "free"))
    wire = Here(FedAvg(), task, tmp_path / "ruled")
    with_rules(wire, 2, tmp_path / "ruled", EgressRules(metrics=("loss",)))
    ruled = federate(FedAvg(), task, wire)
    free.run_round()
    log = ruled.run_round()
    assert not log.absent
    assert largest_difference(free.params, ruled.params) == 0
    test = ruled.store.scores["test"]["trained"]
    assert [math.isnan(value) for value in test["acc"].tolist()] == [False] * 2 + [True] + [
        False
    ] * 3
    assert not bool(torch.isnan(test["loss"]).any())
    assert "the rules of client 2's owner keep ['test/acc', 'val/acc']" in caplog.text


def test_few_rows_tell_no_scores(tmp_path: Path) -> None:
    task = small_task("mlp")
    wire = Here(FedAvg(), task, tmp_path)
    node = with_rules(wire, 0, tmp_path, EgressRules(min_count=10**6))
    run = federate(FedAvg(), task, wire)
    run.run_round()
    assert math.isnan(run.store.scores["test"]["trained"]["acc"][0])
    question = codec.encode({}, {"kind": "score", "client": 0, "run": "test"})
    own = codec.decode(node.answer(question))[1]
    assert set(own["scores"].values()) == {None}


def test_samples_and_decisions_stay(tmp_path: Path) -> None:
    task = small_task("mlp")
    wire = Here(FedAvg(), task, tmp_path)
    node = with_rules(wire, 0, tmp_path, EgressRules(samples=False, decisions=False))
    hello = codec.decode(node.answer(codec.encode({}, {"kind": "hello"})))[1]
    assert hello["samples"] == 1
    log = federate(FedAvg(), task, wire).run_round()
    assert list(log.absent) == [0]
    assert "(decisions)" in log.absent[0]


def test_limits_per_day_hold_over_runs_and_end_at_midnight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "_today", lambda: "2026-01-01")
    file = tmp_path / "egress.json"

    def count(run: str, **rules: Any) -> None:
        EgressCounter(file, EgressRules(**rules)).count_round(run)

    for run in ("a", "a", "b"):
        count(run, rounds_per_day=3, runs_per_day=2)
    with pytest.raises(codec.InvalidMessage, match="3 rounds per day"):
        count("a", rounds_per_day=3)
    with pytest.raises(codec.InvalidMessage, match="2 runs per day"):
        count("c", runs_per_day=2)
    count("b", runs_per_day=2)
    monkeypatch.setattr(egress, "_today", lambda: "2026-01-02")
    count("c", rounds_per_day=3, runs_per_day=1)
    file.write_text("{}")
    with pytest.raises(UsageError, match="is damaged"):
        count("c", rounds_per_day=9)


def test_the_limit_of_rounds_is_named_to_the_operator(tmp_path: Path) -> None:
    task = small_task("mlp")
    wire = Here(FedAvg(), task, tmp_path)
    with_rules(wire, 1, tmp_path, EgressRules(rounds_per_day=1))
    run = federate(FedAvg(), task, wire)
    assert not run.run_round().absent
    assert "1 rounds per day (rounds_per_day)" in run.run_round().absent[1]


def test_a_dry_run_prints_what_would_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / SITES[0]
    write(site / "train.csv", rows(0, 60))
    write(site / "test.csv", rows(10, 20))
    app = tmp_path / "app"
    given = ["--data", "/server", "--clients", "3", "--target", "ill", "--ignore-columns", "note"]
    assert main(["flower", "init", str(app), *given, "--rounds", "2"]) == 0
    capsys.readouterr()
    assert main(["flower", "dry-run", str(app), "--data", str(site)]) == 0
    text = capsys.readouterr().out
    for line in (
        "samples: 54",
        '"name":"age"',
        "hparams/lr:",
        "scores/test/trained/acc:",
        "score:",
    ):
        assert line in text
    assert "x" not in {cell for row in text.splitlines() for cell in row.split(",")}  # no rows
    rules = node_toml(tmp_path, "[egress]\nstatistics = false\n")
    assert main(["flower", "dry-run", str(app), "--data", str(site), "--rules", str(rules)]) == 0
    assert "statistics: refused: its owner's rules keep statistics" in capsys.readouterr().out
    assert main(["flower", "dry-run", str(app)]) == 2
    assert "--data" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/dryrun"))
