"""Stacks of many clients in one safetensors file, written part by part: memory holds one part, never the whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from equipoise.core import files

BLOCK = 2**20  # bytes that are read at once
LONGEST = 2**32 - 1  # of all checksums


def write_stack(path: Path, rows: int, parts: Iterable[dict[str, Tensor]]) -> None:
    """As :func:`~equipoise.core.files.write_tensors`, of stacks of so many rows in all, which come part by part."""
    files.write_with(path, lambda file: _fill(file, rows, parts))


def _fill(path: Path, rows: int, parts: Iterable[dict[str, Tensor]]) -> None:
    """The content first; the header, which tells its checksum, last."""
    layout: dict[str, Any] = {}
    start, done, found = 0, 0, 0
    with path.open("w+b") as file:
        for part in parts:
            if not layout:
                layout = _layout(part, rows)
                start = len(_header(layout, LONGEST))
                kinds = {name: [str(value.dtype), rows, *value.shape[1:]] for name, value in part.items()}
                found = files.kinds_checksum(kinds, {})
            for name, value in part.items():
                first, last = layout[name]["data_offsets"]
                file.seek(start + first + (last - first) * done // max(1, rows))
                file.write(files.raw(value))
            done += len(next(iter(part.values())))
        assert done == rows, f"{done} rows came where {rows} were expected"
        for name in sorted(layout):
            first, last = layout[name]["data_offsets"]
            file.seek(start + first)
            for place in range(first, last, BLOCK):
                found = files.checksum(file.read(min(BLOCK, last - place)), found)
        file.seek(0)
        file.write(_header(layout, found, start))


def _layout(part: dict[str, Tensor], rows: int) -> dict[str, Any]:
    """Where safetensors puts these stacks once they have so many rows: all sizes are those of one row, times them."""
    one = save(files.unshared({name: value[:1] for name, value in part.items()}))
    layout: dict[str, Any] = json.loads(one[8 : 8 + int.from_bytes(one[:8], "little")])
    for about in layout.values():
        about["shape"][0] = rows
        about["data_offsets"] = [rows * place for place in about["data_offsets"]]
    return layout


def _header(layout: dict[str, Any], checksum: int, length: int = 0) -> bytes:
    """The beginning of a file, filled up with blanks to a multiple of eight bytes, or to a ``length``."""
    about = {"__metadata__": {"checksum": str(checksum)}, **layout}
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(-(-len(text) // 8) * 8, length - 8))
    return len(text).to_bytes(8, "little") + text
