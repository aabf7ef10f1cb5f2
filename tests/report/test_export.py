"""Exported models predict as the originals; what cannot be exported is refused in words."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from equipoise import export as exporting
from equipoise.cli import main


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


def test_a_model_that_predicts_otherwise_is_not_written(
    page_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(module: torch.nn.Module, params: object, x: torch.Tensor, out: Path) -> torch.Tensor:
        out.write_text("wrong")
        return -module(x)

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
def test_refusals(page_run: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(page_run), *options]) == 2
    assert words in capsys.readouterr().err


def test_no_run_no_model(tmp_path: Path, tabular_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["export", str(tabular_run)]) == 2
    assert "learns no network" in capsys.readouterr().err
