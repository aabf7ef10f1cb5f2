"""Durable file operations.

All writes go through the few operations of `Disk`, so that tests can make any of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from equipoise.utils.errors import UsageError

try:
    import fcntl
except ImportError:  # not on Windows: there, two runs in one folder are the user's affair
    fcntl = None  # type: ignore[assignment]


class Disk:
    """Primitive disk operations. Unsynced content or names may be lost in a power cut."""

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        """Create a folder with permissions `mode`, reduced by the umask."""
        os.mkdir(path, mode)

    def fill(self, path: Path, write: Callable[[Path], None]) -> None:
        """Create or truncate a file and let `write` write its content."""
        write(path)

    def append(self, path: Path, data: bytes) -> None:
        """Append to an existing file. A deleted file is not created again."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        """Flush the content of a file, or the names in a folder, to the disk."""
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically; an existing target is replaced."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file, a link, or an empty folder."""
        os.rmdir(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)

    def lock(self, path: Path) -> int | None:
        """Acquire a file lock, released by the system when the process ends; None if taken."""
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Otherwise its owner removed it in between: try the new file.
                if os.fstat(file).st_ino == _inode(path):
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
        """Remove the lock file and release the lock."""
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
LOCK_POLL_SECONDS = 0.05
TEMPORARY_PREFIX = ".tmp"  # safetensors has the same for its own temporary files


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder with its parents and sync each new name.

    Args:
        path: The folder.
        private: Give access to the owner only.

    Raises:
        NotADirectoryError: If the path is a file.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            DISK.make_folder(folder, 0o700 if private else 0o777)
        DISK.sync(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(f"'{path}' is a file, a folder was expected")


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Replace a file atomically: after a crash it has the old or the new content.

    Args:
        path: The file.
        write: Writes the content to a temporary path with the same suffix.
    """
    temporary = temporary_path(path)
    try:
        fill(temporary, write)
        rename([(temporary, path)])
    except Exception:
        remove_quietly([temporary])  # on a full disk its room is needed
        raise


def fill(path: Path, write: Callable[[Path], None]) -> None:
    """Create or truncate a file, let `write` write its content, and sync the content."""
    DISK.fill(path, write)
    DISK.sync(path)


def rename(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Rename files durably, in order; the last one when all others are durable.

    Args:
        pairs: Source and target of each file; existing targets are replaced.
    """
    for source, target in pairs[:-1]:
        DISK.rename(source, target)
    for folder in dict.fromkeys(target.parent for _, target in pairs[:-1]):
        DISK.sync(folder)
    for source, target in pairs[-1:]:
        DISK.rename(source, target)
        DISK.sync(target.parent)


def remove_quietly(paths: Iterable[Path]) -> None:
    """Remove files if that is possible, while another error is under way."""
    for path in paths:
        with contextlib.suppress(OSError):
            DISK.remove(path)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files that a killed process has left in a folder."""
    for path in sorted(folder.glob(f"{TEMPORARY_PREFIX}*")):
        remove(path)


def write_bytes(path: Path, data: bytes, private: bool = False) -> None:
    """Write bytes atomically.

    Args:
        path: The file.
        data: Its content.
        private: Give access to the owner only.
    """

    def write(file: Path) -> None:
        if private:
            file.touch(0o600)
        file.write_bytes(data)

    write_with(path, write)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises:
        UsageError: If the file is not UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is damaged: it is not text ({error})") from error


def append(path: Path, text: str) -> None:
    """Append text to an existing file. Not synced: see `sync`."""
    DISK.append(path, text.encode())


def sync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to the disk."""
    DISK.sync(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists. Durable after `sync(parent)`."""
    if path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            remove(inner)
        DISK.remove(path)
    elif path.exists() or path.is_symlink():
        DISK.remove(path)


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """Compute the CRC-32 of data that follows data with checksum `before`."""
    return zlib.crc32(data, before)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the lock of a dead process is free.

    Raises:
        UsageError: If another process holds the lock.
    """
    path = folder / LOCK_FILE
    file = DISK.lock(path)
    if file is None:
        owner = path.read_text(errors="replace").strip() if path.exists() else ""
        raise UsageError(
            f"'{folder}' is in use by process {owner or '?'}: "
            "wait for it to end, or choose another folder"
        )
    try:
        yield
    finally:
        DISK.unlock(path, file)


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, after waiting for a process that holds it."""
    path = folder / LOCK_FILE
    while (file := DISK.lock(path)) is None:
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        DISK.unlock(path, file)


def is_locked(folder: Path) -> bool:
    """Return whether a process of this machine holds the lock of a folder."""
    try:
        owner = int((folder / LOCK_FILE).read_text())
        os.kill(owner, 0)
    except PermissionError:  # a process of somebody else
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def temporary_path(path: Path) -> Path:
    """Return the hidden temporary path of a file, with the same suffix."""
    return path.with_name(f"{TEMPORARY_PREFIX}-{path.name}")
