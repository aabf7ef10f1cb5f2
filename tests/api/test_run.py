"""A run as a thing: records, models, predictions, exports; stopping and going on."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import equipoise as eq
from equipoise.cli import main

SMALL = {"clients": 4, "samples": 40, "epochs": 1, "executor": "stacked"}


def test_records_are_those_of_the_files(finished: eq.Run) -> None:
    lines = [
        json.loads(line) for line in (finished.folder / "rounds.jsonl").read_text().splitlines()
    ]
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert [record.round for record in finished.rounds] == [1, 2, 3]
    assert (
        finished.rounds[-1].personal.acc
        == lines[-1]["personal"]["acc"]
        == finished.final.personal.acc
    )
    assert finished.final.global_.acc == summary["global"]["acc"]
    assert finished.final.bytes.up == sum(line["bytes"]["up"] for line in lines)
    assert (finished.config["mu"], finished.config["clients"], finished.config["seed"]) == (
        0.1,
        5,
        1,
    )
    assert finished.summary == finished.final


def test_without_out_every_run_has_a_new_folder(here: Path) -> None:
    runs = [eq.run(rounds=1, **SMALL) for _ in range(2)]
    assert [str(run.folder) for run in runs] == [
        "runs/fedavg-synthetic-1",
        "runs/fedavg-synthetic-2",
    ]
    with pytest.raises(eq.UsageError, match="lr is -1"):
        eq.run(rounds=1, lr=-1.0)
    with pytest.raises(eq.UsageError, match="one layer"):
        eq.run(method="fedrep", rounds=1, **SMALL)  # refused after its folder was chosen
    assert len(list((here / "runs").iterdir())) == 2


def test_a_folder_is_not_overwritten_unasked(finished: eq.Run) -> None:
    with pytest.raises(eq.UsageError, match="exists already"):
        eq.run(finished.folder, rounds=1)


def test_on_round_may_stop_with_a_reason(tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(record: object) -> str | None:
        seen.append(record.round)
        return "good enough" if record.round == 2 else None

    run = eq.run(tmp_path / "run", on_round=enough, rounds=5, **SMALL)
    assert seen == [1, 2]
    assert (run.final.rounds, run.final.stopped) == (2, "good enough")
    assert (
        json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])["stop"]
        == "good enough"
    )
    assert run.resume(on_round=enough).final.rounds == 2  # it has ended
    assert (tmp_path / "run/models/global.safetensors").is_file()


def stop_at(number: int):
    """Ctrl-C in a round."""

    def press(record: object) -> None:
        if record.round == number:
            signal.raise_signal(signal.SIGINT)

    return press


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(30, 5)).astype(np.float32), np.arange(30) % 3) for _ in range(3)]


def test_what_was_made_in_python_is_recorded_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = eq.Task.from_datasets(pairs(), model=nn.Linear(5, 3), name="mine")
    whole = eq.run(tmp_path / "whole", task=task, rounds=4, lr=0.2, checkpoint_every=1)
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt, match=r"equipoise\.open\('.*cut'\)\.resume\(\)"):
        eq.run(out, task=task, rounds=4, lr=0.2, checkpoint_every=1, on_round=stop_at(2))
    run = eq.open(out)
    assert run.config["task"] == "python:mine"
    assert not run.is_finished
    assert len(run.rounds) == 2
    with pytest.raises(eq.UsageError, match=r"not finished: go on with run\.resume\(\)"):
        _ = run.final
    assert main(["resume", str(out)]) == 2
    how = "run.resume() in the process that made it, or equipoise.open(folder).resume(task=...)"
    assert f"task 'mine' was made in Python: go on with {how}" in capsys.readouterr().err
    other = eq.Task.from_datasets(pairs(), model=nn.Linear(5, 3), name="other")
    with pytest.raises(eq.UsageError, match="the run has task 'python:mine', not 'python:other'"):
        run.resume(task=other)
    done = run.resume(task=task)
    a, b = (load_file(folder / "models" / "global.safetensors") for folder in (whole.folder, out))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert done.final.personal == whole.final.personal
    assert (
        eq.run(out, task=task, rounds=4, lr=0.2, checkpoint_every=1, resume=True).final
        == done.final
    )
    assert eq.open(out, task=task).model().weight.shape == (3, 5)
    assert done.report().is_file()


def test_models_predict_what_the_run_scored(finished: eq.Run) -> None:
    net = finished.model()
    weights = load_file(finished.folder / "models" / "global.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    stack = load_file(finished.folder / "models" / "personal.safetensors")
    own = finished.model(client=2)
    row = stack["client_ids"].tolist().index(2)
    assert all(torch.equal(value, stack[name][row]) for name, value in own.state_dict().items())
    rows = np.random.default_rng(0).normal(size=(4, 30)).astype(np.float32)
    with torch.no_grad():
        expected = own(torch.from_numpy(rows)).argmax(1)
    assert finished.predict(rows, client=2).tolist() == expected.tolist()
    assert finished.predict(rows, probabilities=True).sum(1) == pytest.approx(1)
    for wrong, words in (("x", "give its number"), (99, "has no personal model")):
        with pytest.raises(eq.UsageError, match=words):
            finished.model(client=wrong)
    with pytest.raises(eq.UsageError, match=r"rows have shape \(7,\), the model takes \(30,\)"):
        finished.predict(np.zeros((2, 7)))


def test_certify_and_export(tmp_path: Path) -> None:
    run = eq.run(tmp_path / "run", method="autopilot", rounds=2, **SMALL)
    found = run.certify(samples=2)
    assert found == run.summary.certificate
    assert found.samples == 2
    file = run.export(tmp_path / "one.safetensors", client=1)
    assert set(load_file(file)) == set(run.model().state_dict())
    with pytest.raises(eq.UsageError, match=r"must end in \.safetensors, \.onnx, \.pt"):
        run.export(tmp_path / "one.h5")


def test_the_report_shows_itself_in_a_notebook(finished: eq.Run) -> None:
    pytest.importorskip("plotly", reason="the extra report is not installed")
    page = finished.report()
    assert page == finished.folder / "report.html"
    assert page._repr_html_().startswith("<iframe srcdoc=")


def test_private_is_the_command_lines_dp(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    wrapped = eq.private(eq.methods.FedAvg(), clip=1.0, noise=0.8, delta=1e-3)
    run = eq.run(tmp_path / "a", method=wrapped, rounds=2, **SMALL)
    plain = eq.run(
        tmp_path / "b", method="fedavg", dp_clip=1.0, dp_noise=0.8, dp_delta=1e-3, rounds=2, **SMALL
    )
    assert run.config == plain.config
    assert run.final.privacy == plain.final.privacy
    with pytest.raises(eq.UsageError, match="'dp_clip' is given twice"):
        eq.run(tmp_path / "c", method=wrapped, dp_clip=2.0, **SMALL)


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(eq.UsageError, match="is not a run folder"):
        eq.open(tmp_path)
