"""Export models of a run as safetensors, ONNX or TorchScript."""

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
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.utils import io as files
from equipoise.utils import serialization
from equipoise.utils.errors import UsageError, install_hint

NUM_CHECKED_ROWS = 64  # random rows on which export and original are compared
MAX_RELATIVE_GAP = 1e-4  # largest difference of logits, relative to the largest logit


Facts = dict[str, str]
"""Metadata of an export: owner, run, inputs, outputs and preprocessing of tables."""


def export(
    path: Path,
    client: int | None,
    form: str,
    out: Path | None,
    settings: ExperimentConfig | None = None,
    is_local: bool = False,
) -> tuple[Path, float]:
    """Write a model of a run and check that it predicts as the original.

    Args:
        path: Folder of the run.
        client: Client of a personal model; None for the global model.
        form: ``safetensors``, ``onnx`` or ``torchscript``.
        out: File to write; one in the folder of the run if None.
        settings: Options of a run whose task or method was made in Python.
        is_local: Whether to write the model that the client trained alone, as a baseline.

    Returns:
        The file, and the largest relative difference of its logits from the original's.

    Raises:
        UsageError: If the format is unknown or the export predicts otherwise.
    """
    if form not in FORMATS:
        raise UsageError(f"unknown format '{form}': choose {', '.join(FORMATS)}")
    folder = RunFolder(path)
    folder.demand()
    params = read_model(folder, client, is_local)
    module, card = network_of(folder, settings)
    module.load_state_dict(params, strict=False)
    facts = card.facts(client)
    if folder.preparation.exists():
        facts["preparation"] = folder.preparation.read_text()
    x = card.samples(NUM_CHECKED_ROWS)
    suffix, fill = FORMATS[form]
    name = "global" if client is None else f"client-{card.called(client)}"
    out = out or folder.models / f"export-{name}{suffix}"
    files.make_folder(out.parent)
    with torch.no_grad():
        expected = module(x)
    gaps: list[float] = []

    def write(file: Path) -> None:
        """Write to a temporary file, which is renamed only after its predictions were compared."""
        with torch.no_grad():
            found = fill(copy.deepcopy(module), params, x, file, facts)
        gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
        if gap > MAX_RELATIVE_GAP or not torch.equal(found.argmax(1), expected.argmax(1)):
            raise UsageError(
                f"the {form} model predicts otherwise than the original (by {gap:.2g}): not written"
            )
        gaps.append(gap)

    files.write_with(out, write)
    return out, gaps[0]


def _safetensors(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    """Write safetensors; return the logits of the file."""
    serialization.fill_tensors(out, params, facts)
    module.load_state_dict(load_file(out), strict=False)
    logits: Tensor = module(x)
    return logits


def _torchscript(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    """Write TorchScript; return the logits of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch recommends formats that few programs read
        content = io.BytesIO()  # PyTorch refuses file names from which it cannot derive a name
        torch.jit.save(torch.jit.trace(module, x[:2]), content, _extra_files=facts)
        out.write_bytes(content.getvalue())
        logits: Tensor = torch.jit.load(str(out))(x)
    return logits


def _onnx(module: nn.Module, params: Params, x: Tensor, out: Path, facts: Facts) -> Tensor:
    """Write ONNX; return the logits of the file."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"ONNX needs an extra: {install_hint('onnx')}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        axes = {"x": {0: "rows"}, "logits": {0: "rows"}}
        torch.onnx.export(
            module,
            (x[:2],),
            str(out),
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes=axes,
            dynamo=False,
        )
    model = onnx.load(out)
    onnx.helper.set_model_props(model, facts)
    model.doc_string = f"{facts['is']}, {facts['kind']} of {facts['target']}"
    onnx.checker.check_model(model)
    onnx.save(model, out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    logits: Any = session.run(["logits"], {"x": x.numpy()})
    return torch.from_numpy(logits[0])


FORMATS: dict[str, tuple[str, Callable[[nn.Module, Params, Tensor, Path, Facts], Tensor]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
}
