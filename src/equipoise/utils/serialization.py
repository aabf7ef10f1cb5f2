"""Trees of tensors as bytes and files: one layout for checkpoints, models and messages.

A tree is a nested dictionary of tensors. It is split into its structure, which is JSON, and its
numbered tensors. Both are stored as safetensors: the tensors under their numbers, the structure
and further JSON values (`meta`) as texts of the header. Nothing is ever pickled.

Files have a checksum over header and content. Large stacks are written part by part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from safetensors.torch import save_file
from torch import Tensor

from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import State

Meta = dict[str, Any]
"""A JSON object."""

Structure = dict[str, Any]
"""A tree with the number of each tensor in its place, and `[value]` for a JSON value."""

MALFORMED = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    safetensors.SafetensorError,
)
"""Errors of input that does not have the layout."""

ALIGNMENT = 64  # bytes of a cache line
READ_BLOCK_BYTES = 2**20  # bytes that are read at once
MAX_CHECKSUM = 2**32 - 1  # of all checksums


# ------------------------------------------------------------- tree <-> structure and tensors


def flatten(tree: State) -> tuple[Structure, dict[str, Tensor]]:
    """Split a tree into its structure and its tensors.

    Args:
        tree: Nested dictionaries of tensors and JSON values.

    Returns:
        The structure, and the tensors by number.
    """
    tensors: dict[str, Tensor] = {}

    def describe(value: object) -> object:
        if isinstance(value, dict):
            return {key: describe(part) for key, part in value.items()}
        if not isinstance(value, Tensor):
            return [value]
        number = len(tensors)
        tensors[str(number)] = value
        return number

    return {key: describe(value) for key, value in tree.items()}, tensors


def unflatten(structure: Structure, tensors: dict[str, Tensor], with_values: bool = False) -> State:
    """Build a tree from the result of `flatten`.

    Args:
        structure: Structure of the tree.
        tensors: Tensors by number.
        with_values: Whether the tree may contain JSON values.

    Returns:
        The tree.

    Raises:
        KeyError: If a tensor is missing.
    """

    def restore(item: object) -> object:
        if isinstance(item, dict):
            return {key: restore(part) for key, part in item.items()}
        if with_values and isinstance(item, list):
            return item[0]
        return tensors[str(item)]

    return {key: restore(item) for key, item in structure.items()}


# ------------------------------------------------------------------------------ tree <-> bytes


def encode(tree: State, meta: Meta) -> bytes:
    """Encode a tree of tensors and a JSON object."""
    structure, tensors = flatten(tree)
    data: bytes = tensors_to_bytes(unshare_memory(tensors), _texts(structure, meta))
    return data


def decode(data: bytes) -> tuple[State, Meta]:
    """Decode the result of `encode`.

    Raises:
        One of `MALFORMED`: If the data are not a result of `encode`.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    texts = json.loads(data[8:end])["__metadata__"]
    structure = json.loads(texts["structure"])
    return unflatten(structure, tensors_from_bytes(data)), json.loads(texts["meta"])


def _texts(structure: Structure, meta: Meta) -> dict[str, str]:
    """Return the texts of the header."""
    return {"structure": json.dumps(structure), "meta": json.dumps(meta)}


def align_up(size: int) -> int:
    """Return the next multiple of `ALIGNMENT`: tensors in shared memory and files begin there."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def tensor_bytes(value: Tensor) -> memoryview:
    """Return the content of a tensor as bytes, without a copy if it is contiguous."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def unshare_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors that share no memory, as safetensors requires."""
    storages: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach()
        storage = value.untyped_storage()
        alone = (
            value.is_contiguous()
            and storage.nbytes() == value.nbytes
            and storage.data_ptr() not in storages
        )
        result[name] = value if alone else value.clone(memory_format=torch.contiguous_format)
        storages.add(storage.data_ptr())
    return result


# ------------------------------------------------------------------------------ tree <-> files


def save(path: Path, tree: State, meta: Meta) -> None:
    """Write a tree of tensors and a JSON object to one file, atomically.

    Args:
        path: File to write.
        tree: Nested dictionaries of tensors.
        meta: The JSON object.
    """
    io.write_with(path, lambda file: fill(file, tree, meta))


def fill(path: Path, tree: State, meta: Meta) -> None:
    """Write what `save` writes, not atomically (for use in `io.write_with`).

    Args:
        path: File to write.
        tree: Nested dictionaries of tensors.
        meta: The JSON object.
    """
    structure, tensors = flatten(tree)
    fill_tensors(path, tensors, _texts(structure, meta))


def load(path: Path) -> tuple[State, Meta]:
    """Read a file of `save`.

    Raises:
        UsageError: If the file is damaged.
    """
    tensors, texts = read_tensors(path)
    try:
        return unflatten(json.loads(texts["structure"]), tensors), json.loads(texts["meta"])
    except MALFORMED as error:
        raise UsageError(f"checkpoint '{path}' is damaged or not a checkpoint: {error}") from error


def write_tensors(
    path: Path, tensors: dict[str, Tensor], texts: dict[str, str] | None = None
) -> None:
    """Write a safetensors file atomically, with a checksum.

    Args:
        path: The file.
        tensors: Tensors by name.
        texts: Texts of the header.
    """
    io.write_with(path, lambda file: fill_tensors(file, tensors, texts or {}))


def fill_tensors(path: Path, tensors: dict[str, Tensor], texts: dict[str, str]) -> None:
    """Write a safetensors file with a checksum, not atomically (for use in `io.write_with`).

    Args:
        path: File to write.
        tensors: Tensors by name.
        texts: Metadata of the file.
    """
    header = {**texts, "checksum": str(_checksum(tensors, texts))}
    try:
        save_file(unshare_memory(tensors), path, header)
    except safetensors.SafetensorError as error:  # raised if the disk is full
        raise OSError(f"'{path}' cannot be written: {error}") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file of `write_tensors`.

    Returns:
        Tensors by name, and the texts of the header.

    Raises:
        UsageError: If the file is damaged.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            texts = dict(file.metadata() or {})
            # Copied to torch's own alignment: matrix products may round differently otherwise.
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise UsageError(f"'{path}' is damaged or cannot be read: {error}") from error
    if texts.pop("checksum", None) != str(_checksum(tensors, texts)):
        raise UsageError(f"'{path}' is damaged: its checksum does not match its content")
    return tensors, texts


def _checksum(tensors: dict[str, Tensor], texts: dict[str, str]) -> int:
    """Compute the checksum over texts, names, types, shapes and content."""
    kinds = {name: [str(value.dtype), *value.shape] for name, value in tensors.items()}
    checksum = _header_checksum(kinds, texts)
    for name in sorted(tensors):
        checksum = io.checksum(tensor_bytes(tensors[name]), checksum)
    return checksum


def _header_checksum(kinds: dict[str, list[str | int]], texts: dict[str, str]) -> int:
    """Compute the checksum of texts and of `kinds`, the type and shape of each tensor."""
    return io.checksum(json.dumps([texts, kinds], sort_keys=True).encode())


# -------------------------------------------------------------------------------- large stacks


def fill_stack(path: Path, rows: int, parts: Iterable[dict[str, Tensor]]) -> None:
    """Write a safetensors file from parts, like `fill_tensors` of their concatenation.

    The content is written first and the header, which has the checksum, last.

    Args:
        path: The file.
        rows: Total number of rows.
        parts: Stacks of some rows each, with the same names.
    """
    layout: Structure = {}
    start = 0
    num_done = 0
    checksum = 0
    with path.open("w+b") as file:
        for part in parts:
            if not layout:
                layout = _layout(part, rows)
                start = len(_header(layout, MAX_CHECKSUM))
                kinds: dict[str, list[str | int]] = {
                    name: [str(value.dtype), rows, *value.shape[1:]] for name, value in part.items()
                }
                checksum = _header_checksum(kinds, {})
            for name, value in part.items():
                first, last = layout[name]["data_offsets"]
                file.seek(start + first + (last - first) * num_done // max(1, rows))
                file.write(tensor_bytes(value))
            num_done += len(next(iter(part.values())))
        assert num_done == rows, f"{num_done} rows came where {rows} were expected"
        for name in sorted(layout):
            first, last = layout[name]["data_offsets"]
            file.seek(start + first)
            for place in range(first, last, READ_BLOCK_BYTES):
                checksum = io.checksum(file.read(min(READ_BLOCK_BYTES, last - place)), checksum)
        file.seek(0)
        file.write(_header(layout, checksum, start))


def _layout(part: dict[str, Tensor], rows: int) -> Structure:
    """Return the safetensors header entries of the full stacks, scaled from one row."""
    one = tensors_to_bytes(unshare_memory({name: value[:1] for name, value in part.items()}))
    layout: Structure = json.loads(one[8 : 8 + int.from_bytes(one[:8], "little")])
    for entry in layout.values():
        entry["shape"][0] = rows
        entry["data_offsets"] = [rows * place for place in entry["data_offsets"]]
    return layout


def _header(layout: Structure, checksum: int, length: int = 0) -> bytes:
    """Return the file header, padded with blanks to a multiple of 8 bytes or to `length`."""
    entries = {"__metadata__": {"checksum": str(checksum)}, **layout}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(-(-len(text) // 8) * 8, length - 8))
    return len(text).to_bytes(8, "little") + text
