"""Windows of recordings: never of one recording in two splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equipoise.core.errors import UsageError
from equipoise.data.own import OwnShares
from equipoise.data.recordings import Recordings, federate_recordings, read_recordings
from equipoise.runs.running import build_task
from equipoise.settings.config import Settings

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
    return federate_recordings(recordings, window, OwnShares(), np.random.default_rng(0))


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
def test_archives_that_cannot_be(changes: dict, client: str, window: int, says: str, tmp_path: Path) -> None:
    archive(tmp_path / "a.npz", **changes)
    with pytest.raises(UsageError, match=says):
        made(read_recordings(tmp_path / "a.npz", client, "move"), window)


@pytest.mark.skipif(not WATCH.is_file(), reason="the recordings are not in ../shared/data/tables")
def test_exercises_of_a_watch() -> None:
    given = {"task": "own", "data": str(WATCH), "client_column": "subject", "target": "exercise"}
    task = build_task(Settings.of(given))
    assert task.client_names == tuple(map(str, range(1, 11)))
    assert task.data.shape == (6, 100)
    assert task.class_names[:2] == ("PEN", "ABD")
    with pytest.raises(UsageError, match="no array 'exercize'"):
        build_task(Settings.of({**given, "target": "exercize"}))
