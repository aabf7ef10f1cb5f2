"""Trackers hold what the rounds hold, read back from their own stores; a tracker that fails costs
the tracker alone.
"""

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import equipoise
from equipoise.cli import main
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import RunFolder
from equipoise.report import trackers
from equipoise.report.trackers import Metrics, round_metrics
from helpers_records import record as a_round
from helpers_records import scores

SMALL = "--clients 4 --samples 40 --epochs 1 --rounds 4 --executor stacked --quiet".split()
Series = dict[str, dict[int, float]]


def logged(out: Path) -> Series:
    """What a tracker must hold, from the run's own files."""
    found: Series = {}
    for entry in RunFolder(out).stream():
        for name, value in round_metrics(entry).items():
            found.setdefault(name, {})[entry.round] = value
    return found


def tensorboard(out: Path) -> Series:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra tensorboard is not installed",
    )
    store = events.EventAccumulator(str(out / "tensorboard"))
    store.Reload()
    return {
        name: {e.step: e.value for e in store.Scalars(name)} for name in store.Tags()["scalars"]
    }


def mlflow_runs(store: str) -> list[tuple[str, dict[str, str], str, Series]]:
    """Folder, params, status and metrics of every run in a store."""
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra mlflow is not installed")
    client = tracking.MlflowClient(store)
    experiment = client.get_experiment_by_name("equipoise")
    found = []
    for run in client.search_runs([experiment.experiment_id]):
        history = {
            name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
            for name in run.data.metrics
        }
        found.append((run.data.tags["folder"], run.data.params, run.info.status, history))
    return found


def wandb_records(file: Path) -> Iterator[object]:
    """W&B's file is LevelDB's log: blocks of 32 KiB with pieces of records, each with checksum,
    length and kind.
    """
    wire = pytest.importorskip(
        "wandb.proto.wandb_internal_pb2", reason="the extra wandb is not installed"
    )
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record, at = record + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield wire.Record.FromString(record)
            record = b""


def wandb(out: Path) -> tuple[dict[str, str], Series]:
    """Config and history of the offline runs in a run folder."""
    config: dict[str, str] = {}
    series: Series = {}
    for file in sorted((out / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")  # type: ignore[attr-defined]
            if kind == "run":
                config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}  # type: ignore[attr-defined]
            if kind == "history":
                items = {i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}  # type: ignore[attr-defined]
                for name, value in items.items():
                    series.setdefault(name, {})[int(items["_step"])] = value
    return config, series


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def assert_same(found: Series, expected: Series) -> None:
    assert {name for name in found if not name.startswith(("summary/", "_"))} == set(expected)
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


def test_figures_are_the_numbers_of_a_round() -> None:
    log = a_round(
        3,
        **{"clients": 2, "ids": [0, 4], "dropped": [4], "stop": "enough", "seconds": float("inf")},
        test=scores(global_={"acc": 0.5, "loss": float("nan")}),
        logged={"p": [0.25, 0.75], "price": 2},
        decisions={"epochs": [1, 2]},
    )
    assert round_metrics(log) == {
        **{"clients": 2, "seen": 1, "dropped": 1, "bytes/up": 0, "bytes/down": 0},
        **{"global/acc": 0.5, "logged/p": 0.5, "logged/price": 2},
    }


def test_tensorboard_has_every_figure_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    out = tmp_path / "run"
    assert main(["run", "--method", "page", *SMALL, "--log", "tensorboard", "--out", str(out)]) == 0
    found = tensorboard(out)
    assert_same(found, logged(out))
    assert {"personal/acc", "logged/p", "train/epochs/mean", "bytes/up"} <= set(found)
    summary = json.loads((out / "summary.json").read_text())
    assert found["summary/best_round"] == {4: summary["best_round"]}


def test_mlflow_has_params_and_metrics_of_a_comparison(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    out = tmp_path / "cmp"
    methods = ["--methods", "fedavg,local", "--seeds", "2"]
    assert main(["compare", *methods, *SMALL, "--log", "mlflow", "--out", str(out)]) == 0
    runs = mlflow_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert len(runs) == 4
    for folder, params, status, found in runs:
        config = RunFolder(Path(folder)).read_config()
        assert params == {name: str(value) for name, value in config.items() if value != ""} | {
            name: params[name] for name, value in config.items() if value == ""
        }
        assert status == "FINISHED"
        assert_same(found, logged(Path(folder)))


def test_mlflow_goes_where_its_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    store = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    equipoise.run(
        tmp_path / "run",
        log="mlflow",
        clients=4,
        samples=40,
        epochs=1,
        rounds=2,
        executor="stacked",
    )
    [(_, _, _, found)] = mlflow_runs(store)
    assert_same(found, logged(tmp_path / "run"))
    assert not (tmp_path / "mlflow.db").exists()


def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--log", "wandb", "--out", str(out)]) == 0
    config, found = wandb(out)
    assert config["rounds"] == 4
    assert_same(found, logged(out))
    assert found["summary/bytes/up"] == {
        4: json.loads((out / "summary.json").read_text())["bytes"]["up"]
    }


def stopped_run(out: Path, log: str) -> None:
    """Six rounds, checkpoints after two and four, stopped after five."""

    class Stop(Exception):
        pass

    class Stopping(trackers.RunTrackers):
        def __call__(self, entry: RoundRecord) -> None:
            super().__call__(entry)
            if entry.round == 5:
                raise Stop

    options = {
        "clients": 4,
        "samples": 40,
        "epochs": 1,
        "rounds": 6,
        "checkpoint_every": 2,
        "executor": "stacked",
    }
    from equipoise.experiment.runner import run
    from equipoise.settings.experiment_config import ExperimentConfig

    with pytest.raises(Stop), Stopping(log, out) as tracking:
        run(ExperimentConfig.from_options(options), out, on_round_end=tracking)


def test_trackio_has_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    storage = importlib.import_module("trackio.sqlite_storage")
    monkeypatch.setattr(storage, "TRACKIO_DIR", tmp_path / "trackio")
    (tmp_path / "trackio").mkdir()
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--log", "trackio", "--out", str(out), "--json"]) == 0
    name = json.loads((out / "trackers.json").read_text())["trackio"]
    logs = storage.SQLiteStorage.get_logs("equipoise", name)
    expected = [round_metrics(record)["personal/acc"] for record in RunFolder(out).records()]
    found = [row["personal/acc"] for row in logs if "personal/acc" in row]
    assert found[: len(expected)] == pytest.approx(expected)


@pytest.mark.parametrize("first", ["tensorboard", ""])
def test_resume_neither_repeats_nor_leaves_out_rounds(tmp_path: Path, first: str) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    stopped_run(out, first)  # the resume does round 5 again
    assert main(["resume", str(out), "--log", "tensorboard", "--quiet"]) == 0
    store = EventAccumulator(str(out / "tensorboard"))
    store.Reload()
    assert [event.step for event in store.Scalars("personal/acc")] == [1, 2, 3, 4, 5, 6]
    assert_same(
        tensorboard(out).keys() and {k: v for k, v in tensorboard(out).items() if k != "seconds"},
        {k: v for k, v in logged(out).items() if k != "seconds"},
    )


def test_resume_goes_on_with_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    out = tmp_path / "run"
    stopped_run(out, "mlflow")
    [(_, _, status, _)] = mlflow_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert status == "KILLED"
    assert main(["resume", str(out), "--log", "mlflow", "--quiet"]) == 0
    [(_, _, status, found)] = mlflow_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert status == "FINISHED"
    assert found["personal/acc"] == logged(out)["personal/acc"]


def test_a_finished_run_is_told_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--out", str(out)]) == 0
    assert main(["resume", str(out), "--log", "tensorboard", "--quiet"]) == 0
    assert_same(tensorboard(out), logged(out))


class Broken:
    """Fails at the second round."""

    id = "broken"

    def __init__(self, out: Path, config: dict[str, object], known: str | None) -> None:
        pass

    def write(self, step: int, metrics: Metrics) -> None:
        if step > 1:
            raise ConnectionError("the server\nis away")

    def close(self, finished: bool) -> None:
        raise AssertionError("closed though left out")


def test_a_failing_tracker_is_said_once_and_the_run_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", trackers.TrackerType("json", Broken))
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--log", "wandb,tensorboard", "--out", str(out)]) == 0
    error = capsys.readouterr().err
    assert error == "equipoise: wandb is left out from here on: ConnectionError: the server\n"
    assert_same(tensorboard(out), logged(out))  # the other one goes on


def test_a_server_that_is_away_does_not_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["run", *SMALL, "--log", "mlflow", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err.count("mlflow is left out from here on") == 1
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_overwrite_begins_anew(tmp_path: Path, command: str) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    out = tmp_path / "x"
    methods = ["--methods", "fedavg", "--seeds", "1"] if command == "compare" else []
    for _ in range(2):
        assert (
            main(
                [
                    command,
                    *methods,
                    *SMALL,
                    "--log",
                    "tensorboard",
                    "--out",
                    str(out),
                    "--overwrite",
                ]
            )
            == 0
        )
    [events] = out.rglob("events.out.*")
    assert_same(tensorboard(events.parents[1]), logged(events.parents[1]))


def test_unknown_or_missing_trackers_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        trackers.TRACKERS,
        "mlflow",
        trackers.TrackerType("a_module_that_is_not_there", trackers.MLflowTracker),
    )
    for command in (["run"], ["compare", "--methods", "fedavg"]):
        assert main([*command, "--log", "tensorbord", "--out", str(tmp_path / "a")]) == 2
        assert (
            "unknown tracker 'tensorbord' (did you mean 'tensorboard'?)" in capsys.readouterr().err
        )
        assert main([*command, "--log", "mlflow", "--out", str(tmp_path / "a")]) == 2
        assert "pip install 'equipoise[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
