"""Records to JSON and back: nothing is lost, nothing is invented, and JSON stays JSON."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.experiment.runner import run
from equipoise.records import codec
from equipoise.records.rounds import Bytes, MeanMinMax, PrivacySpent, RoundRecord
from equipoise.records.run_dir import RoundLog, RunFolder
from equipoise.records.scores import Evaluations, Scores
from equipoise.records.summary import (
    About,
    Certificate,
    ClientGains,
    Converged,
    Finetuned,
    Newcomers,
    ServerGains,
    Summary,
)
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError
from helpers_records import NO_SUMMARY, record, scores

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)
words = st.text(max_size=8)
metrics = st.sampled_from(["acc", "loss", "error", "return", "std", "p10", "subspace"])
scored = st.builds(Scores, st.dictionaries(metrics, st.none() | finite, max_size=4))
evaluated = st.builds(Evaluations, global_=scored, received=scored, trained=scored, personal=scored)
traffic = st.builds(Bytes, counts, counts)
spent = st.builds(PrivacySpent, st.none() | finite, st.none() | finite, finite, counts)
spreads = st.builds(MeanMinMax, finite, finite, finite)
rounds = st.builds(
    RoundRecord,
    round=counts,
    clients=counts,
    seen=counts,
    test=st.none() | evaluated,
    val=st.none() | evaluated,
    train=st.dictionaries(words, spreads, max_size=2),
    ids=st.none() | st.lists(counts, max_size=3),
    decisions=st.none() | st.dictionaries(words, st.lists(finite, max_size=3), max_size=2),
    bytes=traffic,
    dropped=st.lists(counts, max_size=3),
    absent=st.dictionaries(counts, words, max_size=2),
    skipped=st.none() | words,
    privacy=st.none() | spent,
    logged=st.dictionaries(words, finite | words | st.lists(finite, max_size=3), max_size=2),
    stop=st.none() | words,
    seconds=finite,
)
gains = st.builds(ServerGains, finite, finite)
summaries = st.builds(
    Summary,
    about=st.builds(
        About, method=words, task=words, model=words, seed=counts, executor=st.none() | words
    ),
    rounds=counts,
    stopped=st.none() | words,
    test=evaluated,
    best_round=st.none() | counts,
    best=evaluated,
    converged_round=st.builds(Converged, st.none() | counts, st.none() | counts),
    clients_seen=counts,
    dropped_updates=counts,
    bytes=traffic,
    seconds=finite,
    privacy=st.none() | spent,
    extra=st.dictionaries(st.sampled_from(["floor", "coverage"]), finite, max_size=2),
    newcomers=st.none() | st.builds(Newcomers, counts, st.dictionaries(counts, scored, max_size=2)),
    finetuned=st.none() | st.builds(Finetuned, scored, st.none() | finite, counts),
    certificate=st.none()
    | st.builds(
        Certificate,
        round=counts,
        samples=counts,
        clients=st.builds(ClientGains, finite, finite, finite),
        server=st.none() | gains,
        largest_gain=finite,
    ),
)


@given(rounds)
def test_a_round_survives_json(one: RoundRecord) -> None:
    assert codec.decode(RoundRecord, json.loads(codec.dumps(one))) == one


@given(summaries)
def test_a_summary_survives_json(one: Summary) -> None:
    assert codec.decode(Summary, json.loads(codec.dumps(one))) == one


RUNS: dict[str, dict[str, Any]] = {
    "newcomers": {"holdout_clients": 0.25, "finetune": True, "clients": 8, "samples": 40},
    "cohort": {"participation": 0.5, "clients": 8, "samples": 40},
    "page": {"method": "page", "clients": 4, "samples": 40},
    "private": {"dp_clip": 1.0, "dp_noise": 1.0, "clients": 8, "samples": 40},
    "tabular": {"method": "fedsynq", "task": "two-state", "agents": 4},
    "linear": {"method": "pfedtd-rep", "task": "planted", "agents": 3},
    "deep": {"method": "dqn", "task": "cartpole", "agents": 2, "epochs": 20},
}


@pytest.fixture(scope="module", params=RUNS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Supervised and agents' tasks; newcomers, fine-tuning, privacy,
    cohorts, per-client decisions.
    """
    if request.param == "private":
        pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    folder = RunFolder(tmp_path_factory.mktemp(request.param) / "run")
    run(ExperimentConfig.from_options({"rounds": 3, "seed": 3, **RUNS[request.param]}), folder.path)
    return folder


def test_a_run_is_read_and_written_back_byte_for_byte(finished: RunFolder, tmp_path: Path) -> None:
    again = RunFolder(tmp_path)
    RoundLog(again, finished.records())
    again.write_summary(finished.read_summary())
    assert again.rounds.read_bytes() == finished.rounds.read_bytes()
    assert again.summary.read_bytes() == finished.summary.read_bytes()


@pytest.mark.parametrize("finished", ["newcomers"], indirect=True)
def test_scores_read_as_they_are_spoken(finished: RunFolder) -> None:
    summary, tree = finished.read_summary(), json.loads(finished.summary.read_text())
    assert summary.global_.acc == summary.test.global_["acc"] == tree["global"]["acc"]
    assert summary.personal.p10 == tree["personal"]["p10"]
    assert summary.bytes.up == tree["bytes"]["up"]
    assert summary.newcomers is not None
    assert summary.newcomers.after[5].acc == tree["newcomers"]["5"]["acc"]
    assert summary.finetuned is not None
    assert (summary.finetuned.scores.metric, summary.finetuned.epochs) == (
        "acc",
        tree["finetuned"]["epochs"],
    )


@pytest.mark.parametrize("finished", ["deep"], indirect=True)
def test_a_return_is_read_as_it_is_spoken(finished: RunFolder) -> None:
    agents = finished.records()[-1]
    assert agents.trained.return_ == agents.trained["return"]


@pytest.mark.parametrize("finished", ["tabular"], indirect=True)
def test_what_a_task_adds_is_read_too(finished: RunFolder) -> None:
    tree = json.loads(finished.summary.read_text())
    assert finished.read_summary().extra["coverage"] == tree["coverage"]


def test_where_nothing_was_evaluated_scores_are_empty() -> None:
    alone = record(test=scores(trained={"acc": 0.5}))
    assert alone.global_.acc is None
    assert not alone.global_
    assert record().personal.acc is None
    assert '"global": null' in codec.dumps(alone)
    assert "global" not in codec.dumps(record())
    with pytest.raises(AttributeError, match="no score 'accuracy': there are acc"):
        _ = alone.trained.accuracy


def test_json_has_no_nan() -> None:
    bad = record(
        logged={"p": [math.nan, 1.0], "x": math.inf},
        train={"lr": MeanMinMax(math.nan, 0.0, math.inf)},
    )
    tree = json.loads(
        codec.dumps(bad), parse_constant=lambda text: pytest.fail(f"{text} is no JSON")
    )
    assert tree["logged"] == {"p": [None, 1.0], "x": None}
    assert math.isnan(codec.decode(RoundRecord, tree).train["lr"].max)
    assert Scores({"acc": math.nan, "loss": math.inf}) == {"acc": None, "loss": None}


def test_scores_travel_between_processes() -> None:
    one = scores(trained={"acc": 0.5})
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": "1"}, "'rounds' must be a whole number"),
        ({"rounds": True}, "'rounds' must be a whole number"),
        ({"bytes": {"up": 1}}, "'down' is missing in 'bytes'"),
        ({"bytes": {"up": 1, "down": 1, "aside": 1}}, "'aside' is unknown in 'bytes'"),
        ({"personal": {"acc": "good"}}, "'personal.acc' must be a number"),
        ({"newcomers": {"clients": 1, "x": {}}}, "invalid literal"),
        ({"best": None}, "'best' must be a table"),
    ],
)
def test_damage_is_named(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).summary.write(json.dumps({**NO_SUMMARY, **changed}))
    with pytest.raises(UsageError, match=message):
        RunFolder(tmp_path).read_summary()


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    tree = {name: value for name, value in NO_SUMMARY.items() if name != "seconds"}
    RunFolder(tmp_path).summary.write(json.dumps(tree))
    with pytest.raises(UsageError, match="another version: 'seconds' is missing"):
        RunFolder(tmp_path).read_summary()


def test_what_a_task_adds_stands_beside_the_rest() -> None:
    summary = codec.decode(Summary, {**NO_SUMMARY, "floor": 0.25})
    assert summary.extra == {"floor": 0.25}
    assert codec.encode(replace(summary, extra={"slope": 1}))["slope"] == 1
