"""Fashion-MNIST: the original gzip-compressed IDX files."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.cache import Arrays
from equipoise.data.sources import DatasetFiles, DatasetSource, import_extra
from equipoise.utils.errors import UsageError

FASHION_MNIST_CLASSES = 10
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
        raise UsageError(
            f"'{path}' is truncated or damaged: download it again ({error})"
        ) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise UsageError(f"'{path}' is not an IDX file of bytes: download it again")
    dimensions = content[3]
    head = 4 + 4 * dimensions
    if len(content) < head:
        raise UsageError(f"'{path}' is truncated: its header is cut short")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    values = np.frombuffer(content, np.uint8, offset=head)
    if len(values) != int(np.prod([int(n) for n in shape], dtype=object)):
        raise UsageError(
            f"'{path}' is truncated or damaged: its header says {shape}, it holds {len(values)} bytes"
        )
    return values.reshape(shape)


def find_fashion_mnist(folder: Path) -> DatasetFiles | None:
    paths = {}
    for name, file in FILES.items():
        path = next((p for p in (folder / f"{file}.gz", folder / file) if p.is_file()), None)
        if path is not None:
            paths[name] = path
    if not paths:
        return None
    for name, file in FILES.items():
        if name not in paths:
            raise UsageError(
                f"'{folder}' has no file '{file}.gz': download all four files of Fashion-MNIST"
            )
    return DatasetFiles(list(paths.values()), lambda: _read(paths))


def _read(paths: dict[str, Path]) -> Arrays:
    arrays: Arrays = {}
    for part in ("", "test_"):
        images, labels = paths[f"{part}x"], paths[f"{part}y"]
        x, y = read_idx(images), read_idx(labels)
        if x.ndim != 3 or x.shape[1:] != (28, 28) or y.ndim != 1:
            raise UsageError(
                f"'{images}' and '{labels}' hold shapes {x.shape} and {y.shape}, not n x 28 x 28 and n"
            )
        if len(x) != len(y) or not len(x):
            raise UsageError(f"'{images}' has {len(x)} images, but '{labels}' has {len(y)} labels")
        arrays |= {
            f"{part}x": x[..., None],
            f"{part}y": check_labels(y.astype(np.int64), FASHION_MNIST_CLASSES, f"'{labels}'"),
        }
    return arrays


def _from_hub(fetched: Any) -> Arrays:
    arrays: Arrays = {}
    for part, split in (("", "train"), ("test_", "test")):
        table, where = fetched[split].data.table, f"split '{split}' of the hub's Fashion-MNIST"
        arrays |= {
            f"{part}x": images_of(table, 28, "L", where),
            f"{part}y": labels_of(table, "label", FASHION_MNIST_CLASSES, where),
        }
    return arrays


FASHION_MNIST = DatasetSource(
    name="fmnist",
    find=find_fashion_mnist,
    folders=("fashion-mnist", "FashionMNIST/raw", "fmnist"),
    advice="put the four files *-ubyte.gz of https://github.com/zalandoresearch/fashion-mnist into "
    "'fashion-mnist' below the folder that you give with --data",
    hub="zalando-datasets/fashion_mnist",
    from_hub=_from_hub,
)


@dataclass(frozen=True)
class CifarLayout:
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


CIFAR10_LAYOUT = CifarLayout(
    classes=10,
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    key=b"labels",
    column="label",
)
CIFAR100_LAYOUT = CifarLayout(
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
            raise UsageError(
                f"names '{module}.{name}', which is no plain data: do not trust this file"
            )
        return np._core.multiarray._reconstruct if module == "multiarray" else getattr(np, name)  # type: ignore[attr-defined]


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def read_batch(
    content: bytes, key: bytes, classes: int, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One pickled batch: ``data`` rows of 3072 bytes (planes R, G, B) and labels; gives ``[n, 32, 32, 3]``."""
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{where} {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UsageError(f"{where} is truncated or damaged: download it again ({error})") from error
    if not isinstance(batch, dict) or b"data" not in batch or key not in batch:
        raise UsageError(
            f"{where} has no 'data' and '{key.decode()}': it is not a batch of this data set"
        )
    data, labels = batch[b"data"], batch[key]
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != 3072
    ):
        raise UsageError(
            f"{where} does not hold rows of 3072 bytes: it is not a batch of this data set"
        )
    if (
        not isinstance(labels, list)
        or not all(isinstance(label, int) for label in labels)
        or not labels
    ):
        raise UsageError(f"{where} has no list of labels: it is not a batch of this data set")
    if len(labels) != len(data):
        raise UsageError(
            f"{where} has {len(data)} images, but {len(labels)} labels: download it again"
        )
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, check_labels(np.array(labels, np.int64), classes, where)


def read_archive(path: Path, wanted: tuple[str, ...], folder: str) -> dict[str, bytes]:
    """The wanted files of ``folder`` in a .tar.gz; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                entry = PurePosixPath(member.name)
                if (
                    entry.is_absolute()
                    or ".." in entry.parts
                    or not (member.isfile() or member.isdir())
                ):
                    raise UsageError(
                        f"'{path}' holds the unsafe entry '{member.name}': do not trust this file"
                    )
                if entry.parent.name == folder and entry.name in wanted and member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    found[entry.name] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UsageError(
            f"'{path}' is truncated or damaged: download it again ({error})"
        ) from error
    for name in wanted:
        if name not in found:
            raise UsageError(f"'{path}' has no '{folder}/{name}': download it again")
    return found


def find_cifar(layout: CifarLayout, folder: Path) -> DatasetFiles | None:
    """Pickles in a folder, else the archive, else Parquet."""
    names = (*layout.train, layout.test)
    unpacked = _unpacked(layout, folder) or _unpacked(layout, folder / layout.folder)
    if unpacked:
        return DatasetFiles(
            unpacked,
            lambda: _pickles(layout, {p.name: p.read_bytes() for p in unpacked}, str(folder)),
        )
    archive = folder / layout.archive
    if archive.is_file():
        return DatasetFiles(
            [archive],
            lambda: _pickles(layout, read_archive(archive, names, layout.folder), str(archive)),
        )
    tables = {
        split: sorted(p for p in folder.glob("*.parquet") if p.name.startswith(split))
        for split in _SPLITS
    }
    if not any(tables.values()):
        return None
    for split, files in tables.items():
        if not files:
            raise UsageError(f"'{folder}' has no '{split}*.parquet': both splits are needed")
    return DatasetFiles(
        [path for files in tables.values() for path in files],
        lambda: _tables(
            layout, {split: read_parquet(files) for split, files in tables.items()}, str(folder)
        ),
    )


_SPLITS = ("train", "test")


def _unpacked(layout: CifarLayout, folder: Path) -> list[Path]:
    """The pickles in a folder: all or none."""
    paths = [folder / name for name in (*layout.train, layout.test)]
    there = [path.is_file() for path in paths]
    if any(there) and not all(there):
        raise UsageError(
            f"'{paths[there.index(False)]}' is missing: unpack '{layout.archive}' again"
        )
    return paths if all(there) else []


def _pickles(layout: CifarLayout, contents: dict[str, bytes], where: str) -> Arrays:
    parts = {
        name: read_batch(content, layout.key, layout.classes, f"'{name}' in '{where}'")
        for name, content in contents.items()
    }
    train = [parts[name] for name in layout.train]
    x, y = np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])
    return {"x": x, "y": y, "test_x": parts[layout.test][0], "test_y": parts[layout.test][1]}


def _tables(layout: CifarLayout, tables: dict[str, Any], where: str) -> Arrays:
    arrays: Arrays = {}
    for part, split in (("", "train"), ("test_", "test")):
        at = f"split '{split}' of '{where}'"
        arrays[f"{part}y"] = labels_of(tables[split], layout.column, layout.classes, at)
        arrays[f"{part}x"] = images_of(tables[split], 32, "RGB", at)
    return arrays


def _source(name: str, layout: CifarLayout, hub: str) -> DatasetSource:
    return DatasetSource(
        name=name,
        find=lambda folder: find_cifar(layout, folder),
        folders=(
            layout.folder.removesuffix("-batches-py").removesuffix("-python"),
            name,
            layout.folder,
        ),
        advice=f"put '{layout.archive}' of https://www.cs.toronto.edu/~kriz/cifar.html (or the hub's Parquet files of "
        f"'{hub}') into the folder that you give with --data",
        hub=hub,
        from_hub=lambda fetched: _tables(
            layout, {split: fetched[split].data.table for split in _SPLITS}, hub
        ),
    )


CIFAR10_SOURCE = _source("cifar10", CIFAR10_LAYOUT, "uoft-cs/cifar10")
CIFAR100_SOURCE = _source("cifar100", CIFAR100_LAYOUT, "uoft-cs/cifar100")


TINY_IMAGENET_CLASSES = 200
SIZE = 64


def find_tiny_imagenet(folder: Path) -> DatasetFiles | None:
    if not (folder / "wnids.txt").is_file():
        return None
    wnids = (folder / "wnids.txt").read_text(errors="replace").split()
    folders = [folder / "train" / wnid / "images" for wnid in wnids]
    annotations = folder / "val" / "val_annotations.txt"
    for path in (*folders, annotations):
        if not path.exists():
            raise UsageError(f"'{path}' is missing: unpack tiny-imagenet-200.zip again")
    return DatasetFiles(
        [folder / "wnids.txt", annotations, *folders], lambda: _read_tinyimagenet(folder, wnids)
    )


def _read_tinyimagenet(folder: Path, wnids: list[str]) -> Arrays:
    train: list[tuple[Path, int]] = []
    for label, wnid in enumerate(wnids):
        paths = sorted((folder / "train" / wnid / "images").glob("*.JPEG"), key=_number)
        if not paths:
            raise UsageError(
                f"'{folder / 'train' / wnid / 'images'}' holds no image: unpack the archive again"
            )
        train += [(path, label) for path in paths]
    test = _validation(folder / "val", {wnid: label for label, wnid in enumerate(wnids)})
    x, y = _decode_all(train)
    test_x, test_y = _decode_all(test)
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y, "classes": np.array(len(wnids))}


def _validation(folder: Path, labels: dict[str, int]) -> list[tuple[Path, int]]:
    """The labelled validation images; the original test images have no labels."""
    known = []
    for number, line in enumerate(
        (folder / "val_annotations.txt").read_text(errors="replace").splitlines(), 1
    ):
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
        raise UsageError(
            f"'{folder / 'images'}' holds {files} images, but {len(known)} are annotated"
        )
    return known


def _decode_all(items: list[tuple[Path, int]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels = np.empty((len(items), SIZE, SIZE, 3), np.uint8)
    for row, (path, _) in enumerate(items):
        pixels[row] = decode(path.read_bytes(), SIZE, "RGB", f"'{path}'")
    return pixels, np.array([label for _, label in items], np.int64)


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else -1, path.name)


def _from_hub_tinyimagenet(fetched: Any) -> Arrays:
    arrays: Arrays = {"classes": np.array(TINY_IMAGENET_CLASSES)}
    for part, split in (("", "train"), ("test_", "valid")):
        table, where = fetched[split].data.table, f"split '{split}' of the hub's Tiny-ImageNet"
        arrays[f"{part}x"] = images_of(table, SIZE, "RGB", where)
        arrays[f"{part}y"] = labels_of(table, "label", TINY_IMAGENET_CLASSES, where)
    return arrays


TINY_IMAGENET = DatasetSource(
    name="tinyimagenet",
    find=find_tiny_imagenet,
    folders=("tiny-imagenet-200", "tinyimagenet"),
    advice="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip into the folder that you give with --data",
    hub="zh-plus/tiny-imagenet",
    from_hub=_from_hub_tinyimagenet,
)


Pixels = NDArray[np.uint8]


def decode(encoded: bytes, size: int, mode: str, where: str) -> Pixels:
    """One square image as ``[size, size, channels]``; greyscale is converted where colour is asked."""
    image_module = import_extra("PIL.Image", "decoding images")
    try:
        with image_module.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"{where} is not a readable image: download it again ({error})") from error
    if pixels.shape[:2] != (size, size):
        raise UsageError(
            f"{where} is {pixels.shape[1]}x{pixels.shape[0]}, not {size}x{size}: is it this data set?"
        )
    return pixels.reshape(size, size, -1)


def read_parquet(paths: list[Path]) -> Any:
    """One table of all files, in order of their names."""
    pyarrow, parquet = (
        import_extra("pyarrow", "reading Parquet"),
        import_extra("pyarrow.parquet", "reading Parquet"),
    )
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise UsageError(
                f"'{path}' is not a readable Parquet file: download it again ({error})"
            ) from error
    return pyarrow.concat_tables(tables)


def images_of(table: Any, size: int, mode: str, where: str) -> Pixels:
    """The image column (``img`` or ``image``) as ``[n, size, size, channels]``."""
    column = next((name for name in ("img", "image") if name in table.column_names), None)
    if column is None:
        raise UsageError(
            f"{where} has no column 'img' or 'image': it has {', '.join(table.column_names)}"
        )
    channels = 1 if mode == "L" else 3
    pixels = np.empty((table.num_rows, size, size, channels), np.uint8)
    for row, item in enumerate(table[column]):
        encoded = item["bytes"].as_py() if item.is_valid else None
        if encoded is None:
            raise UsageError(f"row {row} of {where} holds no image")
        pixels[row] = decode(encoded, size, mode, f"row {row} of {where}")
    return pixels


def labels_of(table: Any, column: str, classes: int, where: str) -> NDArray[np.int64]:
    if column not in table.column_names:
        raise UsageError(
            f"{where} has no column '{column}': it has {', '.join(table.column_names)}"
        )
    values = table[column]
    if values.null_count:
        raise UsageError(f"{where} has rows without '{column}': download it again")
    return check_labels(values.to_numpy().astype(np.int64), classes, where)


def check_labels(labels: NDArray[np.int64], classes: int, where: str) -> NDArray[np.int64]:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise UsageError(f"{where} has labels outside 0..{classes - 1}: is it this data set?")
    return labels
