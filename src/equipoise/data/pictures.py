"""Encoded images in tables: the Parquet layout of the Hugging Face hub."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.data.source import needs

Pixels = NDArray[np.uint8]


def decode(encoded: bytes, size: int, mode: str, where: str) -> Pixels:
    """One square image as ``[size, size, channels]``; greyscale is converted where colour is asked."""
    image_module = needs("PIL.Image", "decoding images")
    try:
        with image_module.open(io.BytesIO(encoded)) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError) as error:
        raise UsageError(f"{where} is not a readable image: download it again ({error})") from error
    if pixels.shape[:2] != (size, size):
        raise UsageError(f"{where} is {pixels.shape[1]}x{pixels.shape[0]}, not {size}x{size}: is it this data set?")
    return pixels.reshape(size, size, -1)


def read_parquet(paths: list[Path]) -> Any:
    """One table of all files, in order of their names."""
    pyarrow, parquet = needs("pyarrow", "reading Parquet"), needs("pyarrow.parquet", "reading Parquet")
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path))
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise UsageError(f"'{path}' is not a readable Parquet file: download it again ({error})") from error
    return pyarrow.concat_tables(tables)


def images_of(table: Any, size: int, mode: str, where: str) -> Pixels:
    """The image column (``img`` or ``image``) as ``[n, size, size, channels]``."""
    column = next((name for name in ("img", "image") if name in table.column_names), None)
    if column is None:
        raise UsageError(f"{where} has no column 'img' or 'image': it has {', '.join(table.column_names)}")
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
        raise UsageError(f"{where} has no column '{column}': it has {', '.join(table.column_names)}")
    values = table[column]
    if values.null_count:
        raise UsageError(f"{where} has rows without '{column}': download it again")
    return check_labels(values.to_numpy().astype(np.int64), classes, where)


def check_labels(labels: NDArray[np.int64], classes: int, where: str) -> NDArray[np.int64]:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise UsageError(f"{where} has labels outside 0..{classes - 1}: is it this data set?")
    return labels
