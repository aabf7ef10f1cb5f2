"""Records to JSON and back: nothing is lost, nothing is invented, and JSON stays JSON."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.core.errors import UsageError
from equipoise.records import codec
from equipoise.records.folder import Folder
from equipoise.records.results import Certificate, ClientGains, Finetuned, Newcomers, ServerGains
from equipoise.records.rounds import Bytes, RoundRecord, Spent, Spread
from equipoise.records.scores import Evaluations, Scores
from equipoise.records.summary import About, Converged, Summary
from helpers_records import NO_SUMMARY, record, scores

OLD = Path(__file__).parent / "old"  # folders that were written before records were types

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)
words = st.text(max_size=8)
metrics = st.sampled_from(["acc", "loss", "error", "return", "std", "p10", "subspace"])
scored = st.builds(Scores, st.dictionaries(metrics, st.none() | finite, max_size=4))
evaluated = st.builds(Evaluations, global_=scored, received=scored, trained=scored, personal=scored)
traffic = st.builds(Bytes, counts, counts)
spent = st.builds(Spent, st.none() | finite, st.none() | finite, finite, counts)
spreads = st.builds(Spread, finite, finite, finite)
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
    notes=st.dictionaries(words, finite | words | st.lists(finite, max_size=3), max_size=2),
    stop=st.none() | words,
    seconds=finite,
)
gains = st.builds(ServerGains, finite, finite)
summaries = st.builds(
    Summary,
    about=st.builds(About, method=words, task=words, model=words, seed=counts, executor=st.none() | words),
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


def test_a_certificate_is_read_under_the_former_name_of_its_number() -> None:
    """The largest relative gain was called epsilon, which is what differential privacy calls something else."""
    gains = {"largest": 0.05, "mean": 0.01, "gaining": 0.5}
    found = codec.decode(Certificate, {"round": 3, "samples": 2, "clients": gains, "epsilon": 0.05})
    assert found.largest_gain == 0.05
    assert codec.encode(found)["largest_gain"] == 0.05
    with pytest.raises(ValueError, match="'largest_gain' is missing"):
        codec.decode(Certificate, {"round": 3, "samples": 2, "clients": gains})


@pytest.mark.parametrize("folder", sorted(OLD.iterdir()), ids=lambda path: path.name)
def test_old_folders_open_and_are_written_back_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    """Supervised and agents' tasks; newcomers, fine-tuning, privacy, cohorts, per-client decisions."""
    old, new = Folder(folder), Folder(tmp_path)
    new.write_rounds(old.records())
    new.write_summary(old.read_summary())
    assert new.rounds.read_bytes() == old.rounds.read_bytes()
    assert new.summary.read_bytes() == old.summary.read_bytes()


def test_scores_read_as_they_are_spoken() -> None:
    summary = Folder(OLD / "hold").read_summary()
    assert summary.global_.acc == summary.test.global_["acc"] == 0.5266666666666666
    assert summary.personal.p10 == 0.49333333333333335
    assert summary.bytes.up == 133920
    assert summary.newcomers is not None
    assert summary.newcomers.after[5].acc == 0.8777777777777779
    assert summary.finetuned is not None
    assert (summary.finetuned.scores.headline, summary.finetuned.epochs) == ("acc", 12)
    agents = Folder(OLD / "cp-dqn").records()[-1]
    assert agents.trained.return_ == agents.trained["return"]
    assert Folder(OLD / "fedsynq").read_summary().extra["coverage"]["c_het"] == 20.0


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
    bad = record(notes={"p": [math.nan, 1.0], "x": math.inf}, train={"lr": Spread(math.nan, 0.0, math.inf)})
    tree = json.loads(codec.dumps(bad), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert tree["notes"] == {"p": [None, 1.0], "x": None}
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
    (tmp_path / "summary.json").write_text(json.dumps({**NO_SUMMARY, **changed}))
    with pytest.raises(UsageError, match=message):
        Folder(tmp_path).read_summary()


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    tree = {name: value for name, value in NO_SUMMARY.items() if name != "seconds"}
    (tmp_path / "summary.json").write_text(json.dumps(tree))
    with pytest.raises(UsageError, match="another version: 'seconds' is missing"):
        Folder(tmp_path).read_summary()


def test_what_a_task_adds_stands_beside_the_rest() -> None:
    summary = codec.decode(Summary, {**NO_SUMMARY, "floor": 0.25})
    assert summary.extra == {"floor": 0.25}
    assert codec.encode(replace(summary, extra={"slope": 1}))["slope"] == 1
