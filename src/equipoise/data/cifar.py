"""CIFAR-10 and CIFAR-100: the original python version (archive or folder), or Parquet as on the hub."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.data.cache import Arrays
from equipoise.data.pictures import check_labels, images_of, labels_of, read_parquet
from equipoise.data.source import Found, Source


@dataclass(frozen=True)
class Layout:
    """The names inside one of the two sets."""

    classes: int
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    key: bytes
    """The labels' name in a pickle."""
    column: str
    """The labels' name in Parquet."""


CIFAR10 = Layout(
    classes=10,
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    key=b"labels",
    column="label",
)
CIFAR100 = Layout(
    classes=100,
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    key=b"fine_labels",
    column="fine_label",
)
Read = Callable[[str], bytes]


class _PlainUnpickler(pickle.Unpickler):
    """A pickle can name any function to call; this one admits what an array is made of, and nothing else."""

    ADMITTED = frozenset({("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            module = "multiarray"
        if (module, name) == ("_codecs", "encode"):
            return _latin1  # how Python 3 writes bytes in old protocols
        if (module, name) not in self.ADMITTED:
            raise UsageError(f"names '{module}.{name}', which is no plain data: do not trust this file")
        return np._core.multiarray._reconstruct if module == "multiarray" else getattr(np, name)  # type: ignore[attr-defined]


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def read_batch(content: bytes, key: bytes, classes: int, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One pickled batch: ``data`` rows of 3072 bytes (planes R, G, B) and labels; gives ``[n, 32, 32, 3]``."""
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{where} {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UsageError(f"{where} is truncated or damaged: download it again ({error})") from error
    if not isinstance(batch, dict) or b"data" not in batch or key not in batch:
        raise UsageError(f"{where} has no 'data' and '{key.decode()}': it is not a batch of this data set")
    data, labels = batch[b"data"], batch[key]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise UsageError(f"{where} does not hold rows of 3072 bytes: it is not a batch of this data set")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels) or not labels:
        raise UsageError(f"{where} has no list of labels: it is not a batch of this data set")
    if len(labels) != len(data):
        raise UsageError(f"{where} has {len(data)} images, but {len(labels)} labels: download it again")
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, check_labels(np.array(labels, np.int64), classes, where)


def read_archive(path: Path, wanted: tuple[str, ...], folder: str) -> dict[str, bytes]:
    """The wanted files of ``folder`` in a .tar.gz; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                entry = PurePosixPath(member.name)
                if entry.is_absolute() or ".." in entry.parts or not (member.isfile() or member.isdir()):
                    raise UsageError(f"'{path}' holds the unsafe entry '{member.name}': do not trust this file")
                if entry.parent.name == folder and entry.name in wanted and member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    found[entry.name] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UsageError(f"'{path}' is truncated or damaged: download it again ({error})") from error
    for name in wanted:
        if name not in found:
            raise UsageError(f"'{path}' has no '{folder}/{name}': download it again")
    return found


def find(layout: Layout, folder: Path) -> Found | None:
    """Pickles in a folder, else the archive, else Parquet."""
    names = (*layout.train, layout.test)
    unpacked = _unpacked(layout, folder) or _unpacked(layout, folder / layout.folder)
    if unpacked:
        return Found(unpacked, lambda: _pickles(layout, {p.name: p.read_bytes() for p in unpacked}, str(folder)))
    archive = folder / layout.archive
    if archive.is_file():
        return Found([archive], lambda: _pickles(layout, read_archive(archive, names, layout.folder), str(archive)))
    tables = {split: sorted(p for p in folder.glob("*.parquet") if p.name.startswith(split)) for split in _SPLITS}
    if not any(tables.values()):
        return None
    for split, files in tables.items():
        if not files:
            raise UsageError(f"'{folder}' has no '{split}*.parquet': both splits are needed")
    return Found(
        [path for files in tables.values() for path in files],
        lambda: _tables(layout, {split: read_parquet(files) for split, files in tables.items()}, str(folder)),
    )


_SPLITS = ("train", "test")


def _unpacked(layout: Layout, folder: Path) -> list[Path]:
    """The pickles in a folder: all or none."""
    paths = [folder / name for name in (*layout.train, layout.test)]
    there = [path.is_file() for path in paths]
    if any(there) and not all(there):
        raise UsageError(f"'{paths[there.index(False)]}' is missing: unpack '{layout.archive}' again")
    return paths if all(there) else []


def _pickles(layout: Layout, contents: dict[str, bytes], where: str) -> Arrays:
    parts = {
        name: read_batch(content, layout.key, layout.classes, f"'{name}' in '{where}'")
        for name, content in contents.items()
    }
    train = [parts[name] for name in layout.train]
    x, y = np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])
    return {"x": x, "y": y, "test_x": parts[layout.test][0], "test_y": parts[layout.test][1]}


def _tables(layout: Layout, tables: dict[str, Any], where: str) -> Arrays:
    arrays: Arrays = {}
    for part, split in (("", "train"), ("test_", "test")):
        at = f"split '{split}' of '{where}'"
        arrays[f"{part}y"] = labels_of(tables[split], layout.column, layout.classes, at)
        arrays[f"{part}x"] = images_of(tables[split], 32, "RGB", at)
    return arrays


def _source(name: str, layout: Layout, hub: str) -> Source:
    return Source(
        name=name,
        find=lambda folder: find(layout, folder),
        folders=(layout.folder.removesuffix("-batches-py").removesuffix("-python"), name, layout.folder),
        advice=f"put '{layout.archive}' of https://www.cs.toronto.edu/~kriz/cifar.html (or the hub's Parquet files of "
        f"'{hub}') into the folder that you give with --data",
        hub=hub,
        from_hub=lambda fetched: _tables(layout, {split: fetched[split].data.table for split in _SPLITS}, hub),
    )


SOURCE_10 = _source("cifar10", CIFAR10, "uoft-cs/cifar10")
SOURCE_100 = _source("cifar100", CIFAR100, "uoft-cs/cifar100")
