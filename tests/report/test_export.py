"""Exported models predict as the originals; what cannot be exported is refused in words."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import equipoise
from equipoise.cli import main
from equipoise.experiment import export as exporting
from equipoise.experiment.build import build_task
from equipoise.experiment.runner import RunFolder
from equipoise.settings.loading import settings_in
from equipoise.tasks.supervised import ExamplesTask


def test_a_personal_model_is_its_row(page_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.safetensors"
    assert main(["export", str(page_run), "--client", "2", "--out", str(out)]) == 0
    stack = load_file(page_run / "models" / "personal.safetensors")
    row = stack["client_ids"].tolist().index(2)
    for name, value in load_file(out).items():
        assert torch.equal(value, stack[name][row])


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_other_formats_predict_alike(
    page_run: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "onnx":
        pytest.importorskip("onnx", reason="the extra onnx is not installed")
    out = tmp_path / f"global.{form}"
    assert main(["export", str(page_run), "--format", form, "--out", str(out)]) == 0
    assert "predictions agree" in capsys.readouterr().out
    assert out.stat().st_size > 0


def task_of(model: str) -> equipoise.Task:
    """Two clients with a few rows that the model can read."""
    rng = np.random.default_rng(0)

    def rows(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 4
        if model == "mlp":
            return rng.normal(size=(count, 6)).astype(np.float32), y
        if model == "lstm":
            return rng.integers(0, 4, (count, 9)), y
        return rng.integers(0, 256, (count, 16, 16, 3)).astype(np.uint8), y

    return equipoise.Task.from_datasets([rows(), rows()], model=model, server=rows(12))


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.load:DeprecationWarning"
)  # the format's readers still use it
@pytest.mark.parametrize(
    "model", ["mlp", "cnn", pytest.param("resnet18", marks=pytest.mark.slow), "lstm"]
)
def test_every_model_in_every_format_predicts_as_its_run(model: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    out, task = tmp_path / "run", task_of(model)
    run = equipoise.run(
        out, task=task, method="fedavg", rounds=1, epochs=1, batch_size=10, lr=0.01, executor="loop"
    )
    for name, client in (("global.safetensors", None), ("global.onnx", None), ("personal.pt", 1)):
        assert run.export(tmp_path / name, client=client).is_file()
    built = build_task(settings_in(RunFolder(out).read_config(), task=task.spec))
    assert isinstance(built, ExamplesTask)
    x = built.prepare(built.data.server("test")[0]).contiguous()
    whole, personal = (exporting.read_model(RunFolder(out), client) for client in (None, 1))
    session = onnxruntime.InferenceSession(tmp_path / "global.onnx")
    script = torch.jit.load(str(tmp_path / "personal.pt"))
    with torch.no_grad():
        for count in (1, len(x)):  # any number of rows
            [logits] = session.run(None, {"x": x[:count].numpy()})
            np.testing.assert_allclose(
                logits, built.forward(whole, x[:count]), rtol=1e-3, atol=1e-5
            )
            np.testing.assert_allclose(
                script(x[:count]), built.forward(personal, x[:count]), rtol=1e-3, atol=1e-5
            )


def test_a_model_that_predicts_otherwise_is_not_written(
    page_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def wrong(model: exporting.Exported, out: Path) -> torch.Tensor:
        out.write_text("wrong")
        return -model.module(model.x)

    monkeypatch.setitem(exporting.FORMATS, "onnx", (".onnx", wrong))
    out = tmp_path / "wrong.onnx"
    assert main(["export", str(page_run), "--format", "onnx", "--out", str(out)]) == 2
    assert "predicts otherwise" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--client", "999"], "client 999 has no personal model"),
        (["--format", "pickle"], "unknown format 'pickle'"),
    ],
)
def test_refusals(
    page_run: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(page_run), *options]) == 2
    assert words in capsys.readouterr().err


def test_a_damaged_model_is_named(
    page_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(page_run, tmp_path / "run")
    (tmp_path / "run" / "models" / "global.safetensors").write_text("garbage")
    assert main(["export", str(tmp_path / "run")]) == 2
    assert "global.safetensors' is damaged" in capsys.readouterr().err


def test_no_run_no_model(
    tmp_path: Path, tabular_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["export", str(tabular_run)]) == 2
    assert "learns no network" in capsys.readouterr().err
