"""Read the parameters of a run's models."""

from __future__ import annotations

from equipoise.core import Params
from equipoise.records.run_dir import Folder
from equipoise.utils import io as checkpoint
from equipoise.utils.errors import UsageError


def read_model(folder: Folder, client: int | None) -> Params:
    """One model of a finished run, whole, without building its task: what is frozen is stored once for all."""
    name = "global" if client is None else "personal"
    file = folder.models / f"{name}.safetensors"
    if not file.is_file():
        why = {
            "global": "the run is not finished, or its method has no whole global model: try --client",
            "personal": "the run is not finished, or kept no personal models (--no-save-personal)",
        }
        raise UsageError(f"'{file}' does not exist: {why[name]}")
    tensors, _ = checkpoint.read_tensors(file)
    base = folder.models / "frozen.safetensors"
    frozen = checkpoint.read_tensors(base)[0] if base.is_file() else {}
    if client is None:
        return {**frozen, **tensors}
    ids = tensors.pop("client_ids").tolist()
    if client not in ids:
        raise UsageError(
            f"client {client} has no personal model in '{file}': it has {min(ids)} to {max(ids)}"
        )
    row = ids.index(client)
    return {**frozen, **{key: value[row].clone() for key, value in tensors.items()}}
