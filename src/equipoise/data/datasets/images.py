"""Loaders of Fashion-MNIST, CIFAR-10, CIFAR-100 and Tiny-ImageNet.

Each data set is read from its publishers' files, or from the Hugging Face hub. A loader returns
``x [n, H, W, C]`` (uint8), ``y [n]`` (int64), ``test_x`` and ``test_y``. Files are checked before
use, and every error says which file is wrong.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.data.sources import Arrays, DatasetFiles, DatasetSource, HubData, import_extra
from equipoise.utils.errors import UsageError, require

if TYPE_CHECKING:
    import pyarrow as pa

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ImageFormat:
    """Images and labels of one data set, as the Arrow tables of the hub hold them.

    Attributes:
        classes: Number of classes.
        size: Height and width in pixels.
        mode: Pillow mode of the images: ``L`` (grey) or ``RGB``.
        label: Name of the column of labels.
        test_split: Name of the test split.
    """

    classes: int
    size: int
    mode: str = "RGB"
    label: str = "label"
    test_split: str = "test"

    def decode_tables(self, tables: Mapping[str, pa.Table], location: str) -> Arrays:
        """Decode the tables of the training and the test split.

        Args:
            tables: Arrow tables by split.
            location: Name of the data set in error messages.

        Returns:
            Images and labels by split.
        """
        arrays: Arrays = {}
        for prefix, split in (("", "train"), ("test_", self.test_split)):
            name = f"split '{split}' of '{location}'"
            arrays[f"{prefix}y"] = read_labels(tables[split], self.label, self.classes, name)
            arrays[f"{prefix}x"] = decode_images(tables[split], self.size, self.mode, name)
        return arrays

    def decode_hub(self, fetched: HubData) -> Arrays:
        """Decode the result of ``datasets.load_dataset``."""
        tables = {split: fetched[split].data.table for split in ("train", self.test_split)}
        return self.decode_tables(tables, "the hub's data set")


def is_complete(found: Mapping[str, object], folder: Path, advice: str) -> bool:
    """Return whether all files of a data set are in a folder.

    Args:
        found: The paths of each file; empty or ``None`` if it is not there.
        folder: The folder.
        advice: What to do if only some are there.

    Raises:
        UsageError: If some files are there, but not all.
    """
    missing = [name for name, paths in found.items() if not paths]
    if missing and len(missing) < len(found):
        raise UsageError(f"'{folder}' has no {missing[0]}: {advice}")
    return not missing


# ------------------------------------------------------------------ Fashion-MNIST

FASHION_MNIST_CLASSES = 10
FASHION_MNIST_FILES = {
    "x": "train-images-idx3-ubyte",
    "y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
IDX_UNSIGNED_BYTE = 8  # type code in the header of an IDX file


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, compressed by gzip or not.

    The format is 0, 0, type, number of dimensions, then each length (big-endian), then the values.

    Raises:
        UsageError: If the file is damaged or of another format.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"'{path}' is truncated or damaged: download it again ({error})"
        ) from error
    is_idx = len(content) >= 4 and content[:3] == bytes([0, 0, IDX_UNSIGNED_BYTE])
    require(is_idx, f"'{path}' is not an IDX file of bytes: download it again")
    dimensions = content[3]
    header_size = 4 + 4 * dimensions
    require(len(content) >= header_size, f"'{path}' is truncated: its header is cut short")
    shape = struct.unpack(f">{dimensions}I", content[4:header_size])
    values = np.frombuffer(content, np.uint8, offset=header_size)
    # Python integers: the header of a damaged file may overflow int64.
    require(
        len(values) == int(np.prod([int(n) for n in shape], dtype=object)),
        f"'{path}' is truncated or damaged: its header says {shape}, it holds {len(values)} bytes",
    )
    return values.reshape(shape)


def find_fashion_mnist(folder: Path) -> DatasetFiles | None:
    """Find the four files of Fashion-MNIST in a folder."""
    paths = {}
    for name, file in FASHION_MNIST_FILES.items():
        places = (folder / f"{file}.gz", folder / file)
        paths[name] = next((path for path in places if path.is_file()), None)
    files = {f"file '{FASHION_MNIST_FILES[name]}.gz'": path for name, path in paths.items()}
    if not is_complete(files, folder, "download all four files of Fashion-MNIST"):
        return None
    existing = {name: path for name, path in paths.items() if path}
    return DatasetFiles(list(existing.values()), partial(_read_fashion_mnist, existing))


def _read_fashion_mnist(paths: dict[str, Path]) -> Arrays:
    """Decode the four files of Fashion-MNIST."""
    arrays: Arrays = {}
    for part in ("", "test_"):
        images = paths[f"{part}x"]
        labels = paths[f"{part}y"]
        x = read_idx(images)
        y = read_idx(labels)
        require(
            x.ndim == 3 and x.shape[1:] == (28, 28) and y.ndim == 1,
            f"'{images}' and '{labels}' hold shapes {x.shape} and {y.shape}, not n x 28 x 28 and n",
        )
        require(
            len(x) == len(y) > 0,
            f"'{images}' has {len(x)} images, but '{labels}' has {len(y)} labels",
        )
        arrays[f"{part}x"] = x[..., None]
        arrays[f"{part}y"] = check_labels(y.astype(np.int64), FASHION_MNIST_CLASSES, f"'{labels}'")
    return arrays


FASHION_MNIST = DatasetSource(
    name="fmnist",
    find=find_fashion_mnist,
    folders=("fashion-mnist", "FashionMNIST/raw", "fmnist"),
    advice="put the four files *-ubyte.gz of https://github.com/zalandoresearch/fashion-mnist into "
    "'fashion-mnist' below the folder that you give with --data",
    hub="zalando-datasets/fashion_mnist",
    from_hub=ImageFormat(FASHION_MNIST_CLASSES, 28, mode="L").decode_hub,
)

# ------------------------------------------------------------------ CIFAR-10 and CIFAR-100


@dataclass(frozen=True)
class CifarLayout:
    """Names inside one of the two CIFAR data sets.

    Attributes:
        classes: Number of classes.
        folder: Folder inside the archive.
        archive: File name of the archive.
        train: Files of training batches.
        test: File of the test batch.
        key: Name of the labels in a pickled batch.
        column: Name of the labels in Parquet.
    """

    classes: int
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    key: bytes
    column: str

    @property
    def batches(self) -> tuple[str, ...]:
        """The files of all batches."""
        return (*self.train, self.test)

    @property
    def tables(self) -> ImageFormat:
        """How Parquet files hold the images."""
        return ImageFormat(self.classes, 32, label=self.column)


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


def find_cifar(layout: CifarLayout, folder: Path) -> DatasetFiles | None:
    """Find pickled batches in a folder, else the archive, else Parquet files."""
    for place in (folder, folder / layout.folder):
        paths = [place / name for name in layout.batches]
        exists = {f"'{path.name}'": path.is_file() for path in paths}
        if is_complete(exists, place, f"unpack '{layout.archive}' again"):
            return DatasetFiles(paths, partial(_read_batches, layout, paths))
    archive = folder / layout.archive
    if archive.is_file():
        return DatasetFiles([archive], partial(_read_archived, layout, archive))
    tables = {split: sorted(folder.glob(f"{split}*.parquet")) for split in ("train", "test")}
    patterns = {f"'{split}*.parquet'": paths for split, paths in tables.items()}
    if not is_complete(patterns, folder, "both splits are needed"):
        return None
    return DatasetFiles([*tables["train"], *tables["test"]], partial(_read_tables, layout, tables))


def _read_batches(layout: CifarLayout, paths: list[Path]) -> Arrays:
    """Read pickled batches."""
    contents = {path.name: path.read_bytes() for path in paths}
    return _decode_batches(layout, contents, str(paths[0].parent))


def _read_archived(layout: CifarLayout, archive: Path) -> Arrays:
    """Read the pickled batches of an archive."""
    contents = read_archive(archive, layout.batches, layout.folder)
    return _decode_batches(layout, contents, str(archive))


def _read_tables(layout: CifarLayout, paths: Mapping[str, list[Path]]) -> Arrays:
    """Read the Parquet files of both splits."""
    tables = {split: read_parquet(files) for split, files in paths.items()}
    return layout.tables.decode_tables(tables, str(paths["train"][0].parent))


def read_archive(path: Path, names: tuple[str, ...], folder: str) -> dict[str, bytes]:
    """Read files of a .tar.gz without writing anything to disk.

    Args:
        path: The archive.
        names: Names of the files.
        folder: Folder inside the archive that holds them.

    Returns:
        Contents by file name.

    Raises:
        UsageError: If the archive is damaged, incomplete, or has an unsafe entry.
    """
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                entry = PurePosixPath(member.name)
                is_inside = not entry.is_absolute() and ".." not in entry.parts
                require(
                    is_inside and (member.isfile() or member.isdir()),
                    f"'{path}' holds the unsafe entry '{member.name}': do not trust this file",
                )
                content = archive.extractfile(member)
                if content and entry.parent.name == folder and entry.name in names:
                    contents[entry.name] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UsageError(
            f"'{path}' is truncated or damaged: download it again ({error})"
        ) from error
    for name in names:
        require(name in contents, f"'{path}' has no '{folder}/{name}': download it again")
    return contents


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickle NumPy arrays and nothing else: a pickle can name any function to call."""

    ALLOWED = frozenset({("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> object:
        """Return an allowed global; refuse all others."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            module = "multiarray"
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1  # how Python 3 writes bytes in old protocols
        require(
            (module, name) in self.ALLOWED,
            f"names '{module}.{name}', which is no plain data: do not trust this file",
        )
        if module == "multiarray":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        return getattr(np, name)


def _encode_latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def read_batch(content: bytes, key: bytes, classes: int, location: str) -> tuple[Images, Labels]:
    """Decode one pickled CIFAR batch.

    Args:
        content: The pickle: ``data`` has rows of 3072 bytes (planes R, G, B).
        key: Name of the labels in it.
        classes: Number of classes.
        location: Name of the batch, for error messages.

    Returns:
        Images ``[n, 32, 32, 3]`` and labels ``[n]``.

    Raises:
        UsageError: If the batch is damaged or of another data set.
    """
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except UsageError as error:
        raise UsageError(f"{location} {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UsageError(
            f"{location} is truncated or damaged: download it again ({error})"
        ) from error
    wrong_data_set = "it is not a batch of this data set"
    require(
        isinstance(batch, dict) and b"data" in batch and key in batch,
        f"{location} has no 'data' and '{key.decode()}': {wrong_data_set}",
    )
    data = batch[b"data"]
    labels = batch[key]
    is_bytes = isinstance(data, np.ndarray) and data.dtype == np.uint8
    require(
        is_bytes and data.ndim == 2 and data.shape[1] == 3072,
        f"{location} does not hold rows of 3072 bytes: {wrong_data_set}",
    )
    is_list = isinstance(labels, list) and all(isinstance(label, int) for label in labels)
    require(is_list and len(labels) > 0, f"{location} has no list of labels: {wrong_data_set}")
    require(
        len(labels) == len(data),
        f"{location} has {len(data)} images, but {len(labels)} labels: download it again",
    )
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, check_labels(np.array(labels, np.int64), classes, location)


def _decode_batches(layout: CifarLayout, contents: dict[str, bytes], location: str) -> Arrays:
    """Decode and join pickled batches."""
    batches = {
        name: read_batch(content, layout.key, layout.classes, f"'{name}' in '{location}'")
        for name, content in contents.items()
    }
    train = [batches[name] for name in layout.train]
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
    test_x, test_y = batches[layout.test]
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}


def _cifar_source(name: str, layout: CifarLayout, hub: str) -> DatasetSource:
    """Declare one of the two CIFAR data sets."""
    short_folder = layout.folder.removesuffix("-batches-py").removesuffix("-python")
    return DatasetSource(
        name=name,
        find=partial(find_cifar, layout),
        folders=(short_folder, name, layout.folder),
        advice=f"put '{layout.archive}' of https://www.cs.toronto.edu/~kriz/cifar.html (or the "
        f"hub's Parquet files of '{hub}') into the folder that you give with --data",
        hub=hub,
        from_hub=layout.tables.decode_hub,
    )


CIFAR10_SOURCE = _cifar_source("cifar10", CIFAR10_LAYOUT, "uoft-cs/cifar10")
CIFAR100_SOURCE = _cifar_source("cifar100", CIFAR100_LAYOUT, "uoft-cs/cifar100")

# ------------------------------------------------------------------ Tiny-ImageNet

TINY_IMAGENET_CLASSES = 200
TINY_IMAGENET_SIZE = 64


def find_tiny_imagenet(folder: Path) -> DatasetFiles | None:
    """Find the unpacked Tiny-ImageNet in a folder."""
    if not (folder / "wnids.txt").is_file():
        return None
    wnids = (folder / "wnids.txt").read_text(errors="replace").split()
    folders = [folder / "train" / wnid / "images" for wnid in wnids]
    annotations = folder / "val" / "val_annotations.txt"
    for path in (*folders, annotations):
        require(path.exists(), f"'{path}' is missing: unpack tiny-imagenet-200.zip again")
    files = [folder / "wnids.txt", annotations, *folders]
    return DatasetFiles(files, partial(_read_tiny_imagenet, folder, wnids))


def _read_tiny_imagenet(folder: Path, wnids: list[str]) -> Arrays:
    """Decode training images, and validation images as the test set."""
    train: list[tuple[Path, int]] = []
    for label, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        paths = sorted(images.glob("*.JPEG"), key=_image_number)
        require(bool(paths), f"'{images}' holds no image: unpack the archive again")
        train += [(path, label) for path in paths]
    test = _validation_files(folder / "val", {wnid: label for label, wnid in enumerate(wnids)})
    x, y = _decode_files(train)
    test_x, test_y = _decode_files(test)
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y, "classes": np.array(len(wnids))}


def _validation_files(folder: Path, labels: dict[str, int]) -> list[tuple[Path, int]]:
    """Return the labelled validation images; the original test images have no labels."""
    annotations = folder / "val_annotations.txt"
    known = []
    lines = annotations.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, wnid, *_ = [*line.split("\t"), ""]
        path = folder / "images" / name
        require(
            wnid in labels and "/" not in name and path.is_file(),
            f"line {number} of '{annotations}' names '{name}' of class '{wnid}', which is not "
            "there: unpack the archive again",
        )
        known.append((path, labels[wnid]))
    num_files = sum(1 for _ in (folder / "images").glob("*.JPEG"))
    require(
        num_files == len(known) > 0,
        f"'{folder / 'images'}' holds {num_files} images, but {len(known)} are annotated",
    )
    return known


def _decode_files(items: list[tuple[Path, int]]) -> tuple[Images, Labels]:
    """Decode JPEG files with their labels."""
    size = TINY_IMAGENET_SIZE
    pixels = np.empty((len(items), size, size, 3), np.uint8)
    for row, (path, _) in enumerate(items):
        pixels[row] = decode_image(path.read_bytes(), size, "RGB", f"'{path}'")
    return pixels, np.array([label for _, label in items], np.int64)


def _image_number(path: Path) -> tuple[int, str]:
    """Return the sort key of a file such as ``n01443537_12.JPEG``."""
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdigit() else -1, path.name)


TINY_IMAGENET = DatasetSource(
    name="tinyimagenet",
    find=find_tiny_imagenet,
    folders=("tiny-imagenet-200", "tinyimagenet"),
    advice="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip into the folder that you give "
    "with --data",
    hub="zh-plus/tiny-imagenet",
    from_hub=ImageFormat(TINY_IMAGENET_CLASSES, TINY_IMAGENET_SIZE, test_split="valid").decode_hub,
)

# ------------------------------------------------------------------ encoded images and Parquet


def decode_image(encoded: bytes, size: int, mode: str, location: str) -> Images:
    """Decode one square image.

    Args:
        encoded: Content of a PNG or JPEG file.
        size: Expected height and width.
        mode: Pillow mode to convert to: ``L`` or ``RGB``.
        location: Name of the image, for error messages.

    Returns:
        Pixels ``[size, size, channels]``.

    Raises:
        UsageError: If the image is damaged or of another size.
    """
    pillow = import_extra("PIL.Image", "decoding images")
    try:
        with pillow.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(
            f"{location} is not a readable image: download it again ({error})"
        ) from error
    height, width = pixels.shape[:2]
    require(
        height == width == size,
        f"{location} is {width}x{height}, not {size}x{size}: is it this data set?",
    )
    return pixels.reshape(size, size, -1)


def read_parquet(paths: list[Path]) -> pa.Table:
    """Read Parquet files into one Arrow table.

    Raises:
        UsageError: If a file is damaged.
    """
    pyarrow = import_extra("pyarrow", "reading Parquet")
    parquet = import_extra("pyarrow.parquet", "reading Parquet")
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise UsageError(
                f"'{path}' is not a readable Parquet file: download it again ({error})"
            ) from error
    return pyarrow.concat_tables(tables)


def decode_images(table: pa.Table, size: int, mode: str, location: str) -> Images:
    """Decode the column ``img`` or ``image`` of an Arrow table.

    Args:
        table: The Arrow table.
        size: Expected height and width.
        mode: ``L`` or ``RGB``.
        location: Name of the table, for error messages.

    Returns:
        Pixels ``[n, size, size, channels]``.

    Raises:
        UsageError: If there is no such column, or an image is missing or damaged.
    """
    columns = table.column_names
    column = next((name for name in ("img", "image") if name in columns), None)
    message = f"{location} has no column 'img' or 'image': it has {', '.join(columns)}"
    require(column is not None, message)
    channels = 1 if mode == "L" else 3
    pixels = np.empty((table.num_rows, size, size, channels), np.uint8)
    for row, item in enumerate(table[column]):
        encoded: bytes = (item.as_py() or {}).get("bytes") or b""
        require(len(encoded) > 0, f"row {row} of {location} holds no image")
        pixels[row] = decode_image(encoded, size, mode, f"row {row} of {location}")
    return pixels


def read_labels(table: pa.Table, column: str, classes: int, location: str) -> Labels:
    """Read a column of labels of an Arrow table.

    Args:
        table: The Arrow table.
        column: Name of the column of labels.
        classes: Number of classes.
        location: Name of the file, for error messages.

    Returns:
        The labels `[n]`.

    Raises:
        UsageError: If the column is missing or incomplete, or a label is out of range.
    """
    columns = table.column_names
    require(column in columns, f"{location} has no column '{column}': it has {', '.join(columns)}")
    values = table[column]
    require(not values.null_count, f"{location} has rows without '{column}': download it again")
    return check_labels(values.to_numpy().astype(np.int64), classes, location)


def check_labels(labels: Labels, classes: int, location: str) -> Labels:
    """Return the labels unchanged.

    Args:
        labels: Labels `[n]`.
        classes: Number of classes.
        location: Name of the file, for error messages.

    Raises:
        UsageError: If a label is out of range.
    """
    is_class = (labels >= 0) & (labels < classes)
    message = f"{location} has labels outside 0..{classes - 1}: is it this data set?"
    require(bool(is_class.all()), message)
    return labels
