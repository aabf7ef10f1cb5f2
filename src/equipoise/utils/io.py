"""The disk, as everything here writes to it: a few operations, so that tests can fail, tear or forget any of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import State

try:
    import fcntl
except ImportError:  # not on Windows: there, two runs in one folder are the user's affair
    fcntl = None  # type: ignore[assignment]


class Disk:
    """What is done to a disk. Content or names that were not synced may be lost in a power cut."""

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        """``mode``: who may do what there, less what the user's umask forbids."""
        os.mkdir(path, mode)

    def fill(self, path: Path, write: Callable[[Path], None]) -> None:
        """Make a file, or empty it, and let ``write`` write its content."""
        write(path)

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file that is there: one that was deleted meanwhile does not come back with half its content."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        """Of a file its content; of a folder the names in it."""
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """A file, a link, or an empty folder."""
        os.rmdir(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)

    def lock(self, path: Path) -> int | None:
        """A lock that the operating system frees when this process ends; ``None`` if another has it."""
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_ino == _inode(
                    path
                ):  # else its owner removed it in between: try the new one
                    os.ftruncate(file, 0)
                    os.write(file, str(os.getpid()).encode())
                    return file
            except OSError as error:
                os.close(file)
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    return None
                raise
            os.close(file)

    def unlock(self, path: Path, file: int) -> None:
        try:
            os.unlink(path)
        except OSError:  # the folder is gone, or cannot be written to: closing frees the lock too
            pass
        finally:
            os.close(file)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


DISK = Disk()  # tests put one in its place that fails
LOCK_FILE = ".lock"


def make_folder(path: Path, private: bool = False) -> None:
    """A folder with those above it, each name synced in the folder above; ``private``: for their owner alone."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            DISK.make_folder(folder, 0o700 if private else 0o777)
        DISK.sync(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(f"'{path}' is a file, a folder was expected")


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Replace a file so that a reader, a crash or a power cut sees the old content or the new, never half of one.

    ``write`` writes the content to the path that it is given, which keeps the suffix.
    """
    temporary = temporary_path(path)
    try:
        DISK.fill(temporary, write)
        DISK.sync(temporary)
        DISK.rename(temporary, path)
        DISK.sync(path.parent)
    except Exception:
        with contextlib.suppress(OSError):
            DISK.remove(temporary)  # on a full disk its room is needed
        raise


def write_bytes(path: Path, data: bytes, private: bool = False) -> None:
    """``private``: for the file's owner alone."""

    def write(file: Path) -> None:
        if private:
            file.touch(0o600)
        file.write_bytes(data)

    write_with(path, write)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file with a checksum over its names, types, shapes, metadata and content."""
    write_with(path, lambda file: fill_tensors(file, tensors, metadata))


def fill_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """The content alone, for a file that :func:`write_with` puts in place."""
    about = metadata or {}
    try:
        save_file(
            unshare_memory(tensors), path, {**about, "checksum": str(_checksum(tensors, about))}
        )
    except safetensors.SafetensorError as error:  # what a full disk is told by
        raise OSError(f"'{path}' cannot be written: {error}") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What :func:`write_tensors` wrote; a damaged file is refused by name."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            # Copied to where torch would put them: products of matrices may round otherwise elsewhere.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise UsageError(f"'{path}' is damaged or cannot be read: {error}") from error
    if about.pop("checksum", None) != str(_checksum(tensors, about)):
        raise UsageError(f"'{path}' is damaged: its checksum does not match its content")
    return tensors, about


def read_text(path: Path) -> str:
    """Text as we write it; what is not text is refused by name."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is damaged: it is not text ({error})") from error


def append(path: Path, text: str) -> None:
    """Add to a file that is there. Not synced: see :func:`sync`."""
    DISK.append(path, text.encode())


def sync(path: Path) -> None:
    DISK.sync(path)


def remove(path: Path) -> None:
    """A file or a folder with all that is in it, if it is there; for good, once the folder above is synced."""
    if path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            remove(inner)
        DISK.remove(path)
    elif path.exists() or path.is_symlink():
        DISK.remove(path)


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """Of some content, or of content that goes on after what had the checksum ``before``."""
    return zlib.crc32(data, before)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else may write to this folder meanwhile; a lock whose owner died is free."""
    path = folder / LOCK_FILE
    file = DISK.lock(path)
    if file is None:
        owner = path.read_text(errors="replace").strip() if path.exists() else ""
        raise UsageError(
            f"'{folder}' is in use by process {owner or '?'}: wait for it to end, or choose another folder"
        )
    try:
        yield
    finally:
        DISK.unlock(path, file)


def temporary_path(path: Path) -> Path:
    """Where a file is written before it takes its name; hidden, and with its suffix."""
    return path.with_name(f".tmp-{path.name}")


def save(path: Path, state: State, meta: dict[str, Any]) -> None:
    """A nested tree of tensors and a JSON object beside it, in one file."""
    tensors: dict[str, Tensor] = {}
    shape = number_leaves(state, tensors)
    write_tensors(path, tensors, {"shape": json.dumps(shape), "meta": json.dumps(meta)})


def load(path: Path) -> tuple[State, dict[str, Any]]:
    """What :func:`save` wrote; a damaged file is refused by name."""
    tensors, about = read_tensors(path)
    try:
        shape, meta = json.loads(about["shape"]), json.loads(about["meta"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"checkpoint '{path}' is damaged or not a checkpoint: {error}") from error
    return restore_leaves(shape, tensors), meta


def read_meta(path: Path) -> dict[str, Any]:
    """The JSON object of what :func:`save` wrote, without reading its tensors."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            meta: dict[str, Any] = json.loads(file.metadata()["meta"])
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UsageError(f"checkpoint '{path}' is damaged or not a checkpoint: {error}") from error
    return meta


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


def unshare_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Safetensors wants every tensor contiguous and alone in its memory."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach()
        storage = value.untyped_storage()
        alone = (
            value.is_contiguous()
            and storage.nbytes() == value.nbytes
            and storage.data_ptr() not in seen
        )
        result[name] = value if alone else value.clone(memory_format=torch.contiguous_format)
        seen.add(storage.data_ptr())
    return result


def _checksum(tensors: dict[str, Tensor], about: dict[str, str]) -> int:
    """Over all that a safetensors file says: metadata, names, types, shapes, numbers."""
    kinds = {name: [str(value.dtype), *value.shape] for name, value in tensors.items()}
    return _content_checksum(tensors, header_checksum(kinds, about))


def header_checksum(kinds: dict[str, list[Any]], about: dict[str, str]) -> int:
    """Of what a safetensors file says before its numbers: ``kinds`` gives the type and the shape of each tensor."""
    return checksum(json.dumps([about, kinds], sort_keys=True).encode())


def _content_checksum(tensors: dict[str, Tensor], before: int) -> int:
    for name in sorted(tensors):
        before = checksum(tensor_bytes(tensors[name]), before)
    return before


def tensor_bytes(value: Tensor) -> memoryview:
    """The bytes of a tensor as a file has them."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
