"""Fashion-MNIST: the original gzip-compressed IDX files."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.data.cache import Arrays
from equipoise.data.pictures import check_labels, images_of, labels_of
from equipoise.data.source import Found, Source

CLASSES = 10
FILES = {
    "x": "train-images-idx3-ubyte",
    "y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
UNSIGNED_BYTE = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes: 0, 0, type, dimensions, then each length (big-endian), then the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"'{path}' is truncated or damaged: download it again ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise UsageError(f"'{path}' is not an IDX file of bytes: download it again")
    dimensions = content[3]
    head = 4 + 4 * dimensions
    if len(content) < head:
        raise UsageError(f"'{path}' is truncated: its header is cut short")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    values = np.frombuffer(content, np.uint8, offset=head)
    if len(values) != int(np.prod([int(n) for n in shape], dtype=object)):
        raise UsageError(f"'{path}' is truncated or damaged: its header says {shape}, it holds {len(values)} bytes")
    return values.reshape(shape)


def find(folder: Path) -> Found | None:
    paths = {}
    for name, file in FILES.items():
        path = next((p for p in (folder / f"{file}.gz", folder / file) if p.is_file()), None)
        if path is not None:
            paths[name] = path
    if not paths:
        return None
    for name, file in FILES.items():
        if name not in paths:
            raise UsageError(f"'{folder}' has no file '{file}.gz': download all four files of Fashion-MNIST")
    return Found(list(paths.values()), lambda: _read(paths))


def _read(paths: dict[str, Path]) -> Arrays:
    arrays: Arrays = {}
    for part in ("", "test_"):
        images, labels = paths[f"{part}x"], paths[f"{part}y"]
        x, y = read_idx(images), read_idx(labels)
        if x.ndim != 3 or x.shape[1:] != (28, 28) or y.ndim != 1:
            raise UsageError(f"'{images}' and '{labels}' hold shapes {x.shape} and {y.shape}, not n x 28 x 28 and n")
        if len(x) != len(y) or not len(x):
            raise UsageError(f"'{images}' has {len(x)} images, but '{labels}' has {len(y)} labels")
        arrays |= {f"{part}x": x[..., None], f"{part}y": check_labels(y.astype(np.int64), CLASSES, f"'{labels}'")}
    return arrays


def _from_hub(fetched: Any) -> Arrays:
    arrays: Arrays = {}
    for part, split in (("", "train"), ("test_", "test")):
        table, where = fetched[split].data.table, f"split '{split}' of the hub's Fashion-MNIST"
        arrays |= {f"{part}x": images_of(table, 28, "L", where), f"{part}y": labels_of(table, "label", CLASSES, where)}
    return arrays


SOURCE = Source(
    name="fmnist",
    find=find,
    folders=("fashion-mnist", "FashionMNIST/raw", "fmnist"),
    advice="put the four files *-ubyte.gz of https://github.com/zalandoresearch/fashion-mnist into "
    "'fashion-mnist' below the folder that you give with --data",
    hub="zalando-datasets/fashion_mnist",
    from_hub=_from_hub,
)
