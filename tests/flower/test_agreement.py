"""Raw tables at clients behind messages: told sums and counts give the preparation that files and
simulations give.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from equipoise.cli import main
from equipoise.data.tabular import Preprocessor
from equipoise.data.tabular.exchange import merge_files, summarise_site
from equipoise.experiment import runner as runs
from equipoise.experiment.build import build_task
from equipoise.experiment.evaluation import LocalBaselineConfig, own_scores, train_alone
from equipoise.flower import codec, table_agreement
from equipoise.flower.config import NodeConfig
from equipoise.flower.egress import EgressRules
from equipoise.flower.node import Node
from equipoise.flower.remote_executor import RemoteExecutor
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils.errors import UsageError
from helpers import largest_difference

SITES = ("north", "south", "va")
GIVEN = {
    "task": "remote-tables",
    "clients": 3,
    "target": "ill",
    "ignore_columns": "note",
    "rounds": 3,
    "model": "linear",
}


def rows(seed: int, n: int) -> list[str]:
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n).round(1), rng.choice(["A", "B", "C"], n)
    ill = np.where(age + seed > 52, "yes", "no")
    return [
        f"{a if k % 9 else ''},{w},{y},x"
        for k, (a, w, y) in enumerate(zip(age, ward, ill, strict=True))
    ]


def write(path: Path, *parts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n".join(["age,ward,ill,note", *(row for part in parts for row in part)]) + "\n"
    )


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for seed, name in enumerate(SITES):
        write(tmp_path / name / "train.csv", rows(seed, 60))
        write(tmp_path / name / "test.csv", rows(seed + 10, 20))
    for part in ("public", "test"):
        write(tmp_path / "server" / f"{part}.csv", rows(7, 40))
    return tmp_path


class Here:
    """A wire within this process; as Flower has it, every message meets a
    node that is made anew.
    """

    def __init__(
        self, folder: Path, given: dict[str, Any], spoil: Callable[[int, bytes], bytes | None]
    ) -> None:
        self.folder, self.given, self.spoil = folder, given, spoil
        self.sent: list[dict[int, bytes]] = []

    def node(self, client: int, most_epsilon: float | None = None) -> Node:
        name = SITES[client]
        config = NodeConfig(
            client, self.folder / f"state-{name}", str(self.folder / name), most_epsilon, name=name
        )
        return Node(self.given, config)

    def present(self) -> dict[int, int]:
        hello = codec.encode({}, {"kind": "hello"})
        about = [codec.decode(self.node(client).answer(hello))[1] for client in range(len(SITES))]
        return {one["client"]: one["samples"] for one in about}

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        self.sent.append(messages)
        replies = {
            client: self.spoil(client, self.node(client).answer(data))
            for client, data in messages.items()
        }
        return {client: reply for client, reply in replies.items() if reply is not None}


Spoil = Callable[[int, bytes], bytes | None]


def wire_of(sites: Path, spoil: Spoil = lambda client, reply: reply, **more: Any) -> Here:
    return Here(sites, {**GIVEN, "data": str(sites / "server"), **more}, spoil)


def agreed(wire: Here) -> tuple[table_agreement.PreprocessingAgreement, ExperimentConfig]:
    settings = ExperimentConfig.from_options(wire.given)
    raw = table_agreement.raw_table_config(settings)
    assert raw is not None
    found = table_agreement.agree_on_preprocessing(raw, settings.privacy, wire, 1.0)
    return found, found.settings(settings)


def simulation(wire: Here, settings: ExperimentConfig, **more: Any) -> FederatedSimulation:
    def make(*about: Any) -> RemoteExecutor:
        return RemoteExecutor(*about, wire=wire, run="test", time_limit=1.0, min_replies=1, **more)

    schedule = RoundLoopConfig(3, settings.run.seed, 1.0, "loop", 1, True)
    return FederatedSimulation(
        settings.method, build_task(settings), settings.training, schedule, make
    )


def by_files(sites: Path) -> Preprocessor:
    raw = table_agreement.raw_table_config(
        ExperimentConfig.from_options({**GIVEN, "data": str(sites / "server")})
    )
    assert raw is not None
    paths = [sites / f"{name}.json" for name in SITES]
    for path in paths:
        path.write_text(summarise_site(sites / path.stem, path.stem, raw))
    return merge_files(paths, raw)[0]


def test_messages_files_and_a_simulation_prepare_alike(sites: Path, tmp_path: Path) -> None:
    found, settings = agreed(wire_of(sites))
    assert found.preprocessor.to_json() == by_files(sites).to_json()
    whole = tmp_path / "whole"
    for name in SITES:
        train, test = (
            (sites / name / f"{part}.csv").read_text().splitlines()[1:]
            for part in ("train", "test")
        )
        split = [*(f"{row},train" for row in train), *(f"{row},test" for row in test)]
        (whole / name).parent.mkdir(exist_ok=True)
        (whole / f"{name}.csv").write_text("\n".join(["age,ward,ill,note,part", *split]))
    shutil.copy(sites / "server" / "test.csv", whole / "server.csv")
    given = {"task": "tables", "data": str(whole), "split_column": "part", "val_share": 0.0}
    own = build_task(
        ExperimentConfig.from_options({**given, "target": "ill", "ignore_columns": "note"})
    )
    assert own.preparation.to_json() == found.preprocessor.to_json()
    assert own.preparation[1:3] == build_task(settings).preparation[1:3]
    assert found.upload_bytes == sum((sites / f"{name}.json").stat().st_size for name in SITES)


def test_rounds_are_those_of_sites_that_agreed_by_files(sites: Path, tmp_path: Path) -> None:
    wire = wire_of(sites)
    _, settings = agreed(wire)
    told = build_task(settings).preparation.to_json()
    live = simulation(wire, settings, preparation=told)
    assert not any(live.run_round().absent for _ in range(2))
    carried = ["preparation" in codec.decode(messages[0])[1] for messages in wire.sent[1:]]
    assert carried == [True, False]  # with the first round, and never again
    for name in (*SITES, "server"):
        shutil.copytree(sites / name, tmp_path / "filed" / name)
        (tmp_path / "filed" / name / "preparation.json").write_text(told)
    there = wire_of(tmp_path / "filed", target="", ignore_columns="")
    files = simulation(there, ExperimentConfig.from_options(there.given))
    assert not any(files.run_round().absent for _ in range(2))
    assert largest_difference(live.params, files.params) == 0
    assert largest_difference(live.store.scores, files.store.scores) == 0


def remote(wire: Here) -> Callable[..., RemoteExecutor]:
    def make(*about: Any) -> RemoteExecutor:
        told = about[1].preparation.to_json()
        return RemoteExecutor(
            *about,
            wire=wire,
            run="test",
            time_limit=1.0,
            min_replies=1,
            preparation=told,
            verdict=True,
        )

    return make


def finished(wire: Here, settings: ExperimentConfig, out: Path) -> dict[str, list[float]]:
    runs.run(settings, out, make_executor=remote(wire))
    return RunFolder(out).read_table(RunFolder(out).clients)


def test_a_site_predicts_and_exports_from_its_own_folder(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the raw rows of a year later, and without the server or the training rows."""
    wire = wire_of(sites, method="ditto")
    settings = agreed(wire)[1]
    finished(wire, settings, tmp_path / "run")
    folder = sites / "state-south" / "test" / "client-1"
    task = build_task(replace(settings, task_config=wire.node(1).settings.task_config))
    model = load_file(folder / "models" / "global.safetensors")
    x = task.data.split(np.array([1]), "test").x.reshape(20, -1)
    expected = task.logits(model, x).argmax(-1)
    shutil.copy(sites / "south" / "test.csv", tmp_path / "new.csv")
    shutil.rmtree(sites / "south")
    out = tmp_path / "predicted.csv"
    assert main(["predict", str(folder), str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    names = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
    assert names == [task.info.class_names[k] for k in expected.tolist()]
    assert main(["export", str(folder)]) == 0
    assert "the personal model of south" in capsys.readouterr().out
    assert main(["evaluate", str(folder), str(tmp_path / "new.csv")]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("south", "constant", "own model", "global", "personal"))
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "south: its model by ditto" in page
    assert "training alone on these rows" in page
    rows = (tmp_path / "new.csv").read_text().splitlines()
    (tmp_path / "late.csv").write_text("\n".join([rows[0], *rows[1:] * 2]))
    late = ["adapt", str(folder), str(tmp_path / "late.csv"), "--name", "late", "--quiet"]
    assert main([*late, "--out", str(tmp_path / "late")]) == 0
    assert (tmp_path / "late" / "report.html").is_file()
    (tmp_path / "wrong.csv").write_text("age,ill\n50,no\n")
    given = ["predict", str(folder), str(tmp_path / "wrong.csv"), "--out", str(tmp_path / "x.csv")]
    assert main(given) == 2
    assert "lack columns that the model needs: 'ward'" in capsys.readouterr().err


def test_rounds_tell_the_real_seconds_since_the_start(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three replies takes a second; the time for which a run was stopped does not count."""
    now = [0.0]
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def reply_after_a_second(client: int, reply: bytes) -> bytes:
        now[0] += 1.0
        return reply

    wire = wire_of(sites, reply_after_a_second, checkpoint_every=1)
    settings, out = agreed(wire)[1], tmp_path / "run"

    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise runs.Interrupted

    with pytest.raises(runs.Interrupted):
        runs.run(settings, out, make_executor=remote(wire), on_round_end=stop)
    now[0] += 100.0
    summary = runs.run(settings, out, make_executor=remote(wire), resume=True)
    assert [record.clock for record in RunFolder(out).records()] == [3.0, 6.0, 9.0]
    assert (summary.clock, summary.energy) == (9.0, None)


def test_clients_say_their_scores_with_intervals_when_the_run_is_over(
    sites: Path, tmp_path: Path
) -> None:
    wire = wire_of(sites, metric="auc", method="ditto")
    settings = agreed(wire)[1]
    columns = finished(wire, settings, tmp_path / "run")
    for client, name in enumerate(SITES):
        node = wire.node(client)
        task = build_task(replace(settings, task_config=node.settings.task_config))
        model = load_file(
            sites / f"state-{name}" / "test" / f"client-{client}" / "models" / "global.safetensors"
        )
        alone = train_alone(task, client, settings.training, LocalBaselineConfig(0, 3, 3))
        global_ = RunFolder(tmp_path / "run").model("global").read_tensors()
        own = own_scores(task, client, model, 0, {"local": alone, "global": global_})
        for key, value in {
            **{f"personal_{n}": v for n, v in own.scores.items()},
            **own.columns,
        }.items():
            assert columns[key][client] == pytest.approx(value, rel=1e-5)
        assert columns["personal_auc_low"][client] <= columns["personal_auc"][client]
    summary = RunFolder(tmp_path / "run").read_summary()
    assert summary.test.personal["f1"] == pytest.approx(np.mean(columns["personal_f1"]), rel=1e-5)
    assert summary.bytes_before.up > 0


def test_withheld_scores_leave_no_verdict(sites: Path) -> None:
    wire = wire_of(sites, metric="auc")
    settings = agreed(wire)[1]
    finished(wire, settings, sites / "run")
    question = codec.encode(
        {"global": {}}, {"kind": "score", "run": "test", "client": 0, "rounds": 2, "alone": True}
    )
    node = wire.node(0)
    node.config = replace(node.config, rules=EgressRules(metrics=("loss",)))
    _, reply = codec.decode(node.answer(question))
    assert set(reply["baselines"].values()) == {None}
    assert reply["scores"]["loss"] is not None
    node = wire.node(0)
    node.config = replace(node.config, rules=EgressRules(samples=False))
    _, reply = codec.decode(node.answer(question))
    assert reply["baselines"]["test_rows"] is None
    assert reply["baselines"]["gain_over_own"] is not None


def test_a_global_model_of_another_shape_is_refused(sites: Path) -> None:
    wire = wire_of(sites, metric="auc")
    settings = agreed(wire)[1]
    finished(wire, settings, sites / "run")
    wrong = {"global": {"a": torch.zeros(2)}}
    question = codec.encode(
        wrong, {"kind": "score", "run": "test", "client": 0, "rounds": 1, "alone": True}
    )
    assert "global lacks" in codec.decode(wire.node(0).answer(question))[1]["error"]


def test_local_models_beside_are_for_simulations(sites: Path, tmp_path: Path) -> None:
    wire = wire_of(sites, local_baseline=True)
    with pytest.raises(UsageError, match="local_baseline is for simulations"):
        finished(wire, agreed(wire)[1], tmp_path / "run")


def test_a_client_whose_scores_are_nonsense_has_none(sites: Path, tmp_path: Path) -> None:
    def spoil(client: int, reply: bytes) -> bytes | None:
        about = codec.decode(reply)[1]
        if client == 1 and "scores" in about:
            return codec.encode({}, {**about, "scores": {**about["scores"], "acc": "good"}})
        return None if client == 2 and "scores" in about else reply

    wire = wire_of(sites, spoil, metric="auc")
    columns = finished(wire, agreed(wire)[1], tmp_path / "run")
    assert np.isnan(columns["personal_f1"]).tolist() == [False, True, True]
    assert np.isfinite(columns["personal_auc_low"][0])


def test_who_lost_the_preparation_is_told_again(sites: Path) -> None:
    wire = wire_of(sites)
    _, settings = agreed(wire)
    live = simulation(wire, settings, preparation=build_task(settings).preparation.to_json())
    live.run_round()
    shutil.rmtree(sites / "state-va")
    assert (
        "it does not know how raw tables are prepared: it is told with the next round"
        in live.run_round().absent[2]
    )
    assert not live.run_round().absent


def retold(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(about: dict[str, Any]) -> dict[str, Any]:
        assert old in about["statistics"]
        return {**about, "statistics": about["statistics"].replace(old, new)}

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: None, "client 1: no reply in time"),
        (lambda told: {**told, "client": 0}, "client 1: it answers another message"),
        (
            lambda told: {**told, "statistics": "{}"},
            "client 1: its message is damaged or of another version",
        ),
        (
            retold('"num_rows":60', '"num_rows":-60'),
            "client 1: its message is damaged .* `int` >= 0 .*num_rows",
        ),
        (retold('"m2":0.0', '"m2":NaN'), "client 1: its message is damaged .* invalid character"),
        (retold('"m2":0.0', '"m2":1e999'), "client 1: its message is damaged .* out of range"),
        (
            retold('"client":"south"', '"client":"va"'),
            "two messages are of one client: north, va, va",
        ),
        (
            retold('"name":"ward"', '"name":"room"'),
            "column 'ward' of client 'south': it is missing here, and 2 of 3 clients have it",
        ),
        (
            lambda told: {"error": "FileNotFoundError: see its log"},
            "client 1: it reports 'FileNotFoundError",
        ),
    ],
)
def test_a_client_that_tells_nonsense_is_named(change: Any, says: str, sites: Path) -> None:
    def spoil(client: int, reply: bytes) -> bytes | None:
        about = codec.decode(reply)[1]
        about = change(about) if client == 1 else about
        return None if about is None else codec.encode({}, about)

    with pytest.raises(UsageError, match=says):
        agreed(wire_of(sites, spoil))


def test_under_noise_nothing_is_told_and_the_server_s_rows_decide(sites: Path) -> None:
    pytest.importorskip("dp_accounting", reason="extra 'privacy'")
    noisy, tell = {"dp_clip": 1.0, "dp_noise": 1.0}, codec.encode({}, {"kind": "statistics"})
    with pytest.raises(
        UsageError, match="before them clients would send sums and counts of their columns"
    ):
        agreed(wire_of(sites, **noisy, preprocess_from="clients"))
    answer = codec.decode(wire_of(sites, **noisy).node(0).answer(tell))[1]
    assert "tells nothing of its columns" in answer["error"]
    refused = codec.decode(wire_of(sites).node(0, most_epsilon=1.0).answer(tell))[1]
    assert "max-epsilon=1 only" in refused["error"]
    wire = wire_of(sites, **noisy)
    found, settings = agreed(wire)
    assert (found.upload_bytes, found.preprocessor.clients, wire.sent) == (0, ("0", "1", "2"), [])
    public = [float(row.split(",")[0]) for row in rows(7, 40) if not row.startswith(",")]
    assert found.preprocessor.encoders[0].mean == pytest.approx(np.mean(public))
    private = simulation(
        wire,
        replace(settings, method=settings.wrapped_method),
        preparation=found.preprocessor.to_json(),
    )
    assert not private.run_round().absent


def test_raw_tables_need_connected_clients(sites: Path) -> None:
    with pytest.raises(UsageError, match="'equipoise flower run'"):
        build_task(ExperimentConfig.from_options({**GIVEN, "data": str(sites / "server")}))
    synthetic = wire_of(sites)
    synthetic.given = {"task": "synthetic", "clients": 3}
    told = codec.decode(synthetic.node(0).answer(codec.encode({}, {"kind": "statistics"})))[1]
    assert told["error"] == "the run has no raw tables: there is nothing to tell"
