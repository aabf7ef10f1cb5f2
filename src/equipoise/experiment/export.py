"""Export models of a run as safetensors, ONNX, TorchScript or LightGBM's text format."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.core import Params
from equipoise.data.transforms import MISSING_INPUT
from equipoise.experiment.model_card import Card
from equipoise.experiment.model_files import read_model
from equipoise.experiment.predict import network_of
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.trees.ensemble import TreeEnsemble
from equipoise.trees.lightgbm_format import lightgbm_text
from equipoise.utils import io as files
from equipoise.utils import serialization
from equipoise.utils.errors import UsageError, install_hint

NUM_CHECKED_ROWS = 64  # random rows on which export and original are compared
MAX_RELATIVE_GAP = 1e-4  # largest difference of logits, relative to the largest logit


class Exported(NamedTuple):
    """What is exported.

    Attributes:
        module: The model; a copy that may change.
        params: Its parameters.
        x: Rows on which file and original are compared.
        facts: Metadata: owner, run, inputs, outputs and preprocessing of tables.
        card: Card of the run's models.
    """

    module: nn.Module
    params: Params
    x: Tensor
    facts: dict[str, str]
    card: Card


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
        form: ``safetensors``, ``onnx``, ``torchscript`` or, of trees, ``lightgbm``.
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
    if isinstance(module, TreeEnsemble):
        x = module.with_codes(x)
    suffix, fill = FORMATS[form]
    name = "global" if client is None else f"client-{card.file_name(client)}"
    out = out or folder.models / f"export-{name}{suffix}"
    files.make_folder(out.parent)
    with torch.no_grad():
        expected = module(x)
    gaps: list[float] = []

    def write(file: Path) -> None:
        """Write to a temporary file, which is renamed only after its predictions were compared."""
        with torch.no_grad():
            outputs = fill(Exported(copy.deepcopy(module), params, x, facts, card), file)
        gap = float((outputs - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
        if gap > MAX_RELATIVE_GAP or not torch.equal(outputs.argmax(1), expected.argmax(1)):
            raise UsageError(
                f"the {form} model predicts otherwise than the original (by {gap:.2g}): not written"
            )
        gaps.append(gap)

    files.write_with(out, write)
    return out, gaps[0]


def _safetensors(model: Exported, out: Path) -> Tensor:
    """Write safetensors; return the logits of the file."""
    serialization.fill_tensors(out, model.params, model.facts)
    model.module.load_state_dict(load_file(out), strict=False)
    logits: Tensor = model.module(model.x)
    return logits


def _torchscript(model: Exported, out: Path) -> Tensor:
    """Write TorchScript; return the logits of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch recommends formats that few programs read
        content = io.BytesIO()  # PyTorch refuses file names from which it cannot derive a name
        traced = torch.jit.trace(model.module, model.x[:2])
        torch.jit.save(traced, content, _extra_files=model.facts)
        out.write_bytes(content.getvalue())
        logits: Tensor = torch.jit.load(str(out))(model.x)
    return logits


def _onnx(model: Exported, out: Path) -> Tensor:
    """Write ONNX; return the logits of the file."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise UsageError(f"ONNX needs an extra: {install_hint('onnx')}") from error
    facts = model.facts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        axes = {"x": {0: "rows"}, "logits": {0: "rows"}}
        torch.onnx.export(
            model.module,
            (model.x[:2],),
            str(out),
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes=axes,
            dynamo=False,
        )
    written = onnx.load(out)
    onnx.helper.set_model_props(written, facts)
    written.doc_string = f"{facts['is']}, {facts['kind']} of {facts['target']}"
    onnx.checker.check_model(written)
    onnx.save(written, out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    logits: Any = session.run(["logits"], {"x": model.x.numpy()})
    return torch.from_numpy(logits[0])


def _lightgbm(model: Exported, out: Path) -> Tensor:
    """Write LightGBM's text format; return the logits of the file."""
    if not isinstance(model.module, TreeEnsemble):
        raise UsageError(
            f"LightGBM's format is for trees, and the model is {model.card.model}: choose onnx"
        )
    try:
        import lightgbm
    except ImportError as error:
        raise UsageError(
            "LightGBM's format is checked by LightGBM: pip install lightgbm"
        ) from error
    target = model.card.target
    out.write_text(lightgbm_text(model.params, target, model.card.inputs), encoding="utf-8")
    x = np.where(model.x < MISSING_INPUT / 10, np.nan, model.x.double())
    margins = np.asarray(lightgbm.Booster(model_file=out).predict(x, raw_score=True))
    if target.kind == "regression":
        margins = (margins - target.mean) / target.scale
    logits = torch.from_numpy(margins.reshape(len(x), -1)).float()
    if logits.shape[1] != target.outputs:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits


FORMATS: dict[str, tuple[str, Callable[[Exported, Path], Tensor]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
    "lightgbm": (".txt", _lightgbm),
}
