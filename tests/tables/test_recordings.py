"""Windows of recordings: never of one recording in two splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise.cli import main
from equipoise.data.tabular import TableConfig
from equipoise.data.time_series import Recordings, federate_recordings, read_recordings
from equipoise.experiment.build import build_task
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils.errors import UsageError

WATCH = Path(__file__).parents[3] / "shared" / "data" / "tables" / "watch.npz"
LENGTHS = np.array([25, 30, 21] * 8)


def archive(path: Path, **changes: object) -> Path:
    """Every step of a recording holds the recording's number."""
    number = np.arange(len(LENGTHS))
    arrays = {
        **{"x": np.repeat(number, LENGTHS)[:, None] * np.ones((1, 2)), "length": LENGTHS},
        **{"who": number % 3, "move": number % 2, "moves": np.array(["up", "down"])},
    }
    np.savez(path, **{**arrays, **changes})
    return path


def made(recordings: Recordings, window: int = 10):
    return federate_recordings(recordings, window, TableConfig(), np.random.default_rng(0)).data


def test_windows_are_half_over_the_one_before(tmp_path: Path) -> None:
    steps = np.arange(int(LENGTHS.sum()), dtype=float)[:, None]
    found = read_recordings(archive(tmp_path / "a.npz", x=steps), "who", "move").windows(1, 10)
    assert found[:, 0, 0].tolist() == [25, 30, 35, 40, 45]
    assert found[0, 0].tolist() == list(range(25, 35))


def test_a_recording_is_in_one_split(tmp_path: Path) -> None:
    recordings = read_recordings(archive(tmp_path / "a.npz"), "who", "move")
    assert recordings.names == ("0", "1", "2")
    assert recordings.classes == ("up", "down")
    data = made(recordings)
    sets = [data.split(np.arange(3), name).x for name in ("train", "val", "test")]
    sets += [data.server(name)[0] for name in ("public", "test")]
    seen = [set(np.unique(x[:, 0].numpy())) for x in sets]
    assert sum(map(len, seen)) == len(set.union(*seen)) == len(LENGTHS)
    train = sets[0].numpy()
    assert abs(train.mean()) < 1e-5
    assert train.std() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "client", "window", "says"),
    [
        ({}, "whom", 10, "no array 'whom' .did you mean 'who'"),
        ({"length": LENGTHS[:-1]}, "who", 10, "lengths that add up"),
        ({"x": np.full((int(LENGTHS.sum()), 2), np.nan)}, "who", 10, "step 0 .* holds NaN"),
        ({}, "who", 22, "recording 2 has 21 steps"),
        ({"who": np.arange(len(LENGTHS)) // 3}, "who", 10, "client '0' has 3 recordings"),
    ],
)
def test_archives_that_cannot_be(
    changes: dict, client: str, window: int, says: str, tmp_path: Path
) -> None:
    archive(tmp_path / "a.npz", **changes)
    with pytest.raises(UsageError, match=says):
        made(read_recordings(tmp_path / "a.npz", client, "move"), window)


def test_new_recordings_are_predicted_from_the_run_s_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, new = archive(tmp_path / "a.npz"), tmp_path / "run", tmp_path / "new.npz"
    given = [
        "--data",
        str(data),
        "--client-column",
        "who",
        "--target",
        "move",
        "--window",
        "20",
        "--model",
        "cnn1d",
    ]
    assert main(["run", "--task", "tables", *given, "--rounds", "1", "--out", str(run)]) == 0
    assert RunFolder(run).read_summary().bytes_before.up > 0
    archive(new, x=np.ones((40 + 34, 2)), length=np.array([40, 34]))
    data.unlink()
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(new), "--client", "1", "--out", str(out)]) == 0
    lines = [line.split(",") for line in out.read_text().splitlines()]
    assert lines[0] == ["recording", "start", "predicted", "p(up)", "p(down)"]
    assert [line[:2] for line in lines[1:]] == [
        ["0", "0"],
        ["0", "10"],
        ["0", "20"],
        ["1", "0"],
        ["1", "10"],
    ]
    opened = equipoise.open(run)
    steps = {"x": np.ones((74, 2)), "length": np.array([40, 34])}
    whole = opened.predict(steps, client="1", probabilities=True)
    assert [f"{value:.6g}" for value in whole[:, 0]] == [line[3] for line in lines[1:]]
    assert opened.predict(np.ones((1, 2, 20)), client="1").tolist() == [lines[1][2]]
    capsys.readouterr()
    archive(new, x=np.ones((9, 2)), length=np.array([9]))
    assert main(["predict", str(run), str(new), "--out", str(tmp_path / "b.csv")]) == 2
    assert "recording 0 has 9 steps: a window of 20 is longer" in capsys.readouterr().err
    archive(new, x=np.ones((20, 3)), length=np.array([20]))
    assert main(["predict", str(run), str(new), "--out", str(tmp_path / "b.csv")]) == 2
    assert (
        "the windows have shape (3, 20), the model takes 2 channels of 20 steps"
        in capsys.readouterr().err
    )


def test_recordings_tell_nothing_where_they_are_not_standardised(tmp_path: Path) -> None:
    given = {
        "task": "tables",
        "data": str(archive(tmp_path / "a.npz")),
        "client_column": "who",
        "target": "move",
    }
    task = build_task(ExperimentConfig.from_options({**given, "window": 10, "standardise": "none"}))
    assert task.preparation.upload_bytes == 0
    assert task.data.server("public")[0].max() > 2  # as they were recorded
    with pytest.raises(UsageError, match="standardised by the federation, or not at all"):
        build_task(ExperimentConfig.from_options({**given, "window": 10, "standardise": "client"}))


@pytest.mark.skipif(not WATCH.is_file(), reason="the recordings are not in ../shared/data/tables")
def test_exercises_of_a_watch() -> None:
    given = {"task": "tables", "data": str(WATCH), "client_column": "subject", "target": "exercise"}
    task = build_task(ExperimentConfig.from_options(given))
    assert task.info.client_names == tuple(map(str, range(1, 11)))
    assert task.data.shape == (6, 100)
    assert task.info.class_names[:2] == ("PEN", "ABD")
    with pytest.raises(UsageError, match="no array 'exercize'"):
        build_task(ExperimentConfig.from_options({**given, "target": "exercize"}))


def test_weight_decay_of_tables_is_not_that_of_recordings() -> None:
    """It was chosen on tables; who gives it has it in both."""
    for data, wanted in (("a.csv", 0.01), ("a.npz", 0.0)):
        settings = ExperimentConfig.from_options({"task": "tables", "data": data})
        assert settings.training.weight_decay == wanted
    given = {"task": "tables", "data": "a.npz", "weight_decay": 0.5}
    assert ExperimentConfig.from_options(given).training.weight_decay == 0.5
