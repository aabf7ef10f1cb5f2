"""Callbacks, data frames, and mistakes in the first argument."""

from pathlib import Path

import pytest

import equipoise as eq
from equipoise.records.run_dir import RunFolder

SMALL = {"clients": 4, "samples": 40, "epochs": 1}


class Recorder(eq.callbacks.Callback):
    def __init__(self) -> None:
        self.calls: list[object] = []

    def on_start(self, run: eq.Run, rounds: int) -> None:
        self.calls.append(("start", rounds))

    def on_round(self, record: object) -> str | None:
        self.calls.append(record.round)
        return "enough" if record.round == 2 else None

    def on_checkpoint(self, run: eq.Run, round: int) -> None:
        assert RunFolder(run.folder).checkpoint.exists()
        self.calls.append(("saved", round))

    def on_end(self, run: eq.Run) -> None:
        self.calls.append("end")


def test_callbacks_see_start_rounds_and_end(tmp_path: Path) -> None:
    first = Recorder()
    second = Recorder()
    run = eq.run(tmp_path / "run", rounds=5, callbacks=[first, second], **SMALL)
    # A run that is stopped saves once more.
    assert first.calls == second.calls == [("start", 5), 1, 2, ("saved", 2), "end"]
    assert run.final.stopped == "enough"


def test_the_end_is_told_after_an_error(tmp_path: Path) -> None:
    recorder = Recorder()
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(eq.UsageError, match="is a file, not a folder"):
        eq.run(tmp_path / "run", rounds=5, callbacks=[recorder], **SMALL)
    assert recorder.calls == [("start", 5), "end"]


def test_early_stopping_waits_for_a_better_score(tmp_path: Path) -> None:
    never_better = eq.callbacks.EarlyStopping("personal.acc", patience=3, min_delta=1.0)
    run = eq.run(tmp_path / "run", rounds=20, callbacks=[never_better], **SMALL)
    assert run.final.rounds == 4
    assert run.final.stopped == "personal.acc has not become better for 3 evaluations"
    loss = eq.callbacks.EarlyStopping("personal.loss", patience=20)
    assert eq.run(tmp_path / "b", rounds=5, callbacks=[loss], **SMALL).final.rounds == 5


@pytest.mark.parametrize("score", ["acc", "personal", "persona.acc", "personal."])
def test_a_wrong_score_is_named(score: str) -> None:
    with pytest.raises(eq.UsageError, match=r"such as personal\.acc"):
        eq.callbacks.EarlyStopping(score)


def test_progress_prints_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eq.run(tmp_path / "run", rounds=2, callbacks=[eq.callbacks.Progress()], **SMALL)
    assert "round 2/2" in capsys.readouterr().err


def test_a_method_as_folder_is_refused() -> None:
    with pytest.raises(eq.UsageError, match="'ditto' is a method: say method='ditto'"):
        eq.run("ditto", rounds=1)


def test_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = eq.run(tmp_path / "run", rounds=3, **SMALL)
    rounds = run.rounds_frame()
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["personal.acc"].tolist() == [record.personal.acc for record in run.rounds]
    clients = run.clients_frame()
    assert clients["client"].tolist() == [0, 1, 2, 3]
    compared = eq.compare(["fedavg", "local"], rounds=2, seeds=2, out=tmp_path / "c", **SMALL)
    frame = compared.frame()
    assert frame["method"].tolist() == ["fedavg", "fedavg", "local", "local"]
    assert frame["seed"].tolist() == [0, 1, 0, 1]
    assert frame["personal.acc"].tolist()[0] == compared.runs["fedavg"][0].final.personal.acc


def test_checkpoints_are_told_before_their_rounds(tmp_path: Path) -> None:
    recorder = Recorder()
    eq.run(tmp_path / "run", rounds=1, checkpoint_every=1, callbacks=[recorder], **SMALL)
    assert recorder.calls == [("start", 1), ("saved", 1), 1, "end"]


def test_a_resumed_run_has_callbacks(tmp_path: Path) -> None:
    def stop(record: object) -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eq.run(tmp_path / "run", rounds=2, checkpoint_every=1, on_round=stop, **SMALL)
    recorder = Recorder()
    eq.open(tmp_path / "run").resume(callbacks=[recorder])
    assert recorder.calls == [("start", 2), ("saved", 2), 2, ("saved", 2), "end"]


def test_trackers_are_a_callback(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    trackers = eq.callbacks.Trackers("tensorboard")
    eq.run(tmp_path / "run", rounds=2, callbacks=[trackers], **SMALL)
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))
    with pytest.raises(eq.UsageError, match="unknown tracker 'tensorbord'"):
        eq.callbacks.Trackers("tensorbord")
