"""Models in a run's folder."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.core import Params
from equipoise.experiment.model_files import read_model
from equipoise.experiment.predict import network_of
from equipoise.records.run_dir import Folder
from equipoise.settings.run_settings import RunSettings
from equipoise.utils import io as checkpoint
from equipoise.utils.errors import UsageError

ROWS = 64  # that predictions are compared on
CLOSE = 1e-4  # how far logits may differ, relative to the largest


Facts = dict[str, str]
"""What an export says of itself: whose model it is, of which run, its inputs, outputs and how tables become inputs."""


def export(
    path: Path, client: int | None, form: str, out: Path | None, settings: RunSettings | None = None
) -> tuple[Path, float]:
    """Write a model of a run in a format that other programs load, and check that it predicts as the original.

    Arguments:
        path: the run's folder.
        client: whose personal model; the global model without one.
        form: ``safetensors``, ``onnx`` or ``torchscript``.
        out: the file; without it, one in the run's folder.
        settings: the settings of a run that was made in Python.

    Returns:
        The file and the largest difference of its logits from the original's.
    """
    if form not in FORMATS:
        raise UsageError(f"unknown format '{form}': choose {', '.join(FORMATS)}")
    folder = Folder(path)
    folder.demand()
    folder.check()
    params = read_model(folder, client)
    module, card = network_of(folder, settings)
    module.load_state_dict(params, strict=False)
    facts = card.facts(client)
    if folder.preparation.is_file():
        facts["preparation"] = folder.preparation.read_text(encoding="utf-8")
    x = card.samples(ROWS)
    suffix, fill = FORMATS[form]
    name = "global" if client is None else f"client-{card.called(client)}"
    out = out or folder.models / f"export-{name}{suffix}"
    checkpoint.make_folder(out.parent)
    with torch.no_grad():
        expected = module(x)
    gaps: list[float] = []

    def write(file: Path) -> None:
        """It takes its name only after its predictions were compared."""
        with torch.no_grad():
            found = fill(copy.deepcopy(module), params, x, file, facts)
        gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
        if gap > CLOSE or not torch.equal(found.argmax(1), expected.argmax(1)):
            raise UsageError(
                f"the {form} model predicts otherwise than the original (by {gap:.2g}): not written"
            )
        gaps.append(gap)

    checkpoint.write_with(out, write)
    return out, gaps[0]


def _safetensors(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    checkpoint.fill_tensors(out, params, facts)
    module.load_state_dict(load_file(out), strict=False)
    logits: Tensor = module(x)
    return logits


def _torchscript(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # PyTorch wants its newer formats, which this one's readers do not know
        content = (
            io.BytesIO()
        )  # PyTorch refuses names of files that it cannot take an archive's name from
        torch.jit.save(torch.jit.trace(module, x[:2]), content, _extra_files=facts)
        out.write_bytes(content.getvalue())
        logits: Tensor = torch.jit.load(str(out))(x)
    return logits


def _onnx(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError("ONNX needs an extra: pip install 'equipoise[onnx]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        axes = {"x": {0: "rows"}, "logits": {0: "rows"}}
        args, named = (x[:2],), ["logits"]
        torch.onnx.export(
            module,
            args,
            str(out),
            input_names=["x"],
            output_names=named,
            dynamic_axes=axes,
            dynamo=False,
        )
    told = onnx.load(out)
    onnx.helper.set_model_props(told, facts)
    told.doc_string = f"{facts['is']}, {facts['kind']} of {facts['target']}"
    onnx.checker.check_model(told)
    onnx.save(told, out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    logits: Any = session.run(["logits"], {"x": x.numpy()})
    return torch.from_numpy(logits[0])


FORMATS: dict[str, tuple[str, Callable[[nn.Module, Params, Tensor, Path, Facts], Tensor]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
}
