"""A model of a run as others deploy it: safetensors, ONNX or TorchScript, checked against the original."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.contract import Supervised, Tree
from equipoise.core import files as checkpoint
from equipoise.core.errors import UsageError
from equipoise.records.folder import Folder
from equipoise.runs.running import build_task
from equipoise.settings.config import Settings
from equipoise.settings.given import settings_in

ROWS = 64  # of the server's test set, that predictions are compared on
CLOSE = 1e-4  # how far logits may differ, relative to the largest


def export(
    path: Path, client: int | None, form: str, out: Path | None, settings: Settings | None = None
) -> tuple[Path, float]:
    """Write the global model, or a client's personal one; gives the file and the largest difference of its logits.

    ``settings``: of a run made in Python.
    """
    if form not in FORMATS:
        raise UsageError(f"unknown format '{form}': choose {', '.join(FORMATS)}")
    folder = Folder(path)
    folder.demand()
    params = read_model(folder, client)
    settings = settings or settings_in(folder.config)
    task = build_task(replace(settings, run=replace(settings.run, device="cpu")))
    if not isinstance(task, Supervised):
        raise UsageError(f"task '{task.name}' learns no network: read its table from '{folder.models}'")
    x = task.samples(ROWS)
    module = copy.deepcopy(task.module).eval()
    module.load_state_dict(params, strict=False)
    suffix, write = FORMATS[form]
    name = "global" if client is None else f"client-{client}"
    out = out or folder.models / f"export-{name}{suffix}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        expected = task.forward(params, x)
        found = write(module, {**task.frozen, **params}, x, out)
    gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    if gap > CLOSE or not torch.equal(found.argmax(1), expected.argmax(1)):
        out.unlink()
        raise UsageError(f"the {form} model predicts otherwise than the original (by {gap:.2g}): not written")
    return out, gap


def read_model(folder: Folder, client: int | None) -> Tree:
    """One model of a finished run, without building its task."""
    name = "global" if client is None else "personal"
    file = folder.models / f"{name}.safetensors"
    if not file.is_file():
        why = {
            "global": "the run is not finished, or its method has no whole global model: try --client",
            "personal": "the run is not finished, or kept no personal models (--no-save-personal)",
        }
        raise UsageError(f"'{file}' does not exist: {why[name]}")
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise UsageError(f"'{file}' is damaged: {error}") from error
    if client is None:
        return tensors
    ids = tensors.pop("client_ids").tolist()
    if client not in ids:
        raise UsageError(f"client {client} has no personal model in '{file}': it has {min(ids)} to {max(ids)}")
    row = ids.index(client)
    return {key: value[row].clone() for key, value in tensors.items()}


def _safetensors(module: nn.Module, params: Tree, x: Tensor, out: Path) -> Tensor:
    checkpoint.write_tensors(out, params)
    module.load_state_dict(load_file(out), strict=False)
    logits: Tensor = module(x)
    return logits


def _torchscript(module: nn.Module, params: Tree, x: Tensor, out: Path) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch wants its newer formats, which this one's readers do not know
        torch.jit.save(torch.jit.trace(module, x[:2]), str(out))
        logits: Tensor = torch.jit.load(str(out))(x)
    return logits


def _onnx(module: nn.Module, params: Tree, x: Tensor, out: Path) -> Tensor:
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
            module, args, str(out), input_names=["x"], output_names=named, dynamic_axes=axes, dynamo=False
        )
    onnx.checker.check_model(onnx.load(out))
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    logits: Any = session.run(["logits"], {"x": x.numpy()})
    return torch.from_numpy(logits[0])


FORMATS: dict[str, tuple[str, Callable[[nn.Module, Tree, Tensor, Path], Tensor]]] = {
    "safetensors": (".safetensors", _safetensors),
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
}
