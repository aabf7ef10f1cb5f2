"""Tiny-ImageNet-200: the original folders of JPEG files, 64x64; some are greyscale and become colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.data.cache import Arrays
from equipoise.data.pictures import decode, images_of, labels_of
from equipoise.data.source import Found, Source

CLASSES = 200
SIZE = 64


def find(folder: Path) -> Found | None:
    if not (folder / "wnids.txt").is_file():
        return None
    wnids = (folder / "wnids.txt").read_text(errors="replace").split()
    folders = [folder / "train" / wnid / "images" for wnid in wnids]
    annotations = folder / "val" / "val_annotations.txt"
    for path in (*folders, annotations):
        if not path.exists():
            raise UsageError(f"'{path}' is missing: unpack tiny-imagenet-200.zip again")
    return Found([folder / "wnids.txt", annotations, *folders], lambda: _read(folder, wnids))


def _read(folder: Path, wnids: list[str]) -> Arrays:
    train: list[tuple[Path, int]] = []
    for label, wnid in enumerate(wnids):
        paths = sorted((folder / "train" / wnid / "images").glob("*.JPEG"), key=_number)
        if not paths:
            raise UsageError(f"'{folder / 'train' / wnid / 'images'}' holds no image: unpack the archive again")
        train += [(path, label) for path in paths]
    test = _validation(folder / "val", {wnid: label for label, wnid in enumerate(wnids)})
    x, y = _decode_all(train)
    test_x, test_y = _decode_all(test)
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y, "classes": np.array(len(wnids))}


def _validation(folder: Path, labels: dict[str, int]) -> list[tuple[Path, int]]:
    """The labelled validation images; the original test images have no labels."""
    known = []
    for number, line in enumerate((folder / "val_annotations.txt").read_text(errors="replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        path = folder / "images" / name
        if wnid not in labels or "/" in name or not path.is_file():
            raise UsageError(
                f"line {number} of '{folder / 'val_annotations.txt'}' names '{name}' of class '{wnid}', which is "
                "not there: unpack the archive again"
            )
        known.append((path, labels[wnid]))
    files = sum(1 for _ in (folder / "images").glob("*.JPEG"))
    if files != len(known) or not known:
        raise UsageError(f"'{folder / 'images'}' holds {files} images, but {len(known)} are annotated")
    return known


def _decode_all(items: list[tuple[Path, int]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels = np.empty((len(items), SIZE, SIZE, 3), np.uint8)
    for row, (path, _) in enumerate(items):
        pixels[row] = decode(path.read_bytes(), SIZE, "RGB", f"'{path}'")
    return pixels, np.array([label for _, label in items], np.int64)


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else -1, path.name)


def _from_hub(fetched: Any) -> Arrays:
    arrays: Arrays = {"classes": np.array(CLASSES)}
    for part, split in (("", "train"), ("test_", "valid")):
        table, where = fetched[split].data.table, f"split '{split}' of the hub's Tiny-ImageNet"
        arrays[f"{part}x"] = images_of(table, SIZE, "RGB", where)
        arrays[f"{part}y"] = labels_of(table, "label", CLASSES, where)
    return arrays


SOURCE = Source(
    name="tinyimagenet",
    find=find,
    folders=("tiny-imagenet-200", "tinyimagenet"),
    advice="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip into the folder that you give with --data",
    hub="zh-plus/tiny-imagenet",
    from_hub=_from_hub,
)
