"""Trees on disk: written whole or not at all, and checked when read."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from equipoise.core.errors import UsageError
from equipoise.core.trees import State


def write_text(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new, never half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file, replaced as :func:`write_text` does."""
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(unshared(tensors), temporary, metadata)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save(path: Path, state: State, meta: dict[str, Any]) -> None:
    """A nested tree of tensors and a JSON object beside it, in one file."""
    tensors: dict[str, Tensor] = {}
    shape = number_leaves(state, tensors)
    write_tensors(path, tensors, {"shape": json.dumps(shape), "meta": json.dumps(meta), "crc": str(_checksum(tensors))})


def load(path: Path) -> tuple[State, dict[str, Any]]:
    """What :func:`save` wrote; a damaged file is refused by name."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        shape, meta, crc = json.loads(about["shape"]), json.loads(about["meta"]), int(about["crc"])
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UsageError(f"checkpoint '{path}' is damaged or not a checkpoint: {error}") from error
    if _checksum(tensors) != crc:
        raise UsageError(f"checkpoint '{path}' is damaged: its checksum does not match its content")
    return restore_leaves(shape, tensors), meta


def number_leaves(tree: State, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The tree's shape, with the number of a tensor in place of each; empty branches survive."""
    shape: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            shape[key] = number_leaves(value, tensors)
        else:
            shape[key] = len(tensors)
            tensors[str(len(tensors))] = value
    return shape


def restore_leaves(shape: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    """The inverse of :func:`number_leaves`."""
    return {
        key: restore_leaves(value, tensors) if isinstance(value, dict) else tensors[str(value)]
        for key, value in shape.items()
    }


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Safetensors wants every tensor contiguous and alone in its memory."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach()
        storage = value.untyped_storage()
        alone = value.is_contiguous() and storage.nbytes() == value.nbytes and storage.data_ptr() not in seen
        result[name] = value if alone else value.clone(memory_format=torch.contiguous_format)
        seen.add(storage.data_ptr())
    return result


def _checksum(tensors: dict[str, Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
