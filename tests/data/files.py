"""Small files in exactly the formats in which the published sets come."""

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

SHARED = Path("/work/shared/data")


def shared(folder: str) -> Path:
    """A real data set, or the test is skipped with a reason."""
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"the real data set is not at {path}")
    return path


def idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_fmnist(folder: Path, train: int = 60, test: int = 20) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        y = (np.arange(count) % 10).astype(np.uint8)
        x = (rng.integers(0, 120, (count, 28, 28)) + 13 * y[:, None, None]).astype(np.uint8)
        arrays[prefix] = (x, y)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    return arrays


def cifar_batches(classes: int) -> dict[str, dict]:
    """The pickled dictionaries of CIFAR-10 (five batches) or CIFAR-100."""
    rng = np.random.default_rng(1)
    key = b"labels" if classes == 10 else b"fine_labels"
    names = (
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        if classes == 10
        else ["train", "test"]
    )
    return {
        name: {
            b"data": rng.integers(0, 256, (20, 3072)).astype(np.uint8),
            key: rng.integers(0, classes, 20).tolist(),
            b"filenames": [b"x.png"] * 20,
            b"batch_label": b"batch",
        }
        for name in names
    }


def cifar_archive(
    path: Path, classes: int, contents: dict[str, bytes] | None = None, extra: list | None = None
) -> None:
    """The original .tar.gz; ``contents`` replaces the pickles, ``extra`` adds entries."""
    folder = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
    contents = contents or {
        name: pickle.dumps(b, protocol=2) for name, b in cifar_batches(classes).items()
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra or []:
            archive.addfile(info)


def png(pixels: np.ndarray) -> bytes:
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.fromarray(pixels.squeeze()).save(file, "PNG")
    return file.getvalue()


def write_parquet(path: Path, pixels: np.ndarray, **labels: np.ndarray) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"img": [{"bytes": png(image), "path": None} for image in pixels]}
    parquet.write_table(pyarrow.table({**columns, **labels}), path)


def write_tiny_imagenet(folder: Path, size: int = 64) -> list[str]:
    """Two classes, four training and two validation images each; the last of each is greyscale."""
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    wnids = ["n02124075", "n04067472"]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    lines = []

    def save(path: Path, grey: bool) -> None:
        shape = (size, size) if grey else (size, size, 3)
        image_module.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(path, "JPEG")

    for wnid in wnids:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in range(4):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", grey=i == 3)
        for _ in range(2):
            name = f"val_{len(lines) * 7}.JPEG"
            save(folder / "val" / "images" / name, grey=len(lines) % 2 == 1)
            lines.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return wnids


PLAYS = """A preamble that nobody speaks.

1609

THE SONNETS

by William Shakespeare

  ONE. From fairest creatures we desire increase,
  TWO. That thereby beauty's rose might never die,

THE END

1603

ALL'S WELL THAT ENDS WELL

by William Shakespeare

Dramatis Personae

  KING. In delivering my son from me, I bury a second husband before the morning comes,
    and I in going, madam, weep o'er my father's death   anew.

<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS IS COPYRIGHT 1990-1993>>

    but I must attend his Majesty's command;
  King. Go.
  CLOWN. One line.
    Two lines.

THE END

1593

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
  This is no speech.

AEGEON. Proceed, Solinus, to procure my fall,
  And by the doom of death end woes and all. A heavier task could not have been impos'd
  Than I to speak my griefs unspeakable.

Enter a JAILER

  And so he goes.
<<THIS ELECTRONIC VERSION IS COPYRIGHT 1990-1993>>
  This is no speech either.
DUKE. Merchant of Syracuse, plead no more.

THE END
"""
